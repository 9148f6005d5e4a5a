"""The dashboard: who may see its pages, what they show, and what its forms may change."""

import hashlib
import json
import re
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import httpx
import pytest

from pubswap_client.recipes.recipe import read_recipe
from pubswap_protocol import paths
from pubswap_protocol.bounds import NAME_FORM
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import (
    Away,
    CreateRun,
    Evaluation,
    Progress,
    SetKind,
    SubmitUpdate,
    UpdateMetrics,
)
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_server.rate_limits import Rate
from pubswap_server.web import pages
from pubswap_server.web.access import SECONDS, new_cookie, session_of
from pubswap_server.web.acts import ACTS
from pubswap_server.web.rendering import POLICY, SignedOut, number_text
from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    Server,
    begun,
    create,
    serving,
    settings_for,
)
from support.coordinator.hostile_exchange import HOSTILE, hostile_exchange
from support.coordinator.long_runs import crowd, lengthen
from support.eventually import until

# The vendored files as published; their licences are next to them.
SHA256 = {
    "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "hx-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
}


@pytest.fixture
def browser(server: Server) -> Iterator[httpx.Client]:
    """A client that has signed in and follows redirects."""
    with server.http(None) as http:
        http.follow_redirects = True
        answer = http.post("/sign-in", data={"token": OPERATOR_TOKEN})
        assert answer.status_code == 200, answer.text
        yield http


def form_token(page: str) -> str:
    """The anti-forgery token in a page's forms."""
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def rows(page: str) -> list[list[str]]:
    """The cell texts of a page's tables, row by row."""
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in re.split(r"</t[hd]>", row)[:-1]]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.DOTALL)
    ]


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of a page's forms."""
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page)
    return {name: unescape(value) for name, value in found}


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
    """The cookie is HttpOnly and SameSite=strict."""
    with server.http(None) as http:
        cookie = http.post("/sign-in", data={"token": OPERATOR_TOKEN}).headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))


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


def test_an_act_is_confirmed_with_its_consequence_and_then_done(
    server: Server, browser: httpx.Client
) -> None:
    """Pause, resume, suspend, reinstate and cancel take effect in the JSON API."""
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
    nul = browser.post(f"{base}/acts/suspend", data=fields | {"member": "a\0"})
    assert nul.status_code == 422 and "NUL" in nul.text
    answer = browser.post(f"{base}/acts/pause", data=fields)
    assert answer.status_code == 409 and 'role="alert"' in answer.text


def test_an_update_is_excluded_from_the_round_that_was_shown_or_from_none(
    server: Server, browser: httpx.Client
) -> None:
    """If the round ends while the operator decides, the next round's update is not excluded."""
    fed = begun(server)
    path = f"/runs/{fed.run.id}/acts/exclude"

    def shown() -> dict[str, str]:
        asked = browser.get(f"{path}?member=a").text
        fields = re.findall(r'name="(\w+)" value="([^"]*)"', asked.partition("<main")[2])
        return dict(fields)

    before = shown()
    for name in "ab":
        fed.submit(name, 1, fed.adapter(1))
    fed.wait_for(1)
    fed.submit("a", 2, fed.adapter(2))
    assert browser.post(path, data=before).status_code == 409
    assert browser.post(path, data={**before, "round": "x"}).status_code == 409
    assert fed.view().rounds[2].updates == 1
    assert browser.post(path, data=shown()).status_code == 200
    assert fed.view().rounds[2].updates == 0


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
        for act in ACTS:
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
    """As in the JSON API: failures count by address, and then even the right token is refused."""
    with serving(settings_for(tmp_path)) as server, server.closing, server.http(None) as http:
        server.app.state.services.limits.failures.rate = Rate(0.001, 6)
        answers = [http.post("/sign-in", data={"token": f"guess {n}"}) for n in range(6)]
        assert {answer.status_code for answer in answers} == {401}
        refused = http.post("/sign-in", data={"token": OPERATOR_TOKEN})
        assert refused.status_code == 429
        assert 'role="alert"' in refused.text
        assert not http.cookies


