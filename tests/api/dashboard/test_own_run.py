"""A member's own page, by a link of its own client."""

from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape

import httpx

from pubswap_protocol import paths
from pubswap_protocol.messages import Progress
from pubswap_server.web.own_run import COOKIE
from support.coordinator.coordinator import Federation, Server, begun
from support.coordinator.dashboard import rows


@contextmanager
def opened(server: Server, fed: Federation, name: str) -> Iterator[httpx.Client]:
    """A browser in which a member's link was opened."""
    with server.http(None) as browser:
        browser.follow_redirects = True
        answer = browser.get(fed.members[name].link(fed.run.id).path)
        assert answer.status_code == 200, answer.text
        yield browser


def test_a_member_sees_the_means_and_its_own_figures(server: Server) -> None:
    """Not another member's name or steps; the adapter, too, as it may have it."""
    fed = begun(server, rounds=2, local_steps=4, method="fedavg")
    for name, reward in (("a", 0.25), ("b", 0.75)):
        progress = Progress(round=1, step=2, steps=4, reward=reward, kl=reward)
        fed.members[name].heartbeat(fed.run.id, progress)
    for name in "ab":
        fed.submit(name, 1, fed.adapter(1))
    fed.wait_for(1)
    with opened(server, fed, "a") as browser:
        page = unescape(browser.get("/own").text)
        assert fed.run.name in page and "0.250" in page and "0.750" not in page
        own = next(each for each in fed.operator.run(fed.run.id).members if each.name == "a")
        table = {row[0]: row[1:] for row in rows(page)}
        assert own.traffic.adapters_up > 0
        assert table["Adapters"][0].startswith(f"{own.traffic.adapters_up / 1000:.1f}")
        assert table["local_steps"][0] == "4"
        assert "exact: " in table["verifier"][1] and "math" not in table["verifier"][1]
        by_step, by_round = browser.get("/own/points").json()
        assert by_step["names"] == ["a"]
        assert by_step["charts"][0]["series"] == {"a": [0.25]}
        assert by_round["of"] == "round"
        assert browser.get("/own/adapter").content == fed.operator.global_adapter(
            fed.run.id, "final"
        )


def test_a_link_works_once_and_opens_nothing_else(server: Server) -> None:
    """No other page takes its cookie; a revoked member's page is gone; the token never travels."""
    fed = begun(server)
    path = fed.members["a"].link(fed.run.id).path
    with server.http(None) as first, server.http(None) as second:
        assert first.get(path).status_code == 303
        again = second.get(path)
        assert again.status_code == 401 and "pubswap client link" in again.text
        assert second.get("/own").status_code == 401
        for other in ("/", f"/runs/{fed.run.id}", f"/runs/{fed.run.id}/points", "/new"):
            assert first.get(other).headers["location"].startswith("/sign-in")
        cookie = first.cookies[COOKIE]
        assert fed.tokens["a"] not in cookie + path
        for forged in (cookie[:-2] + "xx", path.partition("=")[2], ""):
            assert second.get("/own", headers={"Cookie": f"{COOKIE}={forged}"}).status_code == 401
        assert second.get(f"/own/link?code={cookie}").status_code == 401
        fed.operator.decide(fed.run.id, "a", paths.RUN_MEMBER_SUSPEND)
        assert first.get("/own").status_code == 403
        fed.operator.revoke(fed.run.id, "a")
        assert first.get("/own").status_code == 401
