"""The dashboard in a real Chromium, while members hand in rounds."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from pubswap_protocol import paths
from pubswap_protocol.messages import CreateRun, Evaluation, Progress
from support.browsing import opened, plot
from support.coordinator.coordinator import Federation, begun, serving, settings_for
from support.coordinator.hostile_exchange import HOSTILE, hostile_exchange
from support.eventually import until

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A run of two rounds in round 1."""
    with serving(settings_for(tmp_path_factory.mktemp("c"))) as server, server.closing:
        yield begun(server, rounds=2, method={"period": 1})


def hand_in(fed: Federation, round_: int) -> None:
    for name in "ab":
        fed.submit(name, round_, fed.adapter(round_))
    fed.wait_for(round_)
    fed.members["judge"].submit_evaluation(
        fed.run.id,
        round_,
        Evaluation(pass_at_1=0.25 * round_, by_topic={}, problems=4, seconds=1.0),
    )


def test_a_page_follows_its_run_to_the_end(browser: Browser, fed: Federation) -> None:
    """Changes by members and other operators appear without a reload; clicks trigger an action."""
    page, wrong = opened(browser, fed.server.url)
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
    expect(plot(page, "pass@1")).to_have_attribute(
        "aria-label", re.compile(r"0\.250 \(.*n = 4\) in round 1$"), timeout=20_000
    )
    assert page.evaluate("window.same"), "the page was loaded again"
    page.get_by_role("link", name="Pause").click()
    expect(page.get_by_role("main")).to_contain_text("nothing is lost")
    page.get_by_role("button", name="Pause").click()
    expect(now).to_contain_text("Paused")
    assert fed.view().paused
    fed.operator.move_run(fed.run.id, paths.RUN_RESUME)
    hand_in(fed, 2)
    expect(now).to_contain_text("Finished in round 2 of 2", timeout=20_000)
    assert not wrong
    page.get_by_role("button", name="Sign out").click()
    page.goto(f"{fed.server.url}/runs/{fed.run.id}")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_charts_follow_members_steps_and_can_be_asked(browser: Browser, fed: Federation) -> None:
    """During the first round: by pointer, key and touch; members can be hidden.

    One value far from the others leaves the curve as it is.
    """
    page, wrong = opened(browser, fed.server.url, has_touch=True)
    run = begun(fed.server, local_steps=20)

    def report(name: str, step: int, kl: float) -> None:
        progress = Progress(round=1, step=step, steps=20, reward=step / 32, kl=kl)
        run.members[name].heartbeat(run.run.id, progress)

    for step in range(1, 11):
        report("a", step, 0.01 * step)
        report("b", step, 22.7 if step == 4 else 0.02 * step)
    page.goto(f"{fed.server.url}/runs/{run.run.id}")
    reward, kl = (plot(page, title, "Inside") for title in ("Reward", "KL"))
    expect(reward).to_have_attribute(
        "aria-label", "Reward: a 0.312 in round 1, step 10; b 0.312 in round 1, step 10"
    )
    expect(page.locator("#progress")).to_contain_text("10 of 20")
    tips = page.locator("#charts .tip:not([hidden])")
    kl.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    expect(tips).to_have_text("round 1, step 4a 0.04b 22.7")
    page.keyboard.press("ArrowRight")
    expect(tips).to_have_text("round 1, step 5a 0.05b 0.1")
    assert kl.evaluate("usualRange([0.01, 0.02, 0.03, 0.04, 22.7])") == [0.01, 0.04]
    over = reward.locator(".u-over")
    box = over.bounding_box()
    assert box is not None
    over.hover(position={"x": box["width"] - 2, "y": 20})
    tip = reward.locator("xpath=..").locator(".tip")
    expect(tip).to_have_text("round 1, step 10a 0.312b 0.312")
    page.get_by_label("b", exact=True).uncheck()
    over.hover(position={"x": 1, "y": 20})
    expect(tip).to_have_text("round 1, step 1a 0.0312")
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + 30)
    expect(tip).to_contain_text(re.compile(r"step [56]a 0\.1"))
    report("a", 11, 0.11)
    expect(reward).to_have_attribute(
        "aria-label", re.compile("a 0.344 in round 1, step 11"), timeout=20_000
    )
    assert not wrong


