"""Problem sets: what the coordinator takes, its members read, and the same of it."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE
from pubswap_protocol import paths
from pubswap_protocol.bounds import MAX_MEMBER_MESSAGE
from pubswap_protocol.errors import InvalidProblems, PubSwapError
from pubswap_protocol.messages import Role, SetKind
from pubswap_protocol.problems import Problem, parse_problems, read_set
from pubswap_protocol.verifiers import verifier_version
from pubswap_protocol.verifiers.registry import versions_named
from support.coordinator.coordinator import Server, create, jsonl, problems


def with_metadata(metadata: str) -> bytes:
    """A public set whose problems all have this metadata, as JSON."""
    texts = [each.model_dump_json(exclude_defaults=True) for each in problems(12)]
    return "".join(f'{text[:-1]},"metadata":{metadata}}}\n' for text in texts).encode()


@pytest.mark.full
def test_members_can_read_the_largest_prompts_that_a_run_opens_with(server: Server) -> None:
    """A little more, and it is not opened. The limit is that of a message to a member."""
    fed = create(server, clients=1)
    size = MAX_MEMBER_MESSAGE // fed.run.settings.grpo.prompts_per_step
    for spare in (0, 1024):
        data = with_metadata(json.dumps({"text": "é" * ((size - spare) // 2)}, ensure_ascii=False))
        fed.operator.put_set(fed.run.id, SetKind.PUBLIC, data)
        if not spare:
            with pytest.raises(PubSwapError, match=r"The public set: the \d+ prompts of a public"):
                fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    token = fed.join("a")
    fed.start()
    approved = parse_problems(data.decode())
    with CoordinatorClient(server.url, token, ONCE, on_send=lambda *_: None) as member:
        sent = member.public_step_prompts(fed.run.id, 1, 1).prompts
    assert [each.problem for each in sent] == [approved[each.index] for each in sent]


def test_a_run_whose_prompts_would_arrive_otherwise_is_not_opened(server: Server) -> None:
    """Members compare each prompt with the public set, and NaN is not in JSON."""
    fed = create(server)
    fed.operator.put_set(fed.run.id, SetKind.PUBLIC, with_metadata('{"unit":NaN}'))
    with pytest.raises(PubSwapError, match=r"line 1 \(p0\): its metadata is not the same") as error:
        fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    assert error.value.code == "invalid_problems"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r\r\n", b" \r\n", b"\n\n"])
@pytest.mark.parametrize("inside", [b"", b"\r", b"\xe2\x80\xa8", b"\x0b"])
def test_both_sides_find_the_same_lines(server: Server, end: bytes, inside: bytes) -> None:
    """Whatever an editor ends lines with; other separators are parts of a line, or no JSON."""
    texts = [each.model_dump_json(exclude_defaults=True).encode() for each in problems(12)]
    data = b"".join(text[:-1] + inside + b"}" + end for text in texts)
    fed = create(server, clients=1)
    try:
        read = read_set(data)
    except InvalidProblems as error:
        with pytest.raises(PubSwapError, match=re.escape(error.detail.partition(", ")[2][:30])):
            fed.operator.put_set(fed.run.id, SetKind.PUBLIC, data)
        return
    assert fed.operator.put_set(fed.run.id, SetKind.PUBLIC, data).problems == len(read) == 12
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    member = fed.enroll("a")
    assert read_set(member.problem_set(fed.run.id, SetKind.PUBLIC).data) == read
    fed.start()
    for each in member.public_step_prompts(fed.run.id, 1, 1).prompts:
        assert each.problem == read[each.index]


def test_members_learn_the_versions_of_the_verifiers_that_problems_name(server: Server) -> None:
    """Which the run's own version does not have; a set that names none has none."""
    fed = create(server)
    own = Problem(id="own", prompt="Say 4.", answer="4", verifier="math")
    fed.operator.put_set(fed.run.id, SetKind.PUBLIC, jsonl([*problems(11), own]))
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    public = fed.enroll("a").problem_set(fed.run.id, SetKind.PUBLIC)
    assert public.versions == verifier_version("math") != fed.run.verifier_version
    assert public.versions == versions_named(read_set(public.data), fed.run.settings.verifier)
    judge = fed.enroll("judge", Role.EVALUATOR)
    assert judge.problem_set(fed.run.id, SetKind.TEST).versions is None


def test_a_set_is_read_once_for_members_that_begin_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would otherwise read it, in as many threads, for the versions that it names."""
    fed = create(server)
    other = Problem(id="once", prompt="Say 5.", answer="5")  # or an earlier test's is known
    fed.operator.put_set(fed.run.id, SetKind.PUBLIC, jsonl([*problems(11), other]))
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    member, reads = fed.enroll("a"), list[float]()

    def slow(*_: object) -> str:
        reads.append(time.monotonic())
        time.sleep(0.3)
        return ""

    monkeypatch.setattr("pubswap_server.services.versions_named", slow)
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda _: member.problem_set(fed.run.id, SetKind.PUBLIC), range(8)):
            pass
    assert len(reads) == 1
