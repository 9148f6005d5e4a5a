"""A federation that a person makes, watches and compares in a real Chromium."""

import re
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from pubswap_protocol import paths
from pubswap_protocol.command_line.amounts import share_text, size_text
from pubswap_protocol.command_line.keys import flat
from pubswap_protocol.command_line.toml_values import value_text
from pubswap_protocol.messages import (
    CreateRun,
    Evaluation,
    JudgedResponse,
    Role,
    RunState,
    WholeRun,
)
from support.browsing import (
    faults,
    kept,
    plot,
    script_bytes,
    three_digits,
    visited,
)
from support.coordinator.coordinator import Federation, Server
from support.eventually import until
from support.made_by_clicks import CLIENTS, NAME, ROUNDS, TOPICS, Made, link_of, made_by_clicks

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def made(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Its daemons have started, its run has not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # as in `unmeasured`
        with made_by_clicks(browser, tmp_path_factory.mktemp("federation")) as made:
            yield made


@pytest.fixture(scope="module")
def trained(made: Made) -> Made:
    """The run is over, and its last round evaluated."""
    view = made.view()
    if view.state is RunState.OPEN:
        made.api.move_run(NAME, paths.RUN_START)
    elif view.paused:
        made.api.move_run(NAME, paths.RUN_RESUME)

    def over() -> bool:
        made.coordinator.processes.check()
        view = made.view()
        return view.state is RunState.FINISHED and all(each.evaluation for each in view.rounds)

    until(over, 240)
    return made


def test_a_run_is_made_from_nothing_and_real_clients_join(made: Made) -> None:
    """Wrong files are refused by line; the page shows what the run's organisations approve."""
    card, public, test = made.refused
    assert "This is no card of a model" in card and "pubswap model card" in card
    assert "line 5" in public and "answer" in public, public
    assert "line 5" in test and "occurs twice" in test, test
    view = made.view()
    settings = flat(view.settings.model_dump(mode="json"))
    for key in ("rounds", "clients", "local_steps", "lora.rank", "grpo.learning_rate"):
        assert re.search(rf"^{re.escape(key)}\s+{settings[key]}\s", made.approved, re.M), key
    assert view.model.source in made.approved and str(view.verifier_version) in made.approved
    assert {each.name for each in view.members if each.accepted} == {*CLIENTS, "judge"}
    assert [line for line in made.wrong if "status of 422" not in line] == []
    assert len(made.wrong) == len(made.refused), "one answer of 422 for each"


def test_the_screen_has_the_api_s_figures_while_daemons_train(browser: Browser, made: Made) -> None:
    """In a pause, so that both stand still: the members' table, and a chart under the pointer."""
    page, wrong = made.page(browser, f"/runs/{NAME}")
    expect(page.locator("#members")).not_to_contain_text("not started", timeout=60_000)
    page.get_by_role("link", name="Start").click()
    page.get_by_role("button", name="Start").click()
    until(lambda: all(made.reward(name) is not None for name in CLIENTS))
    page.get_by_role("link", name="Pause").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status").first).to_contain_text("Paused")
    expect(plot(page, "Reward", "Inside")).to_be_visible()
    until(lambda: on_screen(page) == by_api(made))
    kept(page, "run")
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status").first).not_to_contain_text("Paused")
    assert not wrong


def by_api(made: Made) -> tuple[list[list[str]], str]:
    """The clients' cells in the members' table, and what a chart says at the last step."""
    rows = []
    for name in CLIENTS:
        now = made.member(name).progress
        assert now is not None and now.reward is not None and now.kl is not None
        rows.append([f"{now.step} of {now.steps}", f"{now.reward:.3f}", f"{now.kl:.3g}"])
    lasts = [made.last_step(name) for name in CLIENTS]
    last = max((each.round, each.step) for each in lasts)
    told = [
        f"{each.member} {three_digits(each.reward or 0.0)}"
        for each in lasts
        if (each.round, each.step) == last
    ]
    return rows, f"round {last[0]}, step {last[1]}{''.join(told)}"


def on_screen(page: Page) -> tuple[list[list[str]], str | None]:
    """The same on the page, with the pointer at the chart's right edge."""
    members = page.get_by_role("region", name="Members")
    rows = [
        [
            members.get_by_role("row", name=name).locator(f"[data-name='{cell}']").inner_text()
            for cell in ("Step", "Reward", "KL")
        ]
        for name in CLIENTS
    ]
    chart = plot(page, "Reward", "Inside")
    over = chart.locator(".u-over")
    box = over.bounding_box()
    assert box is not None
    for x in (1, box["width"] - 2):
        over.hover(position={"x": x, "y": 20})
    return rows, chart.locator("xpath=..").locator(".tip").text_content()


def test_a_finished_run_s_page_has_the_api_s_figures(browser: Browser, trained: Made) -> None:
    """Its charts end with each member's last step and the last pass@1."""
    page, wrong = trained.page(browser, f"/runs/{NAME}")
    last = trained.view().latest
    assert last is not None and last.round == ROUNDS
    right = f"pass@1: pass@1 {share_text(last.pass_at_1, 12)}"
    expect(plot(page, "pass@1")).to_have_attribute("aria-label", f"{right} in round {ROUNDS}")
    told = [
        f"{each.member} {three_digits(each.reward or 0.0)} in round {ROUNDS}, step {each.step}"
        for each in map(trained.last_step, CLIENTS)
    ]
    reward = plot(page, "Reward", "Inside")
    expect(reward).to_have_attribute("aria-label", f"Reward: {told[0]}; {told[1]}")
    expect(page.get_by_role("main")).to_contain_text("Results")
    kept(page, "finished")
    page.locator("#steps").get_by_role("link", name="step 1").first.click()
    expect(page.get_by_role("main")).to_contain_text("hospital-b")
    kept(page, "public-step")
    assert not wrong


def test_a_member_reads_its_own_page_by_a_link_that_works_once(
    browser: Browser, trained: Made
) -> None:
    """Its figures are the API's; nothing that its browser gets is of another member."""
    name, peer = CLIENTS
    link = link_of(trained, name)
    page, wrong = visited(browser)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    page.goto(link)
    member, view = trained.member(name), trained.view()
    sent = page.get_by_role("region", name="What was sent")
    for kind, up, down in (
        ("Adapters", member.traffic.adapters_up, member.traffic.adapters_down),
        ("Responses", member.traffic.responses_up, member.traffic.responses_down),
    ):
        cells = sent.get_by_role("row", name=kind).get_by_role("cell")
        expect(cells).to_have_text([size_text(up), size_text(down)])
    assert view.latest is not None and member.progress is not None
    shown = page.get_by_role("main").inner_text()
    assert f"{view.latest.pass_at_1:.3f}" in shown
    assert f"Reward\n{member.progress.reward:.3f}\n" in shown
    assert re.search(r"^grpo\.learning_rate\s+0\.001\s", shown, re.M)
    last, own = trained.last_step(name), plot(page, "Reward", "Inside")
    told = f"{name} {three_digits(last.reward or 0.0)} in round {ROUNDS}, step {last.step}"
    expect(own).to_have_attribute("aria-label", f"Reward: {told}")
    kept(page, "own")
    assert {path for path in asked if not path.startswith("/static/")} == {
        *("/own/link", "/own", "/own/points")
    }
    for path in ("/own", "/own/points"):
        assert peer not in page.request.get(f"{trained.api.url}{path}").text()
    steps = next(
        each for each in page.request.get(f"{trained.api.url}/own/points").json() if each["names"]
    )
    rewards = [each.reward for each in trained.api.steps(NAME) if each.member == name]
    assert steps["charts"][0]["series"] == {name: rewards}
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the adapter").click()
    assert download.value.path().read_bytes() == trained.api.global_adapter(view.id, "final")
    second, refused = visited(browser)
    answer = second.goto(link)
    assert answer is not None and answer.status == 401
    expect(second.get_by_role("alert")).to_have_text(
        "This link has expired or was used. Get another with pubswap client link."
    )
    assert not [line for line in refused if "status of 401" not in line]
    page.reload()
    expect(page.get_by_role("heading", name=NAME)).to_be_visible()
    assert not wrong


@pytest.fixture(scope="module")
def other(browser: Browser, trained: Made) -> WholeRun:
    """A run like the first, made by clicks with other settings; its members are the test's."""
    page, wrong = trained.page(browser, f"/runs/{NAME}")
    page.get_by_role("link", name="New run like this").click()
    file = page.get_by_label("Run file")
    text = file.input_value()
    for key, value in (("rounds", 1), ("clients", 1), ("grpo.learning_rate", 0.01)):
        text = re.sub(rf"^{re.escape(key)} = .*$", f"{key} = {value}", text, flags=re.M)
    file.fill(text)
    page.get_by_role("button", name="Check").click()
    page.get_by_role("button", name=f"Create {NAME}-2").click()
    expect(page.get_by_role("heading", name=f"{NAME}-2")).to_be_visible()
    assert not wrong
    page.context.close()
    run = trained.api.run(f"{NAME}-2")
    with (server := Server(trained.api.url, None, trained.folder)).closing:
        fed = Federation(server, run, trained.api)
        fed.enroll("a")
        judge = fed.enroll("judge", Role.EVALUATOR)
        fed.start()
        fed.submit("a", 1, fed.adapter(1))
        fed.wait_for(1)
        for round_, right in enumerate((0.25, 0.75)):
            found = Evaluation(pass_at_1=right, by_topic={}, problems=12, seconds=1.0)
            judge.submit_evaluation(run.id, round_, found)
    return trained.api.whole_run(run.id)


def test_a_comparison_has_the_api_s_figures(
    browser: Browser, trained: Made, other: WholeRun
) -> None:
    """Of two runs chosen in the list: pass@1, bytes, the log's values, and all that differs."""
    page, wrong = trained.page(browser)
    runs = [other, trained.view()]  # as in the list
    for run in runs:
        page.get_by_label(f"Compare {run.name}", exact=True).check()
    kept(page, "runs")
    page.get_by_role("button", name="Compare the chosen runs").click()
    table, told, logged = page.get_by_role("region", name="Runs"), [], []
    for run in runs:
        row = table.get_by_role("row").filter(
            has=page.get_by_role("link", name=run.name, exact=True)
        )
        first, last, best = run.rounds[0].evaluation, run.latest, run.best
        assert first is not None and last is not None and best is not None
        total = sum(each.traffic.up + each.traffic.down for each in run.members)
        for cell, text in (
            ("Round", f"{run.round} of {run.settings.rounds}"),
            ("Before training", f"{first.pass_at_1:.3f}"),
            ("Last", share_text(last.pass_at_1, 12)),
            ("Best", share_text(best.pass_at_1, 12)),
            ("Sent and received", size_text(total)),
        ):
            expect(row.locator(f"[data-name='{cell}']")).to_have_text(text)
        told.append(f"{run.name} {three_digits(last.pass_at_1)} in round {last.round}")
        events = trained.api.events(run.id).events
        scores = {
            e.details["round"]: e.details["pass_at_1"] for e in events if e.kind == "evaluated"
        }
        logged.append([scores.get(round_) for round_ in range(ROUNDS + 1)])
    curves = plot(page, "pass@1")
    expect(curves).to_have_attribute("aria-label", f"pass@1: {'; '.join(told)}")
    points = page.request.get(page.url.replace("/compare?", "/compare/points?")).json()[0]
    assert [*points["charts"][0]["series"].values()] == logged
    curves.focus()
    for _ in range(ROUNDS):
        page.keyboard.press("ArrowLeft")
    both = [
        f"{run.name} {three_digits(values[1] or 0.0)}"
        for run, values in zip(runs, logged, strict=True)
    ]
    expect(curves.locator("xpath=..").locator(".tip")).to_have_text("".join(["round 1", *both]))
    settings = [flat(run.settings.model_dump(mode="json")) for run in runs]
    differing = {
        key
        for key in settings[0] | settings[1]
        if len({str(each.get(key)) for each in settings}) > 1
    }
    rows = page.get_by_role("region", name="Settings that differ").get_by_role("row")
    assert rows.count() == len(differing) + 1
    for key in differing:
        cells = rows.filter(has_text=key).get_by_role("cell").all_inner_texts()
        assert cells[:2] == [value_text(each[key]) for each in settings], key
    assert {"rounds", "clients", "grpo.learning_rate"} <= differing
    kept(page, "compare")
    assert not wrong


def test_each_figure_of_pass_at_1_leads_to_its_responses(browser: Browser, trained: Made) -> None:
    """By topic and by round, the texts and verdicts that the API has."""
    view = trained.view()
    page, wrong = trained.page(browser, f"/runs/{NAME}")
    base = f"/runs/{view.id}/rounds"
    found = page.locator("a[href*='/responses']").evaluate_all(
        "links => links.map(link => link.getAttribute('href'))"
    )
    assert set(found) == {f"{base}/{round_}/responses" for round_ in range(ROUNDS + 1)} | {
        f"{base}/{round_}/responses?topic={quote(topic)}"
        for round_ in (0, ROUNDS)
        for topic in TOPICS
    }
    region = page.get_by_role("region", name="Topics")
    for topic in TOPICS:
        for round_ in (0, ROUNDS):
            evaluation = trained.api.evaluation(view.id, round_)
            figure = region.get_by_role("row", name=topic).get_by_role("cell").nth(min(1, round_))
            expect(figure).to_have_text(share_text(evaluation.by_topic[topic], 6))
    figure.get_by_role("link").click()
    for round_ in (ROUNDS, 0):
        expect(page.get_by_role("heading", level=1)).to_contain_text(
            f"Round {round_}" if round_ else "Before training"
        )
        everything = trained.api.evaluation(view.id, round_).responses
        assert read(page) == [judged(each) for each in everything if each.topic == topic]
        page.get_by_role("navigation", name="Rounds").get_by_role("link", name="Before").click()
    page.get_by_role("navigation", name="Topics").get_by_role("link", name="All").click()
    expect(page.get_by_role("heading", level=2)).to_have_count(len(TOPICS))
    assert sorted(read(page)) == sorted(map(judged, everything))
    kept(page, "responses")
    assert not wrong


def judged(each: JudgedResponse) -> tuple[str, ...]:
    """A response as `read` reads it."""
    verdict = "Right" if each.right else "Wrong"
    return verdict, each.answer, each.prompt.strip(), each.response.strip()


def read(page: Page) -> list[tuple[str, ...]]:
    """The responses on the page: verdict, answer, prompt and text."""
    return [
        (
            item.locator("strong").inner_text().split()[0],
            item.locator("code").inner_text(),
            *(text.strip() for text in item.locator("pre").all_text_contents()),
        )
        for item in page.locator("ol.responses > li").all()
    ]


def test_no_page_has_a_fault(browser: Browser, trained: Made, other: WholeRun) -> None:
    """By axe's rules, light and dark; nothing wider than a phone; at most 150 kB of script."""
    page, wrong = trained.page(browser)
    page.goto(link_of(trained, CLIENTS[0]))
    settings = trained.view().settings
    wish = CreateRun(name="a-draft", settings=settings, model=trained.view().model)
    drafted = trained.api.create_run(wish)
    run = f"/runs/{trained.view().id}"
    for path in (
        *("/", "/new", "/own", "/sign-in", f"/compare?run={NAME}&run={other.id}"),
        *(run, f"{run}/log", f"{run}/settings?only=set", f"{run}/new", f"{run}/rounds/0/responses"),
        *(
            f"{run}/rounds/{ROUNDS}/steps/1",
            f"/runs/{drafted.id}",
            f"/runs/{drafted.id}/acts/cancel",
        ),
    ):
        page.set_viewport_size({"width": 1200, "height": 900})
        page.goto(f"{trained.api.url}{path}")
        if page.locator("#charts").count():
            expect(page.locator(".u-over").first).to_be_visible()
        assert not faults(page), path
        assert 40_000 < script_bytes(page) <= 150_000, path
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    assert not wrong
