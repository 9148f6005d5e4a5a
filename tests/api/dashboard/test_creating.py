"""The dashboard's form for a new run."""

import json
import threading
from html import unescape

import httpx
import pytest

from pubswap_client.recipes.recipe import read_recipe
from pubswap_protocol.command_line.keys import MAX_FAULTS
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import (
    CreateRun,
    SetKind,
)
from pubswap_protocol.tensors.adapter import encode_adapter, initial_adapter
from pubswap_server.database.tables import RunRow
from pubswap_server.web import creating
from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    Server,
    begun,
    create,
)
from support.coordinator.dashboard import form_token, hidden, rows, shown_file


def test_a_run_like_another_is_checked_then_created_and_opened(
    server: Server, browser: httpx.Client
) -> None:
    """It is created only on the second click, with the first run's model and problem sets."""
    fed = begun(server, rounds=2, method={"period": 1})
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


def test_a_run_like_one_with_an_initial_adapter_starts_from_it_too(
    server: Server, browser: httpx.Client
) -> None:
    """Unless it is not stored, which the page says."""
    card = create(server).run.model
    data = encode_adapter(card.layout, initial_adapter(card.layout, 99))
    fed = create(server, initial_adapter=digest_of(data), method={"period": 1})
    path = f"/runs/{fed.run.id}/new"
    opening = {"form_token": form_token(browser.get(path).text)}
    refused = browser.post(f"/runs/{fed.run.id}/open", data=opening)
    assert refused.status_code == 422 and "--initial-adapter FOLDER" in unescape(refused.text)
    fed.operator.put_initial_adapter(fed.run.id, data)
    assert browser.post(f"/runs/{fed.run.id}/open", data=opening).status_code == 200
    asked = browser.get(path).text
    fields = {"form_token": form_token(asked), "text": shown_file(asked), "sure": "1"}
    assert browser.post(path, data=fields).status_code == 200
    [start] = fed.operator.whole_run(f"{fed.run.name}-2").rounds
    assert start.adapter == digest_of(data)
    for name in (f"{fed.run.name}-2", fed.run.name):
        page = browser.get(f"/runs/{fed.operator.run(name).id}").text
        assert '<th scope="row" data-name="Round">start</th>' in page
        assert 'data-name="Round">base</th>' not in page


def test_a_run_is_created_once_however_often_its_button_is_clicked(
    server: Server, browser: httpx.Client
) -> None:
    """Every click on the same page leads to the same run."""
    fed = begun(server, method={"period": 1})
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
    fed = begun(server, method={"period": 1})
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
    fed = begun(server, method={"period": 1})
    base = f"/runs/{fed.run.id}"
    page = browser.get(f"{base}/settings").text
    assert ["method.sampling_check", '"report"', "default"] in [row[:3] for row in rows(page)]
    asked = browser.get(f"{base}/new").text
    text = shown_file(asked) + "grpo.resample = 2\n"
    checked = browser.post(f"{base}/new", data={"form_token": form_token(asked), "text": text}).text
    assert ["grpo.resample", "0", "2"] in rows(checked)


def test_settings_are_shown_as_a_run_file_has_them(server: Server, browser: httpx.Client) -> None:
    """Strings in quotes, numbers, lists in brackets; a missing value as "not set"."""
    fed = begun(server, method={"period": 1})
    page = browser.get(f"/runs/{fed.run.id}/settings").text
    shown = {key: value for key, value, *_ in rows(page)[1:]}
    for key, value in (
        ("method.period", "1"),
        ("method.quorum", "not set"),
        ("lora.target_modules", '["q_proj"]'),
        ("method", '"pubswap"'),
    ):
        assert shown[key] == value
    asked = browser.get(f"/runs/{fed.run.id}/new").text
    text = shown_file(asked) + "method.quorum = 2\n"
    fields = {"form_token": form_token(asked), "text": text}
    checked = browser.post(f"/runs/{fed.run.id}/new", data=fields).text
    assert ["method.quorum", "not set", "2"] in rows(checked)


def test_the_form_refuses_what_the_command_line_refuses(
    server: Server, browser: httpx.Client
) -> None:
    """It shows all faults at once, in the same words, and keeps the text."""
    fed = begun(server, method={"period": 1})
    path = f"/runs/{fed.run.id}/new"
    asked = browser.get(path).text
    for changes in (
        {"aggregation.weights": "examples"},
        {"method.sampling_check": "exclude"},
        {"method.period": 3, "method.quorum": 9, "aggregation.quorum": 9},
        {"verifier": "guess"},
        {"method.perod": 2, "grpo.temperature": -1},
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


def test_a_file_with_thousands_of_faults_holds_up_nobody(
    server: Server, browser: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read beside the event loop, and the page lists the first faults and counts the rest."""
    fed = begun(server)
    threads: list[int] = []

    def noting(run: RunRow, text: str) -> creating.NewRun:
        threads.append(threading.get_ident())
        return read_new_run(run, text)

    async def loop_thread() -> int:
        return threading.get_ident()

    read_new_run = creating.read_new_run
    monkeypatch.setattr(creating, "read_new_run", noting)
    path = f"/runs/{fed.run.id}/new"
    text = 'name = "b"\n' + "".join(f"swop{n} = 1\n" for n in range(3000))
    answer = browser.post(
        path, data={"form_token": form_token(browser.get(path).text), "text": text}
    )
    page = unescape(answer.text).replace(text, "")
    assert answer.status_code == 422
    assert page.count("there is no such key") == MAX_FAULTS
    assert f"There are {3000 - MAX_FAULTS:,} more faults." in page
    assert threads and server.do(loop_thread()) not in threads


def test_a_run_of_the_longest_name_has_a_file_with_a_name(
    server: Server, browser: httpx.Client
) -> None:
    """It is cut at its end: cut at its start, it could begin with a hyphen."""
    fed = create(server, method={"period": 1})
    wish = CreateRun(name="ab-" + "c" * 60, settings=fed.run.settings, model=fed.run.model)
    path = f"/runs/{fed.operator.create_run(wish).id}/new"
    asked = browser.get(path).text
    fields = {"form_token": form_token(asked), "text": shown_file(asked)}
    assert browser.post(path, data=fields).status_code == 200


def test_the_file_that_a_run_shows_is_the_run(server: Server, browser: httpx.Client) -> None:
    """Submitting it unchanged changes no setting."""
    options = {"tone": "\N{GRINNING FACE}"}
    fed = begun(server, rounds=3, method={"period": 1}, chat_template_options=options)
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
