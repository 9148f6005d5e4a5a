"""Signing in to the dashboard: who sees its pages, who may act, and what pages may load."""

import re
import sqlite3
import time
from contextlib import closing
from datetime import timedelta
from html import unescape
from pathlib import Path

import httpx
import pytest

from pubswap_protocol import paths
from pubswap_server.clock import now
from pubswap_server.rate_limits import Rate
from pubswap_server.web import access
from pubswap_server.web.access import FORGET_SECONDS, SECONDS, new_cookie, session_of
from pubswap_server.web.actions import ACTIONS
from pubswap_server.web.rendering import POLICY, SignedOut
from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    Server,
    begun,
    serving,
    settings_for,
)
from support.coordinator.dashboard import form_token
from support.coordinator.hostile_exchange import HOSTILE, hostile_exchange
from support.eventually import until


def test_who_has_not_signed_in_is_led_to_the_sign_in(server: Server) -> None:
    """From every page, with the path to return to; no page reveals whether a run exists."""
    with server.http(None) as http:
        for path in ("/", "/runs/x", "/runs/x/log", "/runs/x/parts/log", "/runs/x/stream"):
            answer = http.get(path)
            assert (answer.status_code, answer.headers["Location"]) == (303, f"/sign-in?to={path}")
        http.cookies.set("pubswap_session", "forged")
        assert http.get("/").status_code == 303


def test_a_page_whose_session_ends_is_loaded_again_as_a_whole(server: Server) -> None:
    """A part cannot redirect: the sign-in would replace the part, and lead back to it alone."""
    with server.http(None) as http:
        for path in ("/runs/x/parts/members", "/runs/x/stream"):
            answer = http.get(path, headers={"HX-Request": "true"})
            assert (answer.status_code, answer.headers["HX-Refresh"]) == (401, "true")
            assert not answer.content


def test_a_wrong_token_and_a_members_token_are_refused(server: Server) -> None:
    """With an error page and no cookie."""
    fed = begun(server)
    with server.http(None) as http:
        for token, status in (("wrong", 401), (fed.tokens["a"], 403)):
            answer = http.post("/sign-in", data={"token": token})
            assert answer.status_code == status
            assert 'role="alert"' in answer.text
            assert not http.cookies


def test_a_sign_in_over_plain_http_from_afar_is_refused(server: Server) -> None:
    """Anyone on the path could read the token."""
    with server.http(None) as http:
        answer = http.post(
            "/sign-in", data={"token": OPERATOR_TOKEN}, headers={"Host": "coordinator.example"}
        )
    assert answer.status_code == 403
    assert "ssh -L" in answer.text


def test_the_way_back_leads_to_no_other_host(server: Server) -> None:
    """Whatever the sign-in link's `to` says."""
    with server.http(None) as http:
        for to in ("//elsewhere.example", "/\\elsewhere.example", "https://elsewhere.example"):
            answer = http.post("/sign-in", data={"token": OPERATOR_TOKEN, "to": to})
            assert answer.headers["Location"] == "/"


def test_the_session_is_for_this_site_alone_and_for_no_script(server: Server) -> None:
    """The cookie is HttpOnly and SameSite=strict; behind a TLS proxy it is Secure, too."""
    form = {"token": OPERATOR_TOKEN}
    with server.http(None) as http:
        cookie = http.post("/sign-in", data=form).headers["Set-Cookie"]
        over_tls = http.post("/sign-in", data=form, headers={"X-Forwarded-Proto": "https"})
    parts = set(cookie.split("; "))
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= parts
    assert set(over_tls.headers["Set-Cookie"].split("; ")) - parts >= {"Secure"}
    assert "Secure" not in parts


def test_a_session_ends_after_half_a_day_and_with_the_operators_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cookie is signed with the token's hash, and its age is limited."""
    cookie, began = new_cookie("a"), time.time()
    assert session_of("a", cookie).form_token
    with pytest.raises(SignedOut):
        session_of("b", cookie)
    monkeypatch.setattr(time, "time", lambda: began + SECONDS - 60)
    assert session_of("a", cookie).form_token
    monkeypatch.setattr(time, "time", lambda: began + SECONDS + 60)
    with pytest.raises(SignedOut):
        session_of("a", cookie)


