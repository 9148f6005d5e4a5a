"""What the metrics say about runs, and that they identify no member."""

import threading
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.messages import Away, Progress
from pubswap_server.runs import traffic
from support.coordinator.coordinator import Federation, Server, begun, serving, settings_for
from support.coordinator.counted import counted
from support.eventually import until


def scraped(server: Server) -> dict[tuple[str, str], float]:
    """Scraped samples by name and labels."""
    with server.http(None) as http:
        text = http.get(paths.METRICS).text
    return {
        (sample.name, ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_rounds_exchanges_and_bytes_are_measured(tmp_path: Path) -> None:
    """A round with an exchange counts once in each histogram; bytes are counted by kind."""
    with serving(settings_for(tmp_path)) as server, server.closing:
        fed = begun(server, rounds=1)
        sent = {name: fed.responses(name, 1, 1, [1, 2]) for name in "ab"}
        for name, body in sent.items():
            fed.members[name].submit_responses(fed.run.id, 1, 1, body)
        fed.members["a"].exchanged(fed.run.id, 1, 1)
        for name in "ab":
            fed.submit(name, 1, fed.adapter(1))
        fed.wait_for(1)
        fed.operator.revoke(fed.run.id, "b")
        fed.operator.decide(fed.run.id, "judge", paths.RUN_MEMBER_SUSPEND)
        fed.members["a"].away(fed.run.id, Away(code="denied", detail="Denied."))
        seen = scraped(server)
    assert seen["pubswap_round_seconds_count", ""] == 1
    assert 0 < seen["pubswap_round_seconds_sum", ""] < 60
    assert seen["pubswap_exchange_seconds_count", ""] == 1
    assert seen["pubswap_aggregation_seconds_count", ""] == 1
    assert seen["pubswap_runs", "state=finished"] == 1
    assert seen["pubswap_runs_stalled", ""] == 0
    standings = ("active", "away", "suspended", "revoked")
    assert [seen["pubswap_members", f"standing={name}"] for name in standings] == [0, 1, 1, 1]
    responses = sum(len(body) for body in sent.values())
    assert seen["pubswap_transferred_bytes", "kind=responses_up"] == responses
    route = paths.PUBLIC_STEP_RESPONSES
    assert seen["pubswap_http_body_bytes_total", f"direction=in,route={route}"] == responses
    assert seen["pubswap_http_body_bytes_total", f"direction=out,route={route}"] > 0
    assert not any(fed.run.id in labels or "judge" in labels for _, labels in seen)


def test_no_scrape_reads_the_rounds_before(server: Server) -> None:
    """Byte totals have their own rows, which are found by key."""
    engine = server.app.state.services.database.engine
    with Session(engine) as session, counted(engine) as asked:
        traffic.by_kind(session)
        explain = f"EXPLAIN QUERY PLAN {asked.statements[-1]}"
        plan = session.connection().exec_driver_sql(explain, (traffic.TOTAL,)).all()
    assert not [detail for *_, detail in plan if detail.startswith("SCAN traffic")]


def test_the_queue_is_measured(server: Server) -> None:
    """Waiting long polls and stalled runs are counted while they last."""
    fed = begun(server, method="fedavg")
    fed.submit("a", 1, fed.adapter(1))
    stalled = scraped(server)["pubswap_runs_stalled", ""]
    before = scraped(server)["pubswap_long_polls", ""]
    poll = threading.Thread(target=fed.members["a"].task, args=(fed.run.id, 30))
    poll.start()
    wait_for(server, "pubswap_long_polls", before + 1)
    fed.submit("b", 1, fed.adapter(1))  # ends the wait
    poll.join()
    wait_for(server, "pubswap_long_polls", before)
    fed = lonely(server)
    wait_for(server, "pubswap_runs_stalled", stalled + 1)
    fed.operator.move_run(fed.run.id, paths.RUN_CANCEL)
    wait_for(server, "pubswap_runs_stalled", stalled)
    assert ("pubswap_conductor_backlog", "") in scraped(server)


def lonely(server: Server) -> Federation:
    """A run whose clients are all gone."""
    fed = begun(server, method="fedavg")
    for name in "ab":
        fed.operator.revoke(fed.run.id, name)
    return fed


def wait_for(server: Server, name: str, value: float) -> None:
    """Wait until a gauge has this value."""
    until(lambda: scraped(server)[name, ""] == value)


def test_numbers_that_are_none_are_not_told(server: Server) -> None:
    """A diverged client's heartbeat is accepted; its NaN is not valid JSON and is sent as null."""
    fed = begun(server)
    fed.members["a"].heartbeat(fed.run.id, Progress(round=1, step=1, steps=2, loss=float("nan")))
    (member,) = [m for m in fed.operator.members(fed.run.id).members if m.name == "a"]
    assert member.progress is not None
    assert (member.progress.step, member.progress.loss) == (1, None)


def test_an_event_loop_that_is_held_up_is_measured(server: Server) -> None:
    """A call that blocks for 0.3 s makes the loop's timer that much late."""
    seen = scraped(server)["pubswap_event_loop_late_seconds_count", ""]
    server.app.state.loop.call_soon_threadsafe(time.sleep, 0.3)

    def measured() -> bool:
        after = scraped(server)
        late = after["pubswap_event_loop_late_seconds_count", ""]
        longest = after["pubswap_event_loop_longest_seconds", ""]
        blocked = after["pubswap_event_loop_blocked_seconds", ""]
        # A wait for a core before or after the call is in the first figure only.
        return late > seen and longest >= 0.25 and 0.25 <= blocked <= longest

    until(measured)