def shown_file(page: str) -> str:
    """The run file in the page's text area."""
    found = re.search(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)
    assert found is not None
    return unescape(found[1])


def test_a_run_like_another_is_checked_then_created_and_opened(
    server: Server, browser: httpx.Client
) -> None:
    """It is created only on the second click, with the first run's model and problem sets."""
    fed = begun(server, rounds=2, swap={"period": 1})
    path, before = f"/runs/{fed.run.id}/new", len(fed.operator.runs())
    asked = browser.get(path).text
    text = shown_file(asked).replace("rounds = 2", "rounds = 7") + '[data]\nfolder = "x"\n'
    fields = {"form_token": form_token(asked), "text": text}
    checked = unescape(browser.post(path, data=fields).text)
    assert ["rounds", "2", "7"] in rows(checked)
    assert "Ignored in the file: data" in checked
    assert len(fed.operator.runs()) == before
    done = browser.post(path, data=fields | {"sure": "1"})
    created = fed.operator.run(f"{fed.run.name}-2")
    assert str(done.url).endswith(created.id)
    assert (created.state, created.settings.rounds) == ("open", 7)
    assert created.model == fed.run.model
    for kind in SetKind:
        made = fed.operator.problem_set(created.id, kind)
        assert made == fed.operator.problem_set(fed.run.id, kind)
    for sure in ({}, {"sure": "1"}):
        again = browser.post(path, data=fields | sure)
        assert again.status_code == 409 and "choose another name" in unescape(again.text)


def test_a_run_is_created_once_however_often_its_button_is_clicked(
    server: Server, browser: httpx.Client
) -> None:
    """Every click on the same page leads to the same run."""
    fed = begun(server, swap={"period": 1})
    path = f"/runs/{fed.run.id}/new"
    asked = browser.get(path).text
    checked = browser.post(
        path, data={"form_token": form_token(asked), "text": shown_file(asked)}
    ).text
    fields = hidden(checked.partition("<h2>")[2])
    before = len(fed.operator.runs())
    first, second = (browser.post(path, data=fields) for _ in range(2))
    assert first.url == second.url != browser.base_url.join(path)
    assert len(fed.operator.runs()) == before + 1


def test_what_was_typed_is_kept_through_another_sign_in(
    server: Server, browser: httpx.Client
) -> None:
    """A form from an ended session is refused, and shown again with its text."""
    fed = begun(server, swap={"period": 1})
    path = f"/runs/{fed.run.id}/new"
    old = form_token(browser.get(path).text)
    browser.post("/sign-in", data={"token": OPERATOR_TOKEN})
    text = 'name = "typed"'
    with server.http(None) as nobody:
        ended = nobody.post(path, data={"form_token": old, "text": text, "sure": "1"})
    assert ended.status_code == 401 and text in unescape(ended.text)
    assert f'href="/sign-in?to={path}"' in ended.text and fed.run.name not in ended.text
    answer = browser.post(path, data={"form_token": old, "text": text, "sure": "1"})
    assert answer.status_code == 403
    assert text in unescape(answer.text) and "check it again" in answer.text
    again = {"form_token": form_token(answer.text), "text": text}
    assert "check it again" not in browser.post(path, data=again).text


def test_a_sign_in_leads_back_to_where_its_form_was(server: Server) -> None:
    """A GET returns with its query; a POST returns to the form's page or to the run's."""
    fed = begun(server)
    base = f"/runs/{fed.run.id}"
    with server.http(None) as http:
        for method, path, way in (
            ("GET", f"{base}/acts/suspend?member=a", f"{base}/acts/suspend?member=a"),
            ("POST", f"{base}/acts/suspend", base),
            ("POST", f"{base}/invites", base),
            ("POST", f"{base}/new", f"{base}/new"),
        ):
            asked = http.request(method, path)
            assert asked.status_code == 303
            shown = http.get(asked.headers["Location"]).text
            answer = http.post("/sign-in", data={"token": OPERATOR_TOKEN} | hidden(shown))
            assert answer.headers["Location"] == way
            assert http.get(way).status_code == 200
            http.cookies.clear()


