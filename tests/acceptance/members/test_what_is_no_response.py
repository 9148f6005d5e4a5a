"""A real daemon beside a hostile member, whose right answers stand behind an end token."""

from pathlib import Path

import numpy as np
import pytest

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_protocol import paths
from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidResponses
from pubswap_protocol.messages import (
    CreateInvite,
    RunView,
    SubmitUpdate,
    TaskKind,
    UpdateMetrics,
    WholeRun,
)
from pubswap_protocol.tensors.responses import Response, encode_responses
from support.coordinator.coordinator import TOKENIZER, good_hello
from support.coordinator.processes import (
    Coordinator,
    create_run,
    enroll,
    serve,
    start,
    start_client,
    wait_finished,
)
from support.forked import ForkedProcesses

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("unmeasured")]

SETTINGS = {"method": "pubswap", "method.period": 1, "local_steps": 3}


def joined(coordinator: Coordinator, run: RunView, name: str) -> CoordinatorClient:
    """A member without a daemon."""
    invite = coordinator.api.invite(run.id, CreateInvite(name=name))
    token = coordinator.api.enroll(invite.invite).token
    member = CoordinatorClient(coordinator.api.url, token)
    member.request("POST", paths.HELLO.format(run=run.id), good_hello(run))
    return member


def take_part(member: CoordinatorClient, run: RunView, hostile: bool) -> int:
    """Answer every public step and hand in each round's own start; returns the refusals.

    If hostile, each response is an end token, the right answer, and another end token.
    """
    tokenizer, end = load_tokenizer(TOKENIZER), run.model.eos_token_ids[0]
    refusals = 0

    def say(answer: str) -> Response:
        words = tokenizer.encode(f"Answer: {answer}").ids
        tokens = np.array([end, *words, end] if hostile else [*words[:-1], end], np.int32)
        return Response(tokens, np.full(len(tokens), -0.5, np.float32))

    while (task := member.task(run.id, 20)).kind is not TaskKind.FINISHED:
        if task.kind is not TaskKind.TRAIN:
            continue
        assert task.adapter is not None
        for public_step in range(1, run.settings.local_steps + 1):
            prompts = member.public_step_prompts(run.id, task.round, public_step).prompts
            answers = [prompt.problem.answer if hostile else "none" for prompt in prompts]
            groups = [[say(answer)] * run.settings.grpo.responses_per_prompt for answer in answers]
            body = encode_responses([prompt.index for prompt in prompts], groups)
            try:
                member.submit_responses(run.id, task.round, public_step, body)
            except InvalidResponses:
                refusals += 1
        data = member.blob(run.id, task.adapter)
        member.put_blob(run.id, data)
        metrics = UpdateMetrics(examples=10, steps=run.settings.local_steps)
        update = SubmitUpdate(adapter=digest_of(data), metrics=metrics)
        member.submit_update(run.id, task.round, update)
    return refusals


def lived(folder: Path, hostile: bool) -> tuple[WholeRun, bytes, int, list[str]]:
    """The run of a daemon and such a member, its adapter, the refusals and the log's kinds."""
    folder.mkdir()
    with ForkedProcesses(folder / "logs") as processes:
        coordinator = serve(processes, folder)
        with coordinator.api as api:
            run = create_run(coordinator, SETTINGS)
            start_client(coordinator, enroll(coordinator, run, "alpha"), seed=3)
            with joined(coordinator, run, "beta") as member:
                start(coordinator, run)
                refusals = take_part(member, run, hostile)
            view = wait_finished(coordinator, run)
            kinds = [event.kind for event in api.events(run.id).events]
            return view, api.global_adapter(run.id, "final"), refusals, kinds


def test_the_honest_member_learns_as_if_the_hostile_one_had_said_nothing_right(
    tmp_path: Path,
) -> None:
    """Every hostile submission is refused; the adapters agree bit for bit with the control's."""
    control, expected, none, _ = lived(tmp_path / "control", hostile=False)
    attacked, adapter, refusals, kinds = lived(tmp_path / "attacked", hostile=True)
    steps = attacked.settings.rounds * attacked.settings.local_steps
    assert (none, refusals, kinds.count("responses refused")) == (0, steps, steps)
    assert adapter == expected
    for mine, theirs in zip(attacked.rounds[1:], control.rounds[1:], strict=True):
        for here, there in zip(mine.public_steps, theirs.public_steps, strict=True):
            assert here.replaced_share["alpha"] == there.replaced_share["alpha"] == 0
            assert here.correct_share == {"alpha": there.correct_share["alpha"]}
            assert there.correct_share["beta"] == 0
