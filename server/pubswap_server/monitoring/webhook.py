"""The operator's webhook: a small POST when a run waits, fails or is finished.

Best effort: a notice is tried a few times and lost with its process. What must not be missed is an
alert on the metrics.
"""

import asyncio
from dataclasses import asdict, dataclass

import httpx
import structlog
from pydantic import SecretStr

log = structlog.get_logger(__name__)

TRY_SECONDS = 10.0  # for the whole of a try, however the receiver trickles
PAUSE_SECONDS = (2.0, 15.0)  # before the second and the third try
MOST_WAITING = 100


@dataclass(frozen=True, slots=True)
class Notice:
    """The body of the POST; `kind` is waiting, failing or finished."""

    run: str
    name: str
    kind: str
    words: str


class Webhook:
    """Sends notices one after another; whoever has one does not wait for that."""

    def __init__(self, url: SecretStr | None) -> None:
        self._url = url and url.get_secret_value()
        self._waiting: asyncio.Queue[Notice] = asyncio.Queue(MOST_WAITING)

    def put(self, notice: Notice | None) -> None:
        """Send a notice, if there is one and anybody to send it to."""
        if notice is None or self._url is None:
            return
        try:
            self._waiting.put_nowait(notice)
        except asyncio.QueueFull:
            log.warning("notice dropped: too many wait", run=notice.run, kind=notice.kind)

    async def send_for_ever(self) -> None:
        while True:
            notice = await self._waiting.get()
            for pause in (0.0, *PAUSE_SECONDS):
                await asyncio.sleep(pause)
                if (fault := await self._fault(notice)) is None:
                    break
            else:  # not the address, which may hold a secret
                log.warning("notice given up", run=notice.run, kind=notice.kind, fault=fault)

    async def _fault(self, notice: Notice) -> str | None:
        """Try once; returns what went wrong. The body of the answer is not read."""
        try:
            async with (
                asyncio.timeout(TRY_SECONDS),
                httpx.AsyncClient(timeout=TRY_SECONDS) as http,
                http.stream("POST", self._url or "", json=asdict(notice)) as answer,
            ):
                return None if answer.is_success else f"status {answer.status_code}"
        except Exception as error:  # ImportError too, of a SOCKS proxy in the environment
            return type(error).__name__