def test_a_refusal_leads_back_to_the_run(server: Server, browser: httpx.Client) -> None:
    """And not only to the list of runs."""
    base = f"/runs/{begun(server).run.id}"
    fields = {"form_token": form_token(browser.get(base).text), "member": "a", "round": "7"}
    refused = browser.post(f"{base}/acts/exclude", data=fields)
    assert refused.status_code == 409
    assert f'<a href="{base}">Back to the run</a>' in refused.text


def test_settings_that_messages_leave_out_are_shown(server: Server, browser: httpx.Client) -> None:
    """With their defaults, both in the list of settings and in a new run's changes."""
    fed = begun(server, swap={"period": 1})
    base = f"/runs/{fed.run.id}"
    page = browser.get(f"{base}/settings").text
    assert ["swap.sampling_check", '"report"', "default"] in rows(page)
    asked = browser.get(f"{base}/new").text
    text = shown_file(asked) + "grpo.resample = 2\n"
    checked = browser.post(f"{base}/new", data={"form_token": form_token(asked), "text": text}).text
    assert ["grpo.resample", "0", "2"] in rows(checked)


def test_settings_are_shown_as_a_run_file_has_them(server: Server, browser: httpx.Client) -> None:
    """Strings in quotes, true and false, lists in brackets; a missing value as "not set"."""
    fed = begun(server, swap={"replay": True, "period": 1})
    page = browser.get(f"/runs/{fed.run.id}/settings").text
    shown = {key: value for key, value, _ in rows(page)[1:]}
    for key, value in (
        ("swap.replay", "true"),
        ("swap.max_donated_tokens", "not set"),
        ("lora.target_modules", '["q_proj"]'),
        ("method", '"pubswap"'),
    ):
        assert shown[key] == value
    asked = browser.get(f"/runs/{fed.run.id}/new").text
    text = shown_file(asked) + "swap.max_donated_tokens = 9\n"
    fields = {"form_token": form_token(asked), "text": text}
    checked = browser.post(f"/runs/{fed.run.id}/new", data=fields).text
    assert ["swap.max_donated_tokens", "not set", "9"] in rows(checked)


def test_the_form_refuses_what_the_command_line_refuses(
    server: Server, browser: httpx.Client
) -> None:
    """It shows all faults at once, in the same words, and keeps the text."""
    fed = begun(server, swap={"period": 1})
    path = f"/runs/{fed.run.id}/new"
    asked = browser.get(path).text
    for changes in (
        {"swap.max_donor_share": 0.5, "aggregation.weights": "examples"},
        {"swap.sampling_check": "exclude"},
        {"swap.period": 3, "swap.quorum": 9, "aggregation.quorum": 9},
        {"verifier": "guess"},
        {"swap.perod": 2, "grpo.temperature": -1},
    ):
        values = "".join(f"{key} = {json.dumps(value)}\n" for key, value in changes.items())
        text = f'name = "b"\nclients = 2\nlocal_steps = 3\n{values}'
        fields = {"form_token": form_token(asked), "text": text, "sure": "1"}
        answer = browser.post(path, data=fields)
        assert answer.status_code == 422
        page = unescape(answer.text)
        faults = read_recipe("tour", changes).faults  # with two clients, and three steps a round
        assert faults and all(fault in page for fault in faults), (faults, page)
        assert text in page
    text = shown_file(asked).replace("prompts_per_step = 2", "prompts_per_step = 40")
    small = browser.post(path, data={"form_token": form_token(asked), "text": text}).text
    assert "a public step takes 40" in small and 'name="sure"' not in small


