"""The dashboard's pages: who may see them, what they show, what a form may change."""

import hashlib
import re
import time
from collections.abc import Iterator
from html import unescape

import httpx
import pytest

from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import Evaluation, Progress, SetKind, SubmitUpdate, UpdateMetrics
from pubswap_protocol.problems import Problem
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_protocol.tensors.responses import encode_responses
from pubswap_server.web.acts import ACTS
from pubswap_server.web.rendering import POLICY
from pubswap_server.web.sessions import SECONDS, Sessions
from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    Server,
    begun,
    create,
    jsonl,
)
from support.eventually import until

# What is vendored, as published; licences lie beside the files.
SHA256 = {
    "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "hx-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
}
HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(2)><a href="javascript:alert(3)">x</a>'


@pytest.fixture
def browser(server: Server) -> Iterator[httpx.Client]:
    """A client that has signed in, and follows redirections."""
    with server.http(None) as http:
        http.follow_redirects = True
        answer = http.post("/sign-in", data={"token": OPERATOR_TOKEN})
        assert answer.status_code == 200, answer.text
        yield http


def form_token(page: str) -> str:
    """The hidden field that each form has."""
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def test_who_has_not_signed_in_is_led_to_the_sign_in(server: Server) -> None:
    """From every page, with the way back; no page says whether a run exists."""
    with server.http(None) as http:
        for path in ("/", "/runs/x", "/runs/x/log", "/runs/x/parts/log", "/runs/x/stream"):
            answer = http.get(path)
            assert (answer.status_code, answer.headers["Location"]) == (303, f"/sign-in?to={path}")
        http.cookies.set("pubswap_session", "forged")
        assert http.get("/").status_code == 303


def test_a_wrong_token_and_a_members_token_are_refused(server: Server) -> None:
    """With a page that says so, and no cookie."""
    fed = begun(server)
    with server.http(None) as http:
        for token, status in (("wrong", 401), (fed.tokens["a"], 403)):
            answer = http.post("/sign-in", data={"token": token})
            assert answer.status_code == status
            assert 'role="alert"' in answer.text
            assert not http.cookies


def test_a_sign_in_over_plain_http_from_afar_is_refused(server: Server) -> None:
    """Others on the way could read the token."""
    with server.http(None) as http:
        answer = http.post(
            "/sign-in", data={"token": OPERATOR_TOKEN}, headers={"Host": "coordinator.example"}
        )
    assert answer.status_code == 403
    assert "ssh -L" in answer.text


def test_the_way_back_leads_to_no_other_host(server: Server) -> None:
    """Whatever a link to the sign-in says."""
    with server.http(None) as http:
        for to in ("//elsewhere.example", "/\\elsewhere.example", "https://elsewhere.example"):
            answer = http.post("/sign-in", data={"token": OPERATOR_TOKEN, "to": to})
            assert answer.headers["Location"] == "/"


def test_the_session_is_for_this_site_alone_and_for_no_script(server: Server) -> None:
    """HttpOnly, SameSite=strict; Secure where the page came over TLS."""
    with server.http(None) as http:
        cookie = http.post("/sign-in", data={"token": OPERATOR_TOKEN}).headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))


def test_a_session_ends_after_half_a_day_and_with_the_operators_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its cookie is signed with the token's hash, and with its time."""
    cookie, began = Sessions("a").begin(), time.time()
    assert Sessions("a").read(cookie) is not None
    assert Sessions("b").read(cookie) is None
    for later, good in ((SECONDS - 60, True), (SECONDS + 60, False)):
        monkeypatch.setattr(time, "time", lambda later=later: began + later)
        assert (Sessions("a").read(cookie) is not None) == good


def test_a_form_that_another_site_made_changes_nothing(
    server: Server, browser: httpx.Client
) -> None:
    """Without the session's own token, or with another session's."""
    fed = begun(server)
    path = f"/runs/{fed.run.id}/acts/pause"
    with server.http(None) as other:
        other.post("/sign-in", data={"token": OPERATOR_TOKEN})
        others = form_token(other.get("/").text)
    for token in ("", "x", others):
        assert browser.post(path, data={"form_token": token}).status_code == 403
    assert not fed.view().paused


