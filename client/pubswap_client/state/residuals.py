"""FedEx-LoRA's residuals of earlier rounds: fetched once, kept in the state folder, and verified.

A restarted client adds the same bytes in the same order as one that never stopped. Files that the
last task did not name are removed: they are from another run, or from rounds undone by a rollback.
"""

from collections.abc import Sequence
from pathlib import Path

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_protocol.digests import digest_of_file, hexadecimal
from pubswap_protocol.errors import WrongState
from pubswap_protocol.files import sweep, write_whole
from pubswap_protocol.messages import Digest, RunView
from pubswap_protocol.tensors.adapter import LARGEST_DERIVED, AdapterFile, largest_stack, open_stack


class Residuals:
    """One member's folder of residuals."""

    def __init__(self, api: CoordinatorClient, run: RunView, folder: Path) -> None:
        """Create the folder if needed, and remove interrupted writes from it."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(folder)
        self._api = api
        self._run = run
        self._folder = folder
        self._checked: set[Digest] = set()

    def files(self, digests: Sequence[Digest], rounds: int) -> list[AdapterFile]:
        """The stacks with these digests, in this order, after `rounds` rounds; removes all others.

        Raises WrongState if there are more than these rounds can have produced, NotSaved, or
        InvalidAdapter.
        """
        limit = rounds if self._run.settings.aggregation.rule == "fedex" else 0
        if len(digests) > limit:
            raise WrongState(
                f"The coordinator named {len(digests)} residuals, but the run's rule has produced "
                f"at most {limit} so far."
            )
        for path in {*self._folder.glob("*.safetensors")} - {*map(self._path, digests)}:
            path.unlink()
        self._checked &= {*digests}
        return [self._stack(digest) for digest in digests]

    def _path(self, digest: Digest) -> Path:
        return self._folder / f"{hexadecimal(digest)}.safetensors"

    def _stack(self, digest: Digest) -> AdapterFile:
        path = self._path(digest)
        checked = digest in self._checked
        if not checked and not (path.exists() and digest_of_file(path) == digest):
            most = largest_stack(self._run.model.layout)
            write_whole(path, self._api.blob(self._run.id, digest, max_bytes=most))
        stack = open_stack(path, self._run.model.layout)
        if not checked:
            stack.check(LARGEST_DERIVED)
            self._checked.add(digest)
        return stack
