"""Render pages from templates, with a security policy; errors become pages or the sign-in."""

import hashlib
import re
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from pubswap_protocol.bounds import NAME_FORM
from pubswap_protocol.command_line.amounts import duration_text, share_text, size_text
from pubswap_protocol.command_line.toml_values import value_text
from pubswap_protocol.errors import Invalid, PubSwapError, UnknownRun, fault_text
from pubswap_server.clock import now
from pubswap_server.runs.evaluations import in_words

# No foreign content, nothing inline, no form to another site, no framing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}

STATIC = Path(__file__).with_name("static")


class SignedOut(Exception):
    """The page needs a session; `typed` is the form's text, which a redirect would lose."""

    def __init__(self, typed: str = "") -> None:
        super().__init__()
        self.typed = typed


class PageRoute(APIRoute):
    """A route that renders errors as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except SignedOut as error:
                if error.typed:
                    way = quote(_way_back(request))
                    return page("signed_out.html", 401, session=None, text=error.typed, to=way)
                if "HX-Request" in request.headers:  # from htmx: reload the whole page
                    return Response(status_code=401, headers={"HX-Refresh": "true"})
                return RedirectResponse(f"/sign-in?to={quote(_way_back(request))}", 303)
            except (PubSwapError, RequestValidationError) as error:
                if isinstance(error, RequestValidationError):
                    error = Invalid(fault_text(error.errors()[0]))
                unknown = isinstance(error, UnknownRun)
                run = None if unknown else request.path_params.get("run")
                problem = error.problem()
                own = request.url.path.startswith("/own")  # a member has no other page
                values = {"problem": problem, "session": None, "run": run, "own": own}
                return page("error.html", error.status, **values)

        return answer


def _way_back(request: Request) -> str:
    """The requested page; for a submitted form, its own page or the run's."""
    path = request.url.path
    if request.method == "GET":
        return f"{path}?{request.url.query}" if request.url.query else path
    return path if path.endswith("/new") else "/".join(path.split("/")[:3])


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(_environment.get_template(template).render(values), status, headers=HEADERS)


@cache
def _static_url(name: str) -> str:
    """A URL with the file's digest, so that browsers do not reuse another version's file."""
    return f"/static/{name}?{hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


def number_text(value: float | None) -> str:
    """A number in at most ten characters, to fit beside a chart's axis."""
    if value is None:
        return "\N{EN DASH}"
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"


def detail_text(value: object) -> str:
    """An event's detail on one line, with numbers and digests shortened."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {detail_text(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(detail_text, value))
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return number_text(value)
    text = str(value)
    return f"{text[:19]}\N{HORIZONTAL ELLIPSIS}" if text.startswith("blake3:") else text


# Fields of events by the words for them.
_WORDS = {
    "pass_at_1": "pass@1",
    "replaced_share": "share replaced",
    "correct_share": "share correct",
}


def details_text(details: Mapping[str, object]) -> str:
    """An event's details on one line; what is not the case is left out."""
    said = {_WORDS.get(key, key.replace("_", " ")): value for key, value in details.items()}
    parts = {key: value for key, value in said.items() if value is not False}
    return ", ".join(
        key if value is True else f"{key} {detail_text(value)}" for key, value in parts.items()
    )


def brackets_text(share: float, count: int | None) -> str:
    """The interval and the number of problems of a share, in brackets; "" without a number."""
    return share_text(share, count).partition(" ")[2]


def marked_words(text: str) -> Markup:
    """A message with its commands and names, between backticks, as code; the rest is escaped."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped


_environment = Environment(
    loader=PackageLoader(__package__),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FILTERS: dict[str, Callable[..., str]] = {
    "moment": lambda moment: f"{moment:%Y-%m-%d %H:%M:%S} UTC",
    "span": duration_text,
    "until": lambda moment: duration_text(max(0.0, (moment - now()).total_seconds())),
    "size": size_text,
    "number": number_text,
    "share": share_text,
    "interval": brackets_text,
    "evaluated": in_words,
    "score": lambda value: "\N{EN DASH}" if value is None else f"{value:.3f}",
    "details": details_text,
    "value": value_text,
    "words": marked_words,
}
_environment.filters |= _FILTERS
_environment.globals |= {"static": _static_url, "name_form": NAME_FORM}