def test_an_act_is_confirmed_with_its_consequence_and_then_done(
    server: Server, browser: httpx.Client
) -> None:
    """Pause, resume, suspend, reinstate, cancel: seen by the JSON interface."""
    fed = begun(server)
    base = f"/runs/{fed.run.id}"
    for act, member, done in (
        ("pause", "", lambda: fed.view().paused),
        ("resume", "", lambda: not fed.view().paused),
        ("suspend", "a", lambda: fed.view().members[0].suspended),
        ("reinstate", "a", lambda: not fed.view().members[0].suspended),
        ("cancel", "", lambda: fed.view().state == "cancelled"),
    ):
        asked = browser.get(f"{base}/acts/{act}?member={member}")
        assert ACTS[act].consequence.replace("{member}", member) in unescape(asked.text)
        assert not done(), act
        fields = {"form_token": form_token(asked.text), "member": member}
        answer = browser.post(f"{base}/acts/{act}", data=fields)
        assert answer.status_code == 200, answer.text
        assert str(answer.url).endswith(base)
        assert done(), act
    assert browser.get(f"{base}/acts/nothing").status_code == 404
    nobody = browser.post(f"{base}/acts/suspend", data={"form_token": fields["form_token"]})
    assert nobody.status_code == 404
    answer = browser.post(f"{base}/acts/pause", data=fields)
    assert answer.status_code == 409 and 'role="alert"' in answer.text


def test_an_invite_is_shown_once_with_the_command_that_takes_it(
    server: Server, browser: httpx.Client
) -> None:
    """And the code works; a name that is none is refused in words."""
    fed = create(server)
    page = browser.get(f"/runs/{fed.run.id}").text
    fields = {"form_token": form_token(page), "member": "bank-1", "role": "client"}
    shown = unescape(browser.post(f"/runs/{fed.run.id}/invites", data=fields).text)
    command = re.search(r"pubswap client enroll --coordinator (\S+) --invite (\S+)</pre>", shown)
    assert command is not None and command[1] == server.url
    assert server.client(None).enroll(command[2]).name == "bank-1"
    refused = browser.post(f"/runs/{fed.run.id}/invites", data=fields | {"member": "Bank 1"})
    assert refused.status_code == 422


def test_a_run_says_whom_it_waits_for(server: Server, browser: httpx.Client) -> None:
    """By name, and of the members what they have last reported."""
    fed = begun(server)
    fed.members["a"].heartbeat(fed.run.id, Progress(round=1, step=1, steps=2, reward=0.625))
    fed.submit("b", 1, fed.adapter(1))
    page = browser.get(f"/runs/{fed.run.id}").text
    assert "1 of 2 organisations have handed in" in page
    assert re.search(r"Waits for <strong>a</strong>", page)
    assert "1 of 2" in page and "0.625" in page
    assert "waits" not in browser.get("/runs/nothing").text.lower()


def test_a_rounds_means_are_drawn(server: Server, browser: httpx.Client) -> None:
    """pass@1 as the evaluator reported it, the others as the round's updates did."""
    fed = begun(server)
    # The model's KL is reported by one of them alone.
    for name, reward, kl in (("a", 0.25, 0.125), ("b", 0.5, None)):
        file = encode_adapter(fed.run.model.layout, fed.adapter(1))
        fed.members[name].put_blob(fed.run.id, file)
        metrics = UpdateMetrics(examples=10, steps=2, reward=reward, kl=kl)
        update = SubmitUpdate(adapter=digest_of(file), metrics=metrics)
        fed.members[name].submit_update(fed.run.id, 1, update)
    means = fed.wait_for(1).rounds[1].means
    assert means is not None
    assert (means.reward, means.kl, means.loss) == (0.375, 0.125, None)
    for round_, score in ((0, 0.0), (1, 0.75)):
        fed.members["judge"].submit_evaluation(
            fed.run.id,
            round_,
            Evaluation(pass_at_1=score, by_topic={"sums": score}, problems=5, seconds=1.0),
        )
    page = browser.get(f"/runs/{fed.run.id}").text
    assert "Reward: 0.375 in round 1" in page
    assert "pass@1: 0.75 in round 1, from 0" in page
    assert "<td>0</td><td>0.75</td>" in page
    assert "from 0 to 0.75" in browser.get("/").text