def test_a_run_of_the_longest_name_has_a_file_with_a_name(
    server: Server, browser: httpx.Client
) -> None:
    """It is cut at its end: cut at its start, it could begin with a hyphen."""
    fed = create(server, swap={"period": 1})
    wish = CreateRun(name="ab-" + "c" * 60, settings=fed.run.settings, model=fed.run.model)
    path = f"/runs/{fed.operator.create_run(wish).id}/new"
    asked = browser.get(path).text
    fields = {"form_token": form_token(asked), "text": shown_file(asked)}
    assert browser.post(path, data=fields).status_code == 200


def test_the_file_that_a_run_shows_is_the_run(server: Server, browser: httpx.Client) -> None:
    """Submitting it unchanged changes no setting."""
    options = {"tone": "\N{GRINNING FACE}"}
    fed = begun(server, rounds=3, swap={"period": 1}, chat_template_options=options)
    path = f"/runs/{fed.run.id}/new"
    asked = browser.get(path).text
    fields = {"form_token": form_token(asked), "text": shown_file(asked)}
    assert "rounds = 3" in fields["text"]
    assert "No setting differs." in browser.post(path, data=fields).text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name =", "not TOML"),
        (f"rounds = {'9' * 5000}", "not TOML"),
        (f"rounds = {'[' * 5000}", "not TOML"),
        (f"rounds = 0x{'f' * 5000}", "not TOML"),
        (f"{'a.' * 1500}a = 1", "not TOML"),
        ("rounds = 2", "has no name"),
        ('name = "A b"', "is not a valid name"),
        ('name = "b"\nrunds = 2', "runds"),
        ('name = "b"\nrounds = -1', "rounds"),
        ('name = "b"\nlora.rank = 99', "lora.rank cannot be changed here"),
        (
            'name = "b"\nlora = {rank = 2, target_modules = ["q_proj"]}\n'
            "grpo.max_response_tokens = 30000",
            "more than the",
        ),
        ('name = "b"\nstarted = 2026-01-01', "started"),
    ],
)
def test_a_file_that_is_wrong_is_shown_again_with_the_fault(
    server: Server, browser: httpx.Client, text: str, said: str
) -> None:
    """With the submitted text, and without the button that creates the run."""
    fed = begun(server)
    path, before = f"/runs/{fed.run.id}/new", len(fed.operator.runs())
    fields = {"form_token": form_token(browser.get(path).text), "text": text, "sure": "1"}
    answer = browser.post(path, data=fields)
    assert answer.status_code == 422
    page = unescape(answer.text)
    assert said in page and text in page and 'name="sure"' not in page
    assert len(fed.operator.runs()) == before


def test_an_invite_is_shown_once_with_the_command_that_takes_it(
    server: Server, browser: httpx.Client
) -> None:
    """The shown invite works; an invalid name is refused."""
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
    """By name, with the latest progress that members reported."""
    fed = begun(server)
    fed.members["a"].heartbeat(fed.run.id, Progress(round=1, step=1, steps=2, reward=0.625))
    fed.submit("b", 1, fed.adapter(1))
    page = browser.get(f"/runs/{fed.run.id}").text
    assert "1 of 2 organisations have handed in" in page
    assert re.search(r"Waits for <strong>a</strong>", page)
    assert "1 of 2" in page and "0.625" in page
    assert "waits" not in browser.get("/runs/nothing").text.lower()


def test_what_is_said_of_a_member_is_apart_from_its_name(
    server: Server, browser: httpx.Client
) -> None:
    """A suspended "a" is not shown or read aloud as "asuspended"; a model is shown by name."""
    fed = begun(server)
    fed.operator.decide(fed.run.id, "a", paths.RUN_MEMBER_SUSPEND)
    page = browser.get(f"/runs/{fed.run.id}").text
    assert re.search(r'<th scope="row">a\s+<small>suspended</small>', page)
    assert "<dd>small</dd>" in page


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999.4, "999"),
        (999.7, "1,000"),
        (123456.0, "123,456"),
        (3e9, "3e+09"),
        (-1e15, "-1e+15"),
        (1.23e-05, "1.23e-05"),
    ],
)
def test_a_figure_is_short_enough_for_a_charts_axis(value: float, text: str) -> None:
    """Otherwise 3,000,000,000 was cut off at the left and read as 000,000."""
    assert number_text(value) == text


