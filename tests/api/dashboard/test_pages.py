"""What the dashboard's pages show, and how they stay up to date."""

import re
from html import unescape

import httpx
import pytest
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.bounds import NAME_FORM
from pubswap_protocol.messages import (
    Away,
    Evaluation,
    Progress,
)
from pubswap_protocol.settings import RunSettings
from pubswap_server.clock import now
from pubswap_server.database.tables import DoubtRow, RunRow, StepRow, SubmissionRow
from pubswap_server.exchange.exchanges import REFUSED
from pubswap_server.runs.concerns import read_concerns
from pubswap_server.web import pages
from pubswap_server.web.rendering import marked_words
from support.coordinator.coordinator import (
    Server,
    begun,
    create,
)
from support.coordinator.dashboard import rows
from support.coordinator.long_runs import lengthen


def test_a_run_says_whom_it_waits_for(server: Server, browser: httpx.Client) -> None:
    """By name, with the latest progress that members reported."""
    fed = begun(server)
    fed.members["a"].heartbeat(fed.run.id, Progress(round=1, step=1, steps=2, reward=0.625))
    fed.submit("b", 1, fed.adapter(1))
    page = browser.get(f"/runs/{fed.run.id}").text
    assert "1 of 2 organisations have handed in" in page
    assert re.search(r"Waits for <strong>a</strong>", page)
    assert "1 of 2" in page and "0.625" in page
    assert "waits" not in browser.get("/runs/nothing").text.lower()


def test_an_unknown_run_leads_back_to_the_runs(server: Server, browser: httpx.Client) -> None:
    """Its own page would be another error; an unknown page of a run leads back to the run."""
    assert '<a href="/">Back to the runs</a>' in browser.get("/runs/nothing").text
    fed = create(server)
    page = browser.get(f"/runs/{fed.run.id}/adapters/bst").text
    assert (
        f'<a href="/runs/{fed.run.id}">Back to the run</a>, or to <a href="/">all runs</a>' in page
    )


def test_a_command_in_a_message_is_marked_as_code() -> None:
    """Instead of with backticks; everything else stays text."""
    marked = marked_words("See `pubswap run show <RUN>`; <b>then</b> 5` or 6.")
    assert marked == (
        "See <code>pubswap run show &lt;RUN&gt;</code>; &lt;b&gt;then&lt;/b&gt; 5` or 6."
    )


def test_what_is_said_of_a_member_is_apart_from_its_name(
    server: Server, browser: httpx.Client
) -> None:
    """A suspended "a" is not shown or read aloud as "asuspended"; a model is shown by name."""
    fed = begun(server)
    fed.operator.decide(fed.run.id, "a", paths.RUN_MEMBER_SUSPEND)
    page = browser.get(f"/runs/{fed.run.id}").text
    assert re.search(r'<th scope="row">a\s+<small>suspended</small>', page)
    assert "<dd>small</dd>" in page


def test_a_run_says_when_it_will_end_and_at_its_end_what_came_out(
    server: Server, browser: httpx.Client
) -> None:
    """First an estimate from its rounds, then a summary with pass@1 before and after."""
    fed = begun(server, rounds=2, method="fedavg")
    path = f"/runs/{fed.run.id}"
    page = browser.get(path).text
    assert "<dt>Method</dt><dd>fedavg</dd>" in page
    assert "Expected end" not in page  # no round has finished yet
    for round_ in (1, 2):
        for name in "ab":
            fed.submit(name, round_, fed.adapter(round_))
        fed.wait_for(round_)
        page = browser.get(path).text
        assert ("Expected end" in page) == (round_ == 1)
        assert ("Results" in page) == (round_ == 2)
    for round_, score in ((0, 0.25), (2, 0.5)):
        topics = {"say": score, "words": score}
        found = Evaluation(pass_at_1=score, by_topic=topics, problems=5, seconds=1.0)
        fed.members["judge"].submit_evaluation(fed.run.id, round_, found)
    page = unescape(browser.get(path).text)
    assert "2 organisations trained" in page
    assert "0.250 (0.05 to 0.66, n = 5) before, 0.500 (0.17 to 0.83, n = 5) after." in page
    sizes = sum(one.traffic.up for one in fed.view().members) / 2
    assert f"each organisation sent {sizes / 1000:.3g} kB" in page