def test_what_prompts_and_models_say_is_inert(server: Server, browser: httpx.Client) -> None:
    """Markup is shown as text; right and wrong are marked, and what was donated."""
    fed = create(server, method="pubswap", swap={"period": 1})
    hostile = [Problem(id=f"p{n}", prompt=f"{HOSTILE} {n}", answer="7") for n in range(12)]
    fed.operator.put_set(fed.run.id, SetKind.PUBLIC, jsonl(hostile))
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    for name in "ab":
        fed.enroll(name)
    fed.start()
    size = fed.run.settings.grpo.responses_per_prompt
    for name, right in (("a", size), ("b", 0)):
        prompts = fed.members[name].swap_prompts(fed.run.id, 1, 1).prompts
        group = [fed.say("7" if k < right else "<b>0</b>") for k in range(size)]
        file = encode_responses([entry.index for entry in prompts], [group for _ in prompts])
        fed.members[name].submit_responses(fed.run.id, 1, 1, file)
    path = f"/runs/{fed.run.id}/rounds/1/steps/1"
    until(lambda: browser.get(path).status_code == 200)
    page = browser.get(path).text
    assert HOSTILE in unescape(page)
    assert "&lt;b&gt;0&lt;/b&gt;" in page
    for markup in ("<script>alert", "<img", "<b>", 'href="javascript'):
        assert markup not in page
    assert page.count("<strong>Right</strong>") == page.count("<strong>Wrong</strong>") == size
    assert "donated to 1 organisation" in page
    assert "of its peers" in page
    assert browser.get(f"{path}?prompt=999").status_code == 404
    assert browser.get(f"/runs/{fed.run.id}/rounds/1/steps/2").status_code in (404, 409)


def test_pages_allow_nothing_from_elsewhere(server: Server, browser: httpx.Client) -> None:
    """Their policy is the strict one, and nothing in them would break it."""
    fed = begun(server)
    base = f"/runs/{fed.run.id}"
    pages = ["/", base, f"{base}/log", f"{base}/settings", f"{base}/acts/pause", "/sign-in"]
    for path in [*pages, "/runs/nothing"]:
        answer = browser.get(path)
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert not re.search(
            r"<[^>]+\s(on\w+|style)=|<style|<script(?! src=\"/static/)", answer.text
        )
        assert not re.search(r"(src|href|action)=\"(?!/|\?|#|data:,)", answer.text)


def test_the_stream_names_parts_that_exist(server: Server, browser: httpx.Client) -> None:
    """All at first, then those that changed; a part is fetched by its name."""
    fed = begun(server)
    base = f"/runs/{fed.run.id}"
    with browser.stream("GET", f"{base}/stream") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        names = [line.removeprefix("event: ") for line in _first(answer, 15) if "event" in line]
    assert len(names) == 5
    for name in names:
        assert browser.get(f"{base}/parts/{name}").status_code == 200
    assert browser.get(f"{base}/parts/nothing").status_code == 404


def _first(answer: httpx.Response, count: int) -> list[str]:
    lines = []
    for line in answer.iter_lines():
        lines.append(line)
        if len(lines) == count:
            break
    return lines


def test_an_adapter_is_downloaded_as_a_file(server: Server, browser: httpx.Client) -> None:
    """The initial one, whose name says so."""
    fed = begun(server)
    answer = browser.get(f"/runs/{fed.run.id}/adapters/0")
    assert answer.headers["Content-Disposition"].endswith('"adapter-round-0.safetensors"')
    assert len(answer.content) == fed.run.model.layout.file_bytes


def test_vendored_scripts_are_what_was_published(browser: httpx.Client) -> None:
    """By SHA-256, and under 100 kB in all."""
    scripts = {name: browser.get(f"/static/{name}").content for name in SHA256}
    assert {name: hashlib.sha256(data).hexdigest() for name, data in scripts.items()} == SHA256
    assert sum(map(len, scripts.values())) < 100_000
    assert browser.get("/static/htmx.LICENSE").status_code == 404