def test_a_rounds_means_are_drawn(server: Server, browser: httpx.Client) -> None:
    """pass@1 is the evaluator's; the other curves are means over the round's updates."""
    fed = begun(server)
    times = {"seconds": 10.0, "waiting_seconds": 2.0, "transfer_seconds": 1.0}
    # Only one member reports the KL divergence.
    for name, reward, kl in (("a", 0.25, 0.125), ("b", 0.5, None)):
        file = encode_adapter(fed.run.model.layout, fed.adapter(1))
        fed.members[name].put_blob(fed.run.id, file)
        metrics = UpdateMetrics(
            examples=10, steps=2, reward=reward, kl=kl, sampling_seconds=16 * reward, **times
        )
        metrics = metrics.model_copy(update={"step_rewards": [reward, 2 * reward]})
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
    assert "Reward: 0.75 in step 2, from 0.375" in page
    for part, seconds in (("sampling", 6), ("update", 4), ("waiting", 2), ("transfer", 1)):
        assert f"<title>round 1, {part}: {seconds} s</title>" in page
    assert "pass@1: 0.75 in round 1, from 0" in page
    assert "<td>0.000</td><td>0.750</td>" in page
    assert "from 0 to 0.75" in browser.get("/").text


def test_a_reward_is_drawn_at_its_step(server: Server, browser: httpx.Client) -> None:
    """Also if earlier steps report none, as private steps do with a privacy budget."""
    fed = begun(server, rounds=2, local_steps=4, privacy={"epsilon": 8.0})
    for name in "ab":
        file = encode_adapter(fed.run.model.layout, fed.adapter(1))
        fed.members[name].put_blob(fed.run.id, file)
        metrics = UpdateMetrics(examples=10, steps=4, step_rewards=[None, 0.25, None, 0.5])
        update = SubmitUpdate(adapter=digest_of(file), metrics=metrics)
        fed.members[name].submit_update(fed.run.id, 1, update)
    fed.wait_for(1)
    page = browser.get(f"/runs/{fed.run.id}").text
    assert "Reward: 0.5 in step 4, from 0.25" in page
    assert "step 2: 0.25" in page


def test_a_run_says_when_it_will_end_and_at_its_end_what_came_out(
    server: Server, browser: httpx.Client
) -> None:
    """First an estimate from its rounds, then a summary with pass@1 before and after."""
    fed = begun(server, rounds=2, method="fedavg")
    path = f"/runs/{fed.run.id}"
    assert "Expected end" not in browser.get(path).text  # no round has finished yet
    for round_ in (1, 2):
        for name in "ab":
            fed.submit(name, round_, fed.adapter(round_))
        fed.wait_for(round_)
        page = browser.get(path).text
        assert ("Expected end" in page) == (round_ == 1)
        assert ("Results" in page) == (round_ == 2)
    for round_, score in ((0, 0.25), (2, 0.5)):
        topics = {"sums": score, "words": score}
        found = Evaluation(pass_at_1=score, by_topic=topics, problems=5, seconds=1.0)
        fed.members["judge"].submit_evaluation(fed.run.id, round_, found)
    page = unescape(browser.get(path).text)
    assert "2 organisations trained" in page
    assert "pass@1 on 5 test problems: 0.250 before, 0.500 after." in page
    assert "words: 0.250 before, 0.500 after" in page
    sizes = sum(one.traffic.up for one in fed.view().members) / 2
    assert f"each organisation sent {sizes / 1000:.3g} kB" in page


