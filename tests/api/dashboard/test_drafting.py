"""A run from nothing in the browser."""

from html import unescape
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from pubswap_client.demo.demos import MODEL
from pubswap_protocol import paths
from pubswap_protocol.cli import build_app
from pubswap_protocol.errors import WrongState
from pubswap_protocol.messages import CreateRun, SetKind
from support.coordinator.coordinator import TOKENIZER, Server, begun, create, jsonl, problems
from support.coordinator.dashboard import form_token, hidden, shown_file

CARD_OPTIONS = ("--set", "lora.rank=4", "--set", "clients=2", "--set", "grpo.prompts_per_step=4")


def card(tmp_path: object, *options: str) -> bytes:
    """What `pubswap model card` writes of the demo's base model."""
    out = f"{tmp_path}/card.json"
    command = ["model", "card", str(MODEL), "--out", out, *options]
    result = CliRunner().invoke(build_app(), command)
    assert result.exit_code == 0, result.output
    with open(out, "rb") as file:  # noqa: PTH123
        return file.read()


def sent(browser: httpx.Client, token: str, path: str, data: bytes) -> httpx.Response:
    """A file as `upload.js` sends it."""
    return browser.put(path, content=data, headers={"X-Form-Token": token})


def test_a_run_is_made_from_a_card_its_files_and_settings(
    server: Server, browser: httpx.Client, tmp_path: object
) -> None:
    """Faults name the line; settings can be changed until it is open; then it takes members."""
    token = form_token(browser.get("/new").text)
    made = sent(browser, token, "/new", described := card(tmp_path, *CARD_OPTIONS))
    assert CreateRun.model_validate_json(described).model.source == MODEL.name, "not where it lies"
    assert made.status_code == 200, made.text
    path = made.json()["to"]
    page = browser.get(path).text
    assert "A draft" in page and page.count("<strong>missing</strong>") == 3 and "disabled" in page
    assert "lora.rank" in page

    for kind, data in (
        ("tokenizer", TOKENIZER),
        ("public", jsonl(problems(12))),
        ("test", jsonl(problems(5))),
    ):
        answer = sent(browser, token, f"{path}/files/{kind}", data)
        assert answer.status_code == 200, answer.text
        assert answer.json()["to"] == path
    page = browser.get(path).text
    for has in ("sent", "12 problems", "5 problems"):
        assert f"<strong>{has}</strong>" in page
    wrong = jsonl(problems(3)) + b'{"id": "x"}\n'
    refused = sent(browser, token, f"{path}/files/public", wrong)
    assert refused.status_code == 422 and "line 4" in refused.json()["detail"]

    asked = browser.get(f"{path}/new").text
    fields = {"form_token": form_token(asked)}
    text = 'name = "from-nothing"\nclients = 2\nrounds = 3\n[lora]\nrank = {}\n'
    text += "[grpo]\nprompts_per_step = 4\n"
    no = browser.post(f"{path}/new", data=fields | {"text": text.format(8), "sure": "1"})
    assert "lora.rank cannot be changed here" in unescape(no.text)
    prompted = f'system_prompt = "Be brief."\n{text.format(4)}'
    no = browser.post(f"{path}/new", data=fields | {"text": prompted, "sure": "1"})
    assert "system_prompt cannot be changed here" in unescape(no.text)
    checked = browser.post(f"{path}/new", data=fields | {"text": text.format(4)}).text
    done = browser.post(f"{path}/new", data=hidden(checked) | {"text": text.format(4), "sure": "1"})
    assert str(done.url).endswith(path), done.text
    assert "from-nothing" in done.text

    opened = browser.post(f"{path}/open", data={"form_token": form_token(done.text)})
    assert opened.status_code == 200 and "Invite" in opened.text
    run = server.client().run(path.split("/")[-1])
    assert (run.state, run.name, run.settings.rounds, run.settings.lora.rank) == (
        *("open", "from-nothing"),
        *(3, 4),
    )


def test_what_was_changed_while_it_was_opened_is_not_opened(
    server: Server, browser: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its first adapter would be that of another seed."""
    fed = create(server)
    services, path = server.app.state.services, f"/runs/{fed.run.id}"
    make, asked = services.initial_adapter, browser.get(f"{path}/new").text
    text = shown_file(asked).replace("\n", "\nseed = 99\n", 1)
    fields = {"form_token": form_token(asked), "text": text}

    def while_changed(*arguments: Any) -> str:
        assert browser.post(f"{path}/new", data=fields | {"sure": "1"}).status_code == 200
        return str(make(*arguments))

    monkeypatch.setattr(services, "initial_adapter", while_changed)
    with pytest.raises(WrongState, match="open it again"):
        fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    monkeypatch.undo()
    opened = fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    assert (opened.state, opened.settings.seed) == ("open", 99)


def test_what_does_not_fit_is_refused_in_one_sentence(
    server: Server, browser: httpx.Client
) -> None:
    """No card, another page's form, an open run, an ended session, a viewer."""
    fed, draft = begun(server), create(server)
    token = form_token(browser.get("/new").text)
    public = jsonl(problems(12))
    files = f"/runs/{fed.run.id}/files"
    for answer, status, words in (
        (sent(browser, token, "/new", b"{}"), 422, "pubswap model card"),
        (sent(browser, token, "/new", b"\xff" * 10), 422, "no card of a model"),
        (sent(browser, "x", "/new", b"{}"), 403, "reload it"),
        (sent(browser, token, f"{files}/public", public), 409, "before it is opened"),
        (sent(browser, token, f"{files}/tokenizer", b"{}"), 409, "not the tokenizer.json"),
        (sent(browser, token, f"{files}/private", public), 422, "kind"),
        (sent(browser, token, "/runs/nobody/files/public", public), 404, "no run"),
    ):
        assert answer.status_code == status, answer.text
        assert words in answer.json()["detail"]
    assert server.client().problem_set(fed.run.id, SetKind.PUBLIC).data.strip()
    page = browser.get(f"/runs/{draft.run.id}").text
    empty = browser.post(f"/runs/{draft.run.id}/open", data={"form_token": "x"})
    assert empty.status_code == 403 and "A draft" in page
    viewer = server.client().add_viewer("board").token
    for data in ({}, {"token": viewer}):
        with server.http(None) as http:
            if data:
                http.post("/sign-in", data=data)
            status = sent(http, token, "/new", b"{}").status_code
            assert status == (403 if data else 401)
            assert http.get("/new", follow_redirects=False).status_code == (403 if data else 303)
