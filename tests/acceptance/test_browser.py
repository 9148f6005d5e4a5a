"""The dashboard in a real Chromium, while members hand in rounds."""

import os
import re
import shutil
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.demo.demos import MODEL
from pubswap_client.operator.connecting import operator_token
from pubswap_client.state.membership import StoredMembership, save_membership
from pubswap_protocol import paths
from pubswap_protocol.messages import CreateRun, Evaluation, Progress, Role
from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    Federation,
    begun,
    serving,
    settings_for,
)
from support.coordinator.hostile_exchange import HOSTILE, hostile_exchange
from support.coordinator.processes import ONE_THREAD, create_run, serve, start_client
from support.eventually import until
from support.forked import ForkedProcesses

CHROMIUM = shutil.which("chromium")
PICTURES = os.environ.get("PUBSWAP_SCREENSHOTS")  # for a longer run than a test needs
# Errors that no page may cause; the browser prints them on its console.
BROKEN = ("Content Security Policy", "Failed to load", "Uncaught")

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A run of two rounds in round 1."""
    with serving(settings_for(tmp_path_factory.mktemp("c"))) as server, server.closing:
        yield begun(server, rounds=2, method={"period": 1})


def opened(
    browser: Browser, url: str, token: str = OPERATOR_TOKEN, **options: Any
) -> tuple[Page, list[str]]:
    """A signed-in page, and its console's output."""
    said: list[str] = []
    page = browser.new_context(**options).new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(f"Uncaught {error}"))
    page.goto(url)
    page.get_by_label("Token").fill(token)
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
    """Changes by members and other operators appear without a reload; clicks trigger an action."""
    page, said = opened(browser, fed.server.url)
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
    assert not [line for line in said if any(word in line for word in BROKEN)], said
    page.get_by_role("button", name="Sign out").click()
    page.goto(f"{fed.server.url}/runs/{fed.run.id}")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def plot(page: Page, title: str, group: str = "By round") -> Locator:
    """A chart, whose label says its last values in words."""
    section = page.locator("#charts section").filter(has=page.get_by_role("heading", name=group))
    return section.locator("figure").filter(has_text=title).locator(".plot").first


def test_charts_follow_members_steps_and_can_be_asked(browser: Browser, fed: Federation) -> None:
    """During the first round: by pointer, key and touch; members can be hidden.

    One value far from the others leaves the curve as it is.
    """
    page, said = opened(browser, fed.server.url, has_touch=True)
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
        "aria-label", "Reward: a 0.313 in round 1, step 10; b 0.313 in round 1, step 10"
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
    expect(tip).to_have_text("round 1, step 10a 0.313b 0.313")
    page.get_by_label("b", exact=True).uncheck()
    over.hover(position={"x": 1, "y": 20})
    expect(tip).to_have_text("round 1, step 1a 0.0313")
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + 30)
    expect(tip).to_contain_text(re.compile(r"step [56]a 0\.1"))
    report("a", 11, 0.11)
    expect(reward).to_have_attribute(
        "aria-label", re.compile("a 0.344 in round 1, step 11"), timeout=20_000
    )
    assert not [line for line in said if any(word in line for word in BROKEN)], said


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


def test_a_run_is_created_and_an_organisation_invited_by_clicks(
    browser: Browser, fed: Federation
) -> None:
    """From another run's file, edited; the code shown can be used to enrol."""
    page, said = opened(browser, fed.server.url)
    page.goto(f"{fed.server.url}/runs/{fed.run.id}")
    page.get_by_role("link", name="New run like this").click()
    file = page.get_by_label("Run file")
    file.fill(file.input_value().replace("rounds = 2", "rounds = 5"))
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("region", name="What changes")).to_contain_text("rounds")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name=f"{fed.run.name}-2")).to_be_visible()
    page.get_by_label("Name").fill("bank-1")
    page.get_by_role("button", name="Invite").click()
    command = page.locator("pre").inner_text()
    code = command.split("--invite ")[1].split()[0]
    assert fed.server.client(None).enroll(code).name == "bank-1"
    assert not [line for line in said if any(word in line for word in BROKEN)], said


def test_what_models_say_stays_inert_in_a_browser(browser: Browser, fed: Federation) -> None:
    """A script, an event handler and a javascript: link in a prompt or a response do nothing."""
    hostile, path = hostile_exchange(fed.server)
    page, said = opened(browser, hostile.server.url)
    spoken: list[str] = []
    page.on("dialog", lambda dialog: (spoken.append(dialog.message), dialog.dismiss()))
    until(lambda: page.request.get(f"{hostile.server.url}{path}").ok)
    page.goto(f"{hostile.server.url}{path}")
    expect(page.get_by_role("main")).to_contain_text(HOSTILE)
    expect(page.get_by_role("main")).to_contain_text("<b>0</b>")
    assert page.locator("main").locator("script, img, b, a[href^=javascript]").count() == 0
    assert not spoken
    assert not [line for line in said if any(word in line for word in BROKEN)], said


