"""A federation of real processes that a person makes from nothing in the browser."""

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, expect

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.demo.demos import MODEL
from pubswap_client.operator.connecting import operator_token
from pubswap_protocol.messages import MemberView, Role, SetKind, StepPoint, WholeRun
from pubswap_protocol.problems import write_problems
from support.browsing import PICTURES, kept, opened
from support.coordinator.processes import ONE_THREAD, Coordinator, serve, start_client, sums
from support.eventually import until
from support.forked import ForkedProcesses, pubswap

NAME = "consortium"
ROUNDS = 3 if PICTURES else 2
CARD = ("lora.rank=8", "lora.alpha=16", "chat_template=none", "grpo.max_response_tokens=32")
SETTINGS = f"""
name = "{NAME}"
seed = 7
rounds = {ROUNDS}
local_steps = 4
clients = 2
verifier = "math"
method.period = 2
method.sampling_check = "off"
grpo.prompts_per_step = 4
grpo.responses_per_prompt = 4
grpo.learning_rate = 1e-3
"""
TOPICS = ("even & <b>sums</b>", "odd sums")
CLIENTS = ("hospital-a", "hospital-b")


@dataclass
class Made:
    """A federation that a person has made in the browser, and what the pages said meanwhile."""

    coordinator: Coordinator
    token: str
    refused: list[str] = field(default_factory=list)
    approved: str = ""
    wrong: list[str] = field(default_factory=list)

    @property
    def api(self) -> CoordinatorClient:
        return self.coordinator.api

    @property
    def folder(self) -> Path:
        return self.coordinator.folder

    def view(self) -> WholeRun:
        return self.api.whole_run(NAME)

    def member(self, name: str) -> MemberView:
        return next(each for each in self.view().members if each.name == name)

    def reward(self, name: str) -> float | None:
        progress = self.member(name).progress
        return None if progress is None else progress.reward

    def last_step(self, name: str) -> StepPoint:
        *_, last = (each for each in self.api.steps(NAME) if each.member == name)
        return last

    def page(self, browser: Browser, path: str = "") -> tuple[Page, list[str]]:
        page, wrong = opened(browser, self.api.url, self.token)
        page.goto(f"{self.api.url}{path}")
        return page, wrong


def send(page: Page, label: str, data: Path) -> Locator:
    """Choose a file; returns what the page says of it, which is nothing once it is taken."""
    chosen = page.get_by_label(label)
    said = page.locator(f"[id='{chosen.get_attribute('aria-describedby')}']")
    chosen.set_input_files(data)
    return said


def write_files(folder: Path) -> None:
    """A card, and two problem sets of two topics; of each also a version with a wrong line."""
    options = [option for change in CARD for option in ("--set", change)]
    written = pubswap("model", "card", str(MODEL), "--out", str(folder / "card.json"), *options)
    assert written.returncode == 0, written.stderr
    for seed, kind in enumerate(SetKind, start=1):
        problems = [
            each.model_copy(update={"topic": TOPICS[number % 2]})
            for number, each in enumerate(sums(seed, 12))
        ]
        write_problems(folder / f"{kind}.jsonl", problems)
        lines = (folder / f"{kind}.jsonl").read_text().splitlines()
        lines[4] = '{"id": "no-answer", "prompt": "1 + 1"}' if seed == 1 else lines[1]
        (folder / f"wrong-{kind}.jsonl").write_text("\n".join(lines))


def draft(page: Page, made: Made, folder: Path) -> None:
    """From nothing to an open run; the wrong files first."""
    page.get_by_role("link", name="New run").click()
    kept(page, "new-run")
    made.refused.append(refusal(send(page, "The card", folder / "public.jsonl")))
    send(page, "The card", folder / "card.json")
    expect(page.get_by_text("A draft:")).to_be_visible()
    expect(page.get_by_role("button", name="Open")).to_be_disabled()
    send(page, "tokenizer.json", MODEL / "tokenizer.json")
    expect(page.locator(".file").filter(has_text="missing")).to_have_count(2)
    for kind in SetKind:
        label = f"The {kind} set"
        made.refused.append(refusal(send(page, label, folder / f"wrong-{kind}.jsonl")))
        send(page, label, folder / f"{kind}.jsonl")
        expect(page.locator(".file").filter(has_text=label)).to_contain_text("12 problems")
    page.get_by_role("link", name="Change them").click()
    file = page.get_by_label("Run file")
    given = [line for line in file.input_value().splitlines() if not line.startswith("name")]
    file.fill("\n".join([*given, SETTINGS]))
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("region", name="What changes")).to_contain_text("grpo.learning_rate")
    page.get_by_role("button", name="Save").click()
    kept(page, "draft")
    made.approved = page.get_by_role("main").inner_text()
    page.get_by_role("button", name=f"Open {NAME}").click()
    expect(page.get_by_role("main")).to_contain_text("Nobody has enrolled yet")


def refusal(said: Locator) -> str:
    expect(said).to_have_class("alert")
    return said.inner_text()


def invite(page: Page, name: str, role: Role = Role.CLIENT) -> list[str]:
    """The arguments of the command that the page shows for an organisation."""
    page.get_by_label("Name").fill(name)
    page.get_by_label("Role").select_option(role)
    page.get_by_role("button", name="Invite").click()
    program, *arguments = shlex.split(page.locator("#command").inner_text())
    page.get_by_role("link", name="Back").click()
    assert program == "pubswap"
    return arguments


def link_of(made: Made, name: str) -> str:
    """What `pubswap client link` prints at an organisation."""
    printed = pubswap("client", "link", "--state", str(made.folder / name))
    assert printed.returncode == 0, printed.stderr
    return printed.stdout.strip()


@contextlib.contextmanager
def made_by_clicks(browser: Browser, folder: Path) -> Iterator[Made]:
    """All by clicks except what organisations run: their daemons have started, the run has not."""
    with ForkedProcesses(folder / "logs") as processes:
        write_files(folder)
        coordinator = serve(processes, folder)
        with coordinator.api:
            made = Made(coordinator, operator_token(folder / "c" / "operator-token"))
            page, made.wrong = opened(browser, coordinator.api.url, made.token)
            draft(page, made, folder)
            for seed, name in enumerate((*CLIENTS, "judge")):
                role = Role.EVALUATOR if name == "judge" else Role.CLIENT
                state = folder / name
                joined = pubswap(*invite(page, name, role), "--state", str(state))
                assert joined.returncode == 0, joined.stderr
                if role is Role.CLIENT:
                    start_client(coordinator, state, seed + 3)
                else:
                    options = ["--state", str(state), "--model", str(MODEL), "--threads", "1"]
                    processes.start(name, ["evaluate", *options], ONE_THREAD)
            page.context.close()
            until(lambda: all(each.accepted for each in made.view().members))
            yield made
