"""Adapters that an operator makes, as new PEFT folders."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from pubswap_protocol.files import require_vacant, whole_folder
from pubswap_protocol.tensors.adapter import open_stack
from pubswap_protocol.tensors.peft_folder import write_peft_folder
from pubswap_server.aggregation.stacking import stacked
from pubswap_server.database.tables import RunRow
from pubswap_server.runs import runs
from pubswap_server.storage.local import LocalBlobs
from pubswap_server.storage.spool import Spool


@contextmanager
def new_folder(out: Path) -> Iterator[tuple[Path, LocalBlobs]]:
    """A folder for its owner only that is at `out` once it is whole, and a store for the time.

    Both are beside `out` till then, and gone after any failure. Raises InvalidSettings if something
    is at `out` already.
    """
    out = out.absolute()
    require_vacant(out)
    with (
        whole_folder(out, 0o700) as folder,
        tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch,
        closing(Spool(Path(scratch, "incoming"))) as incoming,
    ):
        yield folder, LocalBlobs(Path(scratch, "blobs"), incoming)


def write_adapter(folder: Path, run: RunRow, files: Sequence[Path]) -> None:
    """Write an adapter, or with FedEx-LoRA's residuals behind it their stack, as a PEFT folder."""
    settings, model = runs.settings_of(run), runs.model_of(run)
    adapter = files[0].read_bytes()
    if len(files) > 1:
        _, parts = stacked(model.layout, [open_stack(file, model.layout) for file in files])
        adapter = b"".join(parts)
    write_peft_folder(folder, adapter, settings.lora, model, model.source)
