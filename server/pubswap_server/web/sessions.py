"""Sign-in to the dashboard: a signed cookie of half a day, and a token in each form.

Nothing is stored: the cookie is signed with the operator token's hash, so that every replica knows
it, and a new operator token ends all sessions.
"""

import hmac
import secrets
from dataclasses import asdict, dataclass

from itsdangerous import BadData, URLSafeTimedSerializer

COOKIE = "pubswap_session"
SECONDS = 12 * 3600


@dataclass(frozen=True, slots=True)
class WebSession:
    """A person who has signed in; `form_token` comes back with each form that changes something."""

    form_token: str
    viewer: str = ""  # the hash of a viewer's token; none is the operator

    def owns(self, form_token: str) -> bool:
        """Whether a form was made for this session."""
        return hmac.compare_digest(self.form_token.encode(), form_token.encode())


class Sessions:
    """Cookies of sessions."""

    def __init__(self, operator_sha256: str) -> None:
        self._signer = URLSafeTimedSerializer(operator_sha256, salt="pubswap dashboard")

    def begin(self, viewer: str = "") -> str:
        """A new session's cookie."""
        return str(self._signer.dumps(asdict(WebSession(secrets.token_urlsafe(16), viewer))))

    def read(self, cookie: str | None) -> WebSession | None:
        """The session of a cookie; None if it is not ours or too old."""
        try:
            return WebSession(**self._signer.loads(cookie or "", max_age=SECONDS))
        except (BadData, TypeError):
            return None
