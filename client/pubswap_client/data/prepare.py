"""Make a split as one folder: private sets with different topics, a public and a test set."""

import hashlib
import os
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from pubswap_client.data.drawing import Split, divide, fitted, quotas
from pubswap_client.data.examples import Tally, verified
from pubswap_client.data.fault_list import fault_list, write_fault_list
from pubswap_client.data.manifest import (
    MANIFEST,
    DataManifest,
    LeftOut,
    Origin,
    SplitFile,
    check_files,
    check_same,
    read_manifest,
    spec_record,
)
from pubswap_client.data.reading import read_source
from pubswap_client.data.spec import DataSpec
from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.errors import Conflict, InvalidProblems
from pubswap_protocol.files import require_vacant, whole_folder, write_whole
from pubswap_protocol.problems import Problem, PromptLimit, problem_lines
from pubswap_protocol.verifiers import VerifierPool

_MAX_WORKERS = 8
_NAMED = 5  # places of rows that were left out


def prepare(spec: DataSpec, out: Path, limit: PromptLimit | None = None) -> Path:
    """Create the folder `out` with the split; does nothing if it contains the same one, intact.

    Omits prompts over `limit`, and unusable answers, all of which it lists beside the folder.

    Raises Conflict if `out` contains anything else, InvalidSettings for impossible sizes or
    settings, and InvalidProblems for unusable data or a split that was changed.
    """
    if _is_done(spec, out):
        return out
    tally, listing = Tally(), fault_list(out)
    try:
        split, origins = _make(spec, limit, tally)
    except InvalidProblems as error:
        if not tally.faults:
            raise
        write_fault_list(listing, tally.faults, tally.places)
        raise InvalidProblems(
            f"{error.detail} All {len(tally.faults)} are in {listing}, with lines and reasons. "
            "Correct them in your file as docs/data.md says for each reason, or remove them."
        ) from None
    write_fault_list(listing, tally.faults, tally.places)
    try:
        with whole_folder(out) as making:
            _write(making, spec, split, origins, tally)
    except Conflict:  # another process may have been faster, with this split or a different one
        if not _is_done(spec, out):
            raise
    return out


def _is_done(spec: DataSpec, out: Path) -> bool:
    """Whether the split exists; raises Conflict if something else does."""
    if (out / MANIFEST).exists():
        manifest = read_manifest(out)
        check_same(out, manifest, spec)
        check_files(out, manifest)
        return True
    require_vacant(out)
    return False


def _make(spec: DataSpec, limit: PromptLimit | None, tally: Tally) -> tuple[Split, list[Origin]]:
    sets, origins = read_source(spec, tally, limit)
    sizes = spec.sizes(sum(map(len, sets.values())))
    total = sizes.total(spec.clients)
    wanted = dict(zip(sets, quotas(len(sets), total), strict=True))
    # Refuse impossible sizes now, because the verifiers take minutes.
    fitted(spec, sizes, {name: min(wanted[name], len(sets[name])) for name in sets})
    drawn: list[Problem] = []
    counts: Counter[str] = Counter()
    workers = min(os.cpu_count() or 1, _MAX_WORKERS)
    with VerifierPool(workers) as verifiers, progress_bar() as progress:
        task = progress.add_task("checking answers", total=total)
        for name, problems in sets.items():
            for problem in verified(problems, wanted[name], verifiers.score_many, tally):
                drawn.append(problem)
                counts[name] += 1
                progress.advance(task)
    if len(drawn) < total:  # sizes relative to the usable problems exclude misread ones
        sizes = spec.sizes(len(drawn))
    return divide(drawn, spec, fitted(spec, sizes, counts)), origins


def _write(folder: Path, spec: DataSpec, split: Split, origins: list[Origin], tally: Tally) -> None:
    files = {}
    for name, problems in split.named().items():
        lines = problem_lines(problems)
        write_whole(folder / f"{name}.jsonl", lines)
        topics = Counter(problem.topic for problem in problems)
        files[f"{name}.jsonl"] = SplitFile(
            sha256=hashlib.sha256(lines).hexdigest(),
            problems=len(problems),
            topics=dict(sorted(topics.items())),
        )
    manifest = DataManifest(
        pubswap=version("pubswap"),
        spec=spec_record(spec),
        origins=origins,
        left_out=[
            LeftOut(reason=reason, rows=len(places), first=places[:_NAMED])
            for reason, places in tally.reasons.items()
        ],
        files=files,
    )
    write_whole(folder / MANIFEST, manifest.model_dump_json(indent=2).encode() + b"\n")