def test_a_session_that_is_signed_out_ends_wherever_its_cookie_was_copied_to(
    tmp_path: Path,
) -> None:
    """Also on another replica and after a restart; other sessions of the same token go on."""
    shared = settings_for(tmp_path).model_copy(update={"workers": 2})
    form = {"token": OPERATOR_TOKEN}
    with serving(shared) as server, serving(shared) as replica:
        http, other, copied = server.http(None), server.http(None), replica.http(None)
        for browser in (http, other):
            browser.post("/sign-in", data=form)
        copied.cookies = httpx.Cookies(http.cookies)
        assert copied.get("/").status_code == 200
        answer = http.post("/sign-out", data={"form_token": form_token(http.get("/").text)})
        assert (answer.status_code, answer.headers["Location"]) == (303, "/sign-in")
        assert not http.cookies
        for path in ("/", "/runs/x/parts/log", "/runs/x/stream"):
            assert copied.get(path).status_code == 303
        assert other.get("/").status_code == 200
        for browser in (http, other, copied):
            browser.close()
    with serving(shared) as server, server.http(None) as http:
        http.cookies = copied.cookies
        assert http.get("/").status_code == 303


def test_sessions_that_were_signed_out_are_forgotten_once_they_have_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cookie is then refused for its age."""

    def kept() -> int:
        with closing(sqlite3.connect(tmp_path / "pubswap.sqlite")) as database:
            return int(database.execute("SELECT COUNT(*) FROM signed_out").fetchone()[0])

    with serving(settings_for(tmp_path)) as server, server.http(None) as http:
        for expected in (1, 2, 1):
            if expected < kept():
                later = now() + timedelta(seconds=FORGET_SECONDS + 1)
                monkeypatch.setattr(access, "now", lambda later=later: later)
            http.post("/sign-in", data={"token": OPERATOR_TOKEN})
            http.post("/sign-out", data={"form_token": form_token(http.get("/").text)})
            assert kept() == expected


def test_a_form_that_another_site_made_changes_nothing(
    server: Server, browser: httpx.Client
) -> None:
    """Without the session's form token, or with another session's."""
    fed = begun(server)
    path = f"/runs/{fed.run.id}/acts/pause"
    with server.http(None) as other:
        other.post("/sign-in", data={"token": OPERATOR_TOKEN})
        others = form_token(other.get("/").text)
    for token in ("", "x", others):
        assert browser.post(path, data={"form_token": token}).status_code == 403
    assert not fed.view().paused


def test_a_viewer_sees_everything_and_changes_nothing(server: Server) -> None:
    """It gets no actions, no invites and no adapters; once removed, it is signed out."""
    fed = begun(server)
    name = f"board-{fed.run.id}"
    base, token = f"/runs/{fed.run.id}", fed.operator.add_viewer(name).token
    with server.http(None) as http:
        http.follow_redirects = True
        assert http.post("/sign-in", data={"token": token}).status_code == 200
        page = http.get(base).text
        assert fed.run.name in page
        assert not re.search(r"/acts/|/invites|/adapters/", page)
        fields = {"form_token": form_token(page), "member": "a"}
        for act in ACTIONS:
            assert http.get(f"{base}/acts/{act}").status_code == 403
            assert http.post(f"{base}/acts/{act}", data=fields).status_code == 403
        assert http.post(f"{base}/invites", data=fields).status_code == 403
        assert http.get(f"{base}/adapters/0").status_code == 403
        for part in ("log", "settings", "parts/members"):
            assert http.get(f"{base}/{part}").status_code == 200
    with server.http(token) as bearer:
        assert bearer.get(paths.RUNS).status_code == 401  # valid for the dashboard only
        bearer.cookies = http.cookies
        assert bearer.get(base).status_code == 200
        assert name in [viewer.name for viewer in fed.operator.viewers()]
        fed.operator.remove_viewer(name)
        assert bearer.get(base).status_code == 303
    assert not fed.view().paused
    assert name not in [viewer.name for viewer in fed.operator.viewers()]


def test_who_guesses_tokens_has_to_wait(tmp_path: Path) -> None:
    """As in the JSON API: failures count by address, but the right token still signs in."""
    with serving(settings_for(tmp_path)) as server, server.closing, server.http(None) as http:
        server.app.state.services.limits.failures.rate = Rate(0.001, 6)
        answers = [http.post("/sign-in", data={"token": f"guess {n}"}) for n in range(6)]
        assert {answer.status_code for answer in answers} == {401}
        refused = http.post("/sign-in", data={"token": "guess"})
        assert refused.status_code == 429
        assert 'role="alert"' in refused.text
        assert not http.cookies
        assert http.post("/sign-in", data={"token": OPERATOR_TOKEN}).status_code == 303


def test_what_prompts_and_models_say_is_inert(server: Server, browser: httpx.Client) -> None:
    """Markup is shown as text. Right, wrong and donated responses are marked."""
    fed, path = hostile_exchange(server)
    size = fed.run.settings.grpo.responses_per_prompt
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
    unanswered = browser.get(f"/runs/{fed.run.id}/rounds/1/steps/2")
    assert (unanswered.status_code, "no closed exchange" in unanswered.text) == (409, True)


def test_pages_allow_nothing_from_elsewhere(server: Server, browser: httpx.Client) -> None:
    """Their content security policy is strict, and nothing in them violates it."""
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
