"""The operator's webhook: a small POST when a run waits, fails, ends, or has something strange.

Best effort: a notice is tried a few times, and lost if the process ends. Alert on the metrics for
what must not be missed.
"""

import asyncio
from dataclasses import asdict, dataclass

import httpx
import structlog
from pydantic import SecretStr

log = structlog.get_logger(__name__)

TRY_SECONDS = 10.0  # for a whole try, however slowly the receiver answers
PAUSE_SECONDS = (2.0, 15.0)  # before the second and the third try
MAX_WAITING = 100


@dataclass(frozen=True, slots=True)
class Notice:
    """The body of the POST; `kind` is waiting, failing, finished or warning."""

    run: str
    name: str
    kind: str
    words: str


class Webhook:
    """Sends notices one after another; callers do not wait."""

    def __init__(self, url: SecretStr | None) -> None:
        self._url = url and url.get_secret_value()
        self._waiting: asyncio.Queue[Notice] = asyncio.Queue(MAX_WAITING)

    def put(self, notice: Notice | None) -> None:
        """Queue a notice, if there is one and a URL to send it to."""
        if notice is None or self._url is None:
            return
        try:
            self._waiting.put_nowait(notice)
        except asyncio.QueueFull:
            log.warning("notice dropped: too many are waiting", run=notice.run, kind=notice.kind)

    async def send_for_ever(self) -> None:
        while True:
            notice = await self._waiting.get()
            for pause in (0.0, *PAUSE_SECONDS):
                await asyncio.sleep(pause)
                if (fault := await self._fault(notice)) is None:
                    break
            else:  # without the URL, because it may hold a secret
                log.warning("notice not delivered", run=notice.run, kind=notice.kind, fault=fault)

    async def _fault(self, notice: Notice) -> str | None:
        """Try once; returns what went wrong, or None. The response's body is not read."""
        try:
            async with (
                asyncio.timeout(TRY_SECONDS),
                httpx.AsyncClient(timeout=TRY_SECONDS) as http,
                http.stream("POST", self._url or "", json=asdict(notice)) as answer,
            ):
                return None if answer.is_success else f"status {answer.status_code}"
        except Exception as error:  # also ImportError, with a SOCKS proxy in the environment
            return type(error).__name__