def test_one_sentence_says_what_an_operator_should_know_first(
    server: Server, browser: httpx.Client
) -> None:
    """Who is suspended, away, doubted, refused or never paid; none at the end.

    The API's activity, which `pubswap run show` prints, ends with the same sentence.
    """
    fed = begun(server, clients=4, local_steps=8)
    path = f"/runs/{fed.run.id}"
    assert 'class="alert"' not in browser.get(path).text
    fed.operator.decide(fed.run.id, "a", paths.RUN_MEMBER_SUSPEND)
    fed.members["b"].away(fed.run.id, Away(code="not_approved", detail="From 8 to 18 alone."))
    with Session(server.app.state.services.database.engine) as session, session.begin():
        where = {"run_id": fed.run.id, "round": 1, "public_step": 1}
        refused = {"digest": REFUSED, "late": True, "received_at": now()}
        session.add(SubmissionRow(**where, member="d", **refused))
        for receiver, doubted in (("b", True), ("c", False)):
            verdict = {"receiver": receiver, "verdicts": 1, "doubted": doubted}
            session.add(DoubtRow(run_id=fed.run.id, donor="d", **verdict))
        for name, rewards in (("b", [0.0] * 7), ("c", [0.0] * 8), ("d", [0.0] * 7 + [0.1])):
            for step, reward in enumerate(rewards, start=1):
                place = {"member": name, "round": 1, "step": step}
                session.add(StepRow(run_id=fed.run.id, **place, at=now(), reward=reward))
    said = re.search(r'<p class="alert">(.*)</p>', browser.get(path).text)
    assert said is not None and said[1] == (
        "a is suspended; b is away (not_approved); d is doubted by 1 of 2; "
        "the responses of d to public step 1 were refused; "
        "no response of c has been paid in its last 8 steps."
    )
    assert f"Note: {said[1]}" in (fed.operator.run(fed.run.id).activity or "")
    fed.operator.move_run(fed.run.id, paths.RUN_CANCEL)
    assert 'class="alert"' not in browser.get(path).text


def test_only_the_last_steps_say_that_a_member_is_not_paid(server: Server) -> None:
    """What it earned long ago does not hide it, and what it did not earn then does not name it."""
    fed = begun(server, clients=3, rounds=9, local_steps=4)
    engine = server.app.state.services.database.engine
    with Session(engine) as session, session.begin():
        for name, by_round in {"a": (1, 0, 0), "b": (0, 1, 0), "c": (0, 0, 1)}.items():
            for round_, reward in zip((1, 8, 9), by_round, strict=True):
                for step in range(1, 5):
                    place = {"member": name, "round": round_, "step": step}
                    row = StepRow(run_id=fed.run.id, **place, at=now(), reward=float(reward))
                    session.add(row)
    with Session(engine) as session:
        run = session.get_one(RunRow, fed.run.id)
        session.expunge(run)
        run.round = 9
        said = "no response of a has been paid in its last 8 steps."
        assert read_concerns(session, run) == said


def test_links_lead_only_to_what_still_exists(server: Server, browser: httpx.Client) -> None:
    """Every link of a run's page answers, also when responses and adapters were freed."""
    fed = begun(server, rounds=9)
    lengthen(server.app.state.services.database.engine, fed.run.id, ["a", "b"], 3)
    page = browser.get(f"/runs/{fed.run.id}").text
    assert "step 1: 6 replaced" in page and "/steps/1" not in page
    assert "/rounds/3/responses" not in page
    fed = begun(server, local_steps=1, method={"period": 1})
    for name in "ab":
        fed.members[name].submit_responses(fed.run.id, 1, 1, fed.responses(name, 1, 1, [1, 1]))
        fed.submit(name, 1, fed.adapter(1))
    fed.wait_for(1)
    page = browser.get(f"/runs/{fed.run.id}").text
    assert f"/runs/{fed.run.id}/rounds/1/steps/1" in page
    links = set(re.findall(rf'href="(/runs/{fed.run.id}[^"]*)"', page))
    assert len(links) > 5
    assert {link: browser.get(link).status_code for link in links} == dict.fromkeys(links, 200)


def test_settings_have_meanings_and_a_filter(server: Server, browser: httpx.Client) -> None:
    """The field's own description; the filter leaves the settings that differ from the default."""
    fed = begun(server, method={"period": 1}, aggregation={"quorum": 2})
    path = f"/runs/{fed.run.id}/settings"
    every, differing = rows(browser.get(path).text), rows(browser.get(f"{path}?only=set").text)
    assert 5 < len(differing) < len(every)
    meant = {row[0]: row[3] for row in every[1:]}
    assert all(meant.values()), meant
    assert meant["rounds"] == RunSettings.model_fields["rounds"].description
    assert {row[0] for row in differing[1:]} >= {"method.period", "rounds", "aggregation.quorum"}
    assert all(row[2] == "set" for row in differing[1:])


