"""The dashboard in a real Chromium, as a person sees it."""

import os
import shutil
from decimal import ROUND_HALF_EVEN, Context
from pathlib import Path
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Locator, Page, Response, expect

from support.coordinator.coordinator import OPERATOR_TOKEN

CHROMIUM = shutil.which("chromium")
PICTURES = os.environ.get("PUBSWAP_SCREENSHOTS")  # for a longer run than a test needs

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def visited(browser: Browser, **options: Any) -> tuple[Page, list[str]]:
    """An empty page of a browser without cookies, and all that will be wrong with what it shows.

    That is what Chromium reports on its console, such as a violation of the content policy, and
    each document with another policy.
    """
    wrong: list[str] = []

    def hear(message: Any) -> None:
        if message.type in ("error", "warning"):
            wrong.append(message.text)

    def check(response: Response) -> None:
        shown = response.request.resource_type == "document" and response.status // 100 != 3
        is_page = response.headers.get("content-type", "").startswith("text/html")
        if shown and is_page and response.headers.get("content-security-policy") != POLICY:
            wrong.append(f"{response.url} has another content policy")

    page = browser.new_context(**options).new_page()
    page.on("console", hear)
    page.on("pageerror", lambda error: wrong.append(f"Uncaught {error}"))
    page.on("response", check)
    return page, wrong


def opened(
    browser: Browser, url: str, token: str = OPERATOR_TOKEN, **options: Any
) -> tuple[Page, list[str]]:
    """A signed-in page, and all that will be wrong with what it shows."""
    page, wrong = visited(browser, **options)
    page.goto(url)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    return page, wrong


def plot(page: Page, title: str, group: str = "By round") -> Locator:
    """A chart, whose label says its last values in words."""
    section = page.locator("#charts section").filter(has=page.get_by_role("heading", name=group))
    return section.locator("figure").filter(has_text=title).locator(".plot").first


def three_digits(value: float) -> str:
    """A number of at least 0.001 as charts write it."""
    figure = Context(prec=3, rounding=ROUND_HALF_EVEN).create_decimal(value)
    return f"{figure.normalize():f}"


def faults(page: Page) -> list[tuple[str, str]]:
    """What axe finds on the page in light mode, and in dark mode by its rules on colours."""
    page.evaluate(AXE_SCRIPT)
    found: list[Any] = []
    for scheme, options in (("light", {}), ("dark", {"runOnly": ["cat.color"]})):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        wanted = {"resultTypes": ["violations"], **options}
        found += page.evaluate("wanted => axe.run(wanted)", wanted)["violations"]
    page.emulate_media(color_scheme="light")
    return [(each["id"], each["nodes"][0]["html"]) for each in found]


def script_bytes(page: Page) -> int:
    """The size of all scripts that the page names."""
    # Not from the browser's own records, which may lack what it had in memory.
    urls: list[str] = page.evaluate("[...document.scripts].map(each => each.src).filter(Boolean)")
    return sum(len(page.request.get(url).body()) for url in urls)


def kept(page: Page, name: str) -> None:
    """Save screenshots of the page, if asked for: wide and on a phone, light and dark.

    The wide and light one is for the docs, the others in `forms` are to look at.
    """
    if not PICTURES:
        return
    was = page.viewport_size
    for width, height in ((1600, 1240), (390, 844)):
        for scheme in ("dark", "light"):
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.evaluate("scrollTo(0, 0)")
            page.evaluate("new Promise(done => setTimeout(done, 300))")  # charts are drawn anew
            docs = (width, scheme) == (1600, "light")
            path = f"{name}.png" if docs else f"forms/{name}-{width}-{scheme}.png"
            page.screenshot(path=Path(PICTURES) / path, full_page=width == 390)
    if was is not None:
        page.set_viewport_size(was)
