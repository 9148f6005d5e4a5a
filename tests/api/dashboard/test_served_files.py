"""Files that the dashboard serves."""

import hashlib
import re

import httpx

from pubswap_server.web.rendering import STATIC
from support.coordinator.coordinator import (
    Server,
    begun,
)

# The vendored files as published; their licences are next to them.
SHA256 = {
    "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "hx-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
    "uplot.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def test_an_adapter_is_downloaded_as_a_file(server: Server, browser: httpx.Client) -> None:
    """The initial adapter, with its round in the file's name."""
    fed = begun(server)
    answer = browser.get(f"/runs/{fed.run.id}/adapters/0")
    assert answer.headers["Content-Disposition"].endswith('"adapter-round-0.safetensors"')
    assert len(answer.content) == fed.run.model.layout.file_bytes


def test_a_browser_asks_again_whether_the_last_adapter_is_still_the_last(
    server: Server, browser: httpx.Client
) -> None:
    """Without Cache-Control, a browser guesses from the date how long a file stays fresh."""
    answer = browser.get(f"/runs/{begun(server).run.id}/adapters/final")
    assert answer.headers["Cache-Control"] == "private, no-cache"
    again = browser.get(answer.url, headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.headers["Cache-Control"]) == (304, "private, no-cache")


def test_vendored_scripts_are_what_was_published(browser: httpx.Client) -> None:
    """By their SHA-256, and with our own less than 150 kB of script in total."""
    scripts = {name: browser.get(f"/static/{name}").content for name in SHA256}
    assert {name: hashlib.sha256(data).hexdigest() for name, data in scripts.items()} == SHA256
    assert sum(path.stat().st_size for path in STATIC.glob("*.js")) < 150_000


def test_a_page_names_its_static_files_by_digest(browser: httpx.Client) -> None:
    """So a browser uses no other version's file. Nothing outside their folder is served."""
    links = re.findall(r'(?:href|src)="(/static/[^"]+)"', browser.get("/").text)
    assert len(links) == 3
    for link in links:
        answer = browser.get(link)
        digest = hashlib.sha256(answer.content).hexdigest()
        assert link.partition("?")[2] == digest[:12]
    for name in ("none.js", "..%2Frendering.py", "%2Fetc%2Fpasswd", ""):
        assert browser.get(f"/static/{name}").status_code == 404