def test_a_run_without_anything_to_show_says_what_to_do(
    server: Server, browser: httpx.Client
) -> None:
    """It says whom to invite and what the curves need; an ended run asks for nothing more."""
    fed = create(server)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    page = unescape(browser.get(f"/runs/{fed.run.id}").text)
    assert "Invite each organisation by a name" in page
    assert NAME_FORM in page, "a browser that refuses a name shows only the field's title"
    assert "no data yet: pass@1; Reward;" in page and "the first round's updates" in page
    fed.operator.move_run(fed.run.id, paths.RUN_CANCEL)
    page = unescape(browser.get(f"/runs/{fed.run.id}").text)
    assert "no data: pass@1; Reward;" in page
    assert "yet" not in page and "Invite" not in page


def test_a_round_under_way_shows_each_members_steps(server: Server, browser: httpx.Client) -> None:
    """As bars with public steps as ticks, what each does, and when round and run should end."""
    fed = begun(server, rounds=3, local_steps=6, method={"period": 2})
    part = f"/runs/{fed.run.id}/parts/progress"
    page = browser.get(part).text
    assert page.count("makes its first step") == 2 and "should end" not in page
    assert "Deadline: 1 h after the first update, once 1 of the updates is in." in page
    for name, step in (("a", 2), ("b", 1)):
        fed.members[name].heartbeat(fed.run.id, Progress(round=1, step=step, steps=6, reward=0.5))
    fed.members["a"].submit_responses(fed.run.id, 1, 1, fed.responses("a", 1, 1, [1, 1]))
    page = browser.get(part).text
    assert 'aria-label="a: 2 of 6 steps"' in page and 'aria-label="b: 1 of 6 steps"' in page
    assert "M2 0V1M4 0V1M6 0V1" in page
    assert "waits for b at public step 1" in page
    assert "others wait for it at public step 1" in page
    assert "should end in" in page
    left = fed.operator.run(fed.run.id).left_seconds
    assert left is not None and left > 0, "a sixth of the first round tells of the run's end"
    fed.submit("b", 1, fed.adapter(1))
    page = browser.get(part).text
    assert "has handed in its update" in page and "b: 6 of 6 steps" in page
    assert re.search(r"Deadline: \d{4}-.* UTC \(in .*\), once 1 of", page)
    fed.operator.move_run(fed.run.id, paths.RUN_CANCEL)
    assert not browser.get(part).text.strip()


def test_why_a_member_is_away_is_shown_to_read(server: Server, browser: httpx.Client) -> None:
    """As text, not only as a tooltip."""
    fed = begun(server)
    fed.members["a"].away(fed.run.id, Away(code="not_approved", detail="From 8 to 18 alone."))
    page = browser.get(f"/runs/{fed.run.id}").text
    assert "away: not_approved. From 8 to 18 alone.</small>" in page


def test_what_members_hold_in_a_pause_is_shown(server: Server, browser: httpx.Client) -> None:
    """In the headline and in the table of members; the button says what a pause is."""
    fed = begun(server)
    assert "they send nothing until" in browser.get(f"/runs/{fed.run.id}/acts/pause").text
    fed.operator.move_run(fed.run.id, paths.RUN_PAUSE)
    progress = Progress(round=1, step=1, steps=2, holds=1)
    fed.members["a"].heartbeat(fed.run.id, progress)
    page = browser.get(f"/runs/{fed.run.id}").text
    assert "a holds its responses to public step 1." in page
    assert "<small>holds its responses to public step 1</small>" in page


def test_the_stream_names_parts_that_exist(server: Server, browser: httpx.Client) -> None:
    """All parts at first, then those that changed; each can be fetched by its name."""
    fed = begun(server)
    base = f"/runs/{fed.run.id}"
    with browser.stream("GET", f"{base}/stream") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        names = [line.removeprefix("event: ") for line in _first(answer, 18) if "event" in line]
    assert len(names) == 6
    for name in names:
        assert browser.get(f"{base}/parts/{name}").status_code == 200
    assert browser.get(f"{base}/parts/nothing").status_code == 404


def test_the_stream_of_a_run_that_is_deleted_ends(
    server: Server, browser: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a complete response, not as a failed request."""
    monkeypatch.setattr(pages, "LOOK_SECONDS", 0.2)
    fed = begun(server)
    with browser.stream("GET", f"/runs/{fed.run.id}/stream") as answer:
        lines = answer.iter_lines()
        next(lines)
        fed.operator.move_run(fed.run.id, paths.RUN_CANCEL)
        fed.operator.delete_run(fed.run.id)
        assert {line.partition(":")[0] for line in lines} == {"event", "data", ""}


def _first(answer: httpx.Response, count: int) -> list[str]:
    lines = []
    for line in answer.iter_lines():
        lines.append(line)
        if len(lines) == count:
            break
    return lines
