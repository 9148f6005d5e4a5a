"""The dashboard in a real Chromium, while members hand in rounds."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from pubswap_protocol import paths
from pubswap_protocol.messages import Evaluation, Progress
from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    Federation,
    Server,
    begun,
    serving,
    settings_for,
)

CHROMIUM = shutil.which("chromium")
# What no page may have: the browser says so on its console.
BROKEN = ("Content Security Policy", "Failed to load", "Uncaught")

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a screen."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A run of two rounds that has begun."""
    with serving(settings_for(tmp_path_factory.mktemp("c"))) as server, server.closing:
        yield begun(server, rounds=2)


def opened(browser: Browser, server: Server, **options: Any) -> tuple[Page, list[str]]:
    """A page that has signed in, and what its console said."""
    said: list[str] = []
    page = browser.new_context(**options).new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(f"Uncaught {error}"))
    page.goto(server.url)
    page.get_by_label("Operator's token").fill(OPERATOR_TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    return page, said


def hand_in(fed: Federation, round_: int) -> None:
    for name in "ab":
        fed.submit(name, round_, fed.adapter(round_))
    fed.wait_for(round_)
    fed.members["judge"].submit_evaluation(
        fed.run.id,
        round_,
        Evaluation(pass_at_1=0.25 * round_, by_topic={}, problems=4, seconds=1.0),
    )


def test_a_page_follows_its_run_to_the_end(
    browser: Browser, fed: Federation, tmp_path: Path
) -> None:
    """What members and other operators do appears without a reload; an act is done by clicks."""
    page, said = opened(browser, fed.server)
    page.get_by_role("link", name=fed.run.name).click()
    now = page.get_by_role("status")
    expect(now).to_contain_text("Waits for a, b")
    page.evaluate("window.same = true")
    fed.members["a"].heartbeat(fed.run.id, Progress(round=1, step=1, steps=2, reward=0.375))
    expect(page.locator("#members")).to_contain_text("0.375", timeout=20_000)
    fed.operator.move_run(fed.run.id, paths.RUN_PAUSE)
    expect(now).to_contain_text("Paused", timeout=20_000)
    fed.operator.move_run(fed.run.id, paths.RUN_RESUME)
    hand_in(fed, 1)
    expect(page.locator("#curves")).to_contain_text("round 1: 0.25", timeout=20_000)
    assert page.evaluate("window.same"), "the page was loaded again"
    page.get_by_role("link", name="Pause").click()
    expect(page.get_by_role("main")).to_contain_text("nothing is lost")
    page.get_by_role("button", name="Pause").click()
    expect(now).to_contain_text("Paused")
    assert fed.view().paused
    fed.operator.move_run(fed.run.id, paths.RUN_RESUME)
    hand_in(fed, 2)
    expect(now).to_contain_text("Finished in round 2 of 2", timeout=20_000)
    assert not [line for line in said if any(word in line for word in BROKEN)], said
    page.get_by_role("button", name="Sign out").click()
    page.goto(f"{fed.server.url}/runs/{fed.run.id}")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_fault_for_people_with_disabilities(
    browser: Browser, fed: Federation, scheme: str
) -> None:
    """By axe's rules, in light and dark, and on a phone nothing is wider than the screen."""
    page, said = opened(browser, fed.server, color_scheme=scheme)
    base = f"/runs/{fed.run.id}"
    for path in ("/", base, f"{base}/log", f"{base}/settings", f"{base}/acts/cancel", "/sign-in"):
        page.set_viewport_size({"width": 1200, "height": 900})
        page.goto(f"{fed.server.url}{path}")
        found = Axe().run(page).response["violations"]
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert not serious, (path, [(each["id"], each["nodes"][0]["html"]) for each in serious])
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    assert not [line for line in said if any(word in line for word in BROKEN)], said