def test_a_page_that_follows_its_run_leaves_the_reader_where_it_is(
    browser: Browser, fed: Federation
) -> None:
    """The focus stays, and a scrolled table stays scrolled."""
    size = {"width": 640, "height": 740}
    page, _ = opened(browser, fed.server.url, viewport=size)
    waiting = begun(fed.server)
    page.goto(f"{fed.server.url}/runs/{waiting.run.id}")
    members = page.locator("#members")
    moved = members.get_by_role("region", name="Members")
    with page.expect_response("**/parts/members"):  # the first of all parts, as the page loads
        pass
    members.get_by_role("link", name="Suspend").last.focus()
    moved.evaluate("region => { region.scrollLeft = 100; }")
    waiting.members["a"].heartbeat(waiting.run.id, Progress(round=1, step=1, steps=2, reward=0.375))
    expect(members).to_contain_text("0.375", timeout=20_000)
    expect(members.get_by_role("link", name="Suspend").last).to_be_focused()
    assert moved.evaluate("region => region.scrollLeft") == 100


def test_long_words_make_no_page_wider_than_a_phone(browser: Browser, fed: Federation) -> None:
    """With the longest names of a run and a member, each a single word."""
    page, _ = opened(browser, fed.server.url, viewport={"width": 360, "height": 740})
    wish = CreateRun(name="n" * 63, settings=fed.run.settings, model=fed.run.model)
    run = fed.operator.create_run(wish)
    page.goto(f"{fed.server.url}/")
    now = page.get_by_role("cell", name="Created: waiting for its files")
    assert now.bounding_box()["width"] > 200, "a long name leaves no room for words"  # type: ignore[index]
    for path in ("", "/acts/cancel", f"/acts/exclude?member={'m' * 63}", "/new", "/log"):
        page.goto(f"{fed.server.url}/runs/{run.id}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path


def test_a_phone_shows_what_happened_and_that_a_table_goes_on(
    browser: Browser, fed: Federation
) -> None:
    """The log's details and the runs' activities are on the screen; a wide table has a shadow."""
    page, _ = opened(browser, fed.server.url, viewport={"width": 390, "height": 844})
    for path, region in (("/", "Runs"), (f"/runs/{fed.run.id}/log", "Events")):
        page.goto(f"{fed.server.url}{path}")
        words = page.get_by_role("region", name=region).locator("td.words").first
        box = words.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
        assert box["width"] > 300
    page.goto(f"{fed.server.url}/runs/{begun(fed.server).run.id}")
    for words in (page.get_by_role("status"), page.get_by_role("link", name="Pause")):
        box = words.bounding_box()
        assert box is not None and box["y"] + box["height"] < 400, "not on the first screen"
    page.set_viewport_size({"width": 640, "height": 844})
    members = page.get_by_role("region", name="Members")
    assert members.evaluate("region => region.scrollWidth > region.clientWidth")
    assert "gradient" in members.evaluate("region => getComputedStyle(region).backgroundImage")


def test_what_models_say_stays_inert_in_a_browser(browser: Browser, fed: Federation) -> None:
    """A script, an event handler and a javascript: link in a prompt or a response do nothing."""
    hostile, path = hostile_exchange(fed.server)
    page, wrong = opened(browser, hostile.server.url)
    spoken: list[str] = []
    page.on("dialog", lambda dialog: (spoken.append(dialog.message), dialog.dismiss()))
    until(lambda: page.request.get(f"{hostile.server.url}{path}").ok)
    page.goto(f"{hostile.server.url}{path}")
    expect(page.get_by_role("main")).to_contain_text(HOSTILE)
    expect(page.get_by_role("main")).to_contain_text("<b>0</b>")
    assert page.locator("main").locator("script, img, b, a[href^=javascript]").count() == 0
    assert not spoken
    assert not wrong