def test_no_page_has_a_serious_fault_for_people_with_disabilities(
    browser: Browser, fed: Federation
) -> None:
    """By axe's rules, in light mode, and in dark mode by those on colours.

    On a phone nothing is wider than the screen.
    """
    page, said = opened(browser, fed.server.url)
    base = f"/runs/{fed.run.id}"
    for path in (
        "/",
        base,
        f"{base}/log",
        f"{base}/settings",
        f"{base}/acts/cancel",
        f"{base}/new",
        "/sign-in",
    ):
        page.set_viewport_size({"width": 1200, "height": 900})
        page.goto(f"{fed.server.url}{path}")
        page.emulate_media(color_scheme="light")
        found = Axe().run(page).response["violations"]
        page.emulate_media(color_scheme="dark")
        found += Axe().run(page, options={"runOnly": ["cat.color"]}).response["violations"]
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert not serious, (path, [(each["id"], each["nodes"][0]["html"]) for each in serious])
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    assert not [line for line in said if any(word in line for word in BROKEN)], said


def invited(page: Page, name: str, role: str = "client") -> str:
    """Get the code for an organisation by clicks."""
    page.get_by_label("Name").fill(name)
    page.get_by_label("Role").select_option(role)
    page.get_by_role("button", name="Invite").click()
    code = page.locator("pre").inner_text().split("--invite ")[1].split()[0]
    page.get_by_role("link", name="Back").click()
    return code


@pytest.mark.usefixtures("unmeasured")
def test_a_run_from_creation_to_finish_while_real_daemons_train(
    browser: Browser, tmp_path: Path
) -> None:
    """All by clicks except the daemons; screenshots are saved in the folder PUBSWAP_SCREENSHOTS."""
    with ForkedProcesses(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path)
        with coordinator.api as api:
            length = {"local_steps": 4, "rounds": 3} if PICTURES else {"local_steps": 2}
            first = create_run(coordinator, {"method": {"period": 2 if PICTURES else 1}, **length})
            token = operator_token(tmp_path / "c" / "operator-token")
            size = {"width": 1280, "height": 1240}
            page, said = opened(browser, api.url, token, viewport=size)
            page.get_by_role("link", name=first.name).click()
            page.get_by_role("link", name="New run like this").click()
            file = page.get_by_label("Run file")
            file.fill(file.input_value().replace(f"{first.name}-2", "consortium"))
            page.get_by_role("button", name="Check").click()
            page.get_by_role("button", name="Create").click()
            for seed, name in enumerate(("hospital-a", "hospital-b", "judge")):
                role = Role.EVALUATOR if name == "judge" else Role.CLIENT
                state = tmp_path / name
                with CoordinatorClient(api.url) as anonymous:
                    membership = anonymous.enroll(invited(page, name, role))
                save_membership(state, StoredMembership(coordinator=api.url, membership=membership))
                if role is Role.CLIENT:
                    start_client(coordinator, state, seed + 3)
                else:
                    options = ["--state", str(state), "--model", str(MODEL), "--threads", "1"]
                    processes.start(name, ["evaluate", *options], ONE_THREAD)
            until(
                lambda: all(
                    member.unseen_seconds is not None for member in api.run("consortium").members
                )
            )
            page.get_by_role("link", name="Start").click()
            page.get_by_role("button", name="Start").click()
            rounds = first.settings.rounds
            right = plot(page, "pass@1")
            expect(right).to_have_attribute(
                "aria-label", re.compile(f"in round {rounds - 1}$"), timeout=120_000
            )
            steps = [point for point in api.steps("consortium") if point.reward is not None]
            assert {point.member for point in steps} == {"hospital-a", "hospital-b"}
            kept(page, "run")
            page.locator("#steps").get_by_role("link", name="step 1").first.click()
            kept(page, "public-step")
            page.go_back()
            now = page.get_by_role("status")
            expect(now).to_contain_text(f"Finished in round {rounds} of {rounds}", timeout=120_000)
            expect(page.get_by_role("main")).to_contain_text("Results")
            expect(right).to_have_attribute(
                "aria-label", re.compile(f"in round {rounds}$"), timeout=120_000
            )
            last = api.run("consortium").latest
            assert last is not None
            figure = Decimal(last.pass_at_1).quantize(Decimal("0.001"), ROUND_HALF_UP)
            expect(right).to_have_attribute("aria-label", re.compile(f"{figure} "))
            for name in ("hospital-a", "hospital-b"):
                *_, newest = (each for each in api.steps("consortium") if each.member == name)
                assert newest.reward is not None
                figure = Context(prec=3, rounding=ROUND_HALF_UP).create_decimal(newest.reward)
                expect(plot(page, "Reward", "Inside")).to_have_attribute(
                    "aria-label",
                    re.compile(
                        f"{name} {figure.normalize():f} in round {rounds}, step {newest.step}"
                    ),
                )
            kept(page, "finished")
            page.get_by_role("link", name="PubSwap").click()
            kept(page, "runs")
            assert not [line for line in said if any(word in line for word in BROKEN)], said


def kept(page: Page, name: str) -> None:
    """Save a screenshot of the page, if asked for."""
    if PICTURES:
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=Path(PICTURES) / f"{name}.png")
