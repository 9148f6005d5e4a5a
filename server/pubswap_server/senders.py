"""Who was just found to be sending an upload, so that not every chunk asks the database again."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from pubswap_server.tables import UploadRow

BELIEVED_SECONDS = 5.0
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Sender:
    """What a chunk comes with: the upload, its run, the token's SHA-256, the certificate."""

    run: str
    upload: str
    token_sha256: str
    certificate: str | None


class Senders:
    """The last few senders, each for five seconds.

    A member revoked meanwhile may still add bytes to an upload, and cannot finish it: no byte of it
    is ever used, for finishing asks the database who it is.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[Sender, tuple[float, UploadRow]] = OrderedDict()

    def find(self, sender: Sender) -> UploadRow | None:
        """The upload, if the sender was allowed to send it a moment ago."""
        until, row = self._known.get(sender, (0.0, None))
        return row if self._clock() < until else None

    def remember(self, sender: Sender, row: UploadRow) -> None:
        """The sender may send this upload."""
        self._known[sender] = (self._clock() + BELIEVED_SECONDS, row)
        self._known.move_to_end(sender)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def forget(self, upload: str) -> None:
        """The upload has ended."""
        for sender in [known for known in self._known if known.upload == upload]:
            del self._known[sender]