def test_a_run_without_anything_to_show_says_what_to_do(
    server: Server, browser: httpx.Client
) -> None:
    """It says whom to invite and what the curves need; an ended run asks for nothing more."""
    fed = create(server)
    page = unescape(browser.get(f"/runs/{fed.run.id}").text)
    assert "Invite each organisation by a name" in page
    assert NAME_FORM in page, "a browser that refuses a name shows only the field's title"
    assert "No data yet: pass@1; Reward;" in page and "the first round's updates" in page
    fed.operator.move_run(fed.run.id, paths.RUN_CANCEL)
    page = unescape(browser.get(f"/runs/{fed.run.id}").text)
    assert "No data: pass@1; Reward;" in page
    assert "yet" not in page and "Invite" not in page


def test_why_a_member_is_away_is_shown_to_read(server: Server, browser: httpx.Client) -> None:
    """As text, not only as a tooltip."""
    fed = begun(server)
    fed.members["a"].away(fed.run.id, Away(code="outside_hours", detail="From 8 to 18 alone."))
    page = browser.get(f"/runs/{fed.run.id}").text
    assert "away: outside_hours. From 8 to 18 alone.</small>" in page


def test_the_privacy_that_was_spent_is_a_curve_of_a_run_that_has_a_budget(
    server: Server, browser: httpx.Client
) -> None:
    """Other runs do not show the curve."""
    for settings, shown in (({"privacy": {"epsilon": 8.0}}, True), ({}, False)):
        fed = begun(server, rounds=2, method="fedavg", **settings)
        for name in "ab":
            data = encode_adapter(fed.run.model.layout, fed.adapter(1))
            fed.members[name].put_blob(fed.run.id, data)
            metrics = UpdateMetrics(examples=10, steps=2, epsilon=2.5 if shown else None)
            update = SubmitUpdate(adapter=digest_of(data), metrics=metrics)
            fed.members[name].submit_update(fed.run.id, 1, update)
        fed.wait_for(1)
        page = browser.get(f"/runs/{fed.run.id}").text
        assert ("Privacy spent, epsilon" in page) is shown


def test_the_page_of_a_long_run_of_many_members_costs_little(
    server: Server, browser: httpx.Client
) -> None:
    """Ten times the rounds and five times the members cost under three times the CPU (1.7).

    Both pages show the same number of members, so only hidden reads could make the cost grow.
    """
    engine = server.app.state.services.database.engine
    least = []
    for rounds, members, hidden in ((200, 200, 2), (2000, 1000, 802)):
        fed = begun(server, clients=1, rounds=3000)
        lengthen(engine, fed.run.id, ["a"], rounds)
        crowd(engine, fed.run.id, members, since=rounds - 5)
        spent = []
        for _ in range(10):
            began = time.process_time()
            answer = browser.get(f"/runs/{fed.run.id}")
            spent.append(time.process_time() - began)
        least.append(min(spent))
        assert f"Round {rounds + 1} of 3000" in answer.text
        assert f"{hidden} more are not shown" in answer.text
    assert least[1] < 3 * least[0], least


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


def test_a_page_does_not_say_what_members_choose_themselves(
    server: Server, browser: httpx.Client
) -> None:
    """With donors = 'likely', only the receiver knows which responses it takes."""
    _, path = hostile_exchange(server, donors="likely")
    until(lambda: browser.get(path).status_code == 200)
    page = unescape(browser.get(path).text)
    assert page.count("chooses which of its peers' responses") == 2
    assert "trains on its own" not in page


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


def test_the_stream_names_parts_that_exist(server: Server, browser: httpx.Client) -> None:
    """All parts at first, then those that changed; each can be fetched by its name."""
    fed = begun(server)
    base = f"/runs/{fed.run.id}"
    with browser.stream("GET", f"{base}/stream") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        names = [line.removeprefix("event: ") for line in _first(answer, 15) if "event" in line]
    assert len(names) == 5
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
    """By their SHA-256, and with less than 100 kB in total."""
    scripts = {name: browser.get(f"/static/{name}").content for name in SHA256}
    assert {name: hashlib.sha256(data).hexdigest() for name, data in scripts.items()} == SHA256
    assert sum(map(len, scripts.values())) < 100_000


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
