"""What a real evaluator saw reaches the operator."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from pubswap_client.data.spec import SplitSizes
from pubswap_client.demo.demos import MODEL, TINY
from pubswap_client.state.membership import StoredMembership, save_membership
from pubswap_protocol import paths
from pubswap_protocol.messages import CreateInvite, FullEvaluation, Role, SetKind
from pubswap_protocol.verifiers import score
from support.client.commands import call
from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    create,
    jsonl,
    serving,
    settings_for,
)

PROBLEMS = 24


def test_what_the_evaluator_saw_is_shown(tmp_path: Path) -> None:
    """Ten responses of each topic with the evaluator's verdicts, also as JSON and of round 0."""
    state = tmp_path / "judge"
    with serving(settings_for(tmp_path / "place")) as server, server.closing:
        fed = create(server, method="fedavg", rounds=1, chat_template="none")
        test_set = replace(TINY, sizes=SplitSizes(1, 1, PROBLEMS)).split(1, 1).test
        fed.operator.put_set(fed.run.id, SetKind.TEST, jsonl(test_set))
        fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
        for name in ("a", "b"):
            fed.enroll(name)
        invite = fed.operator.invite(fed.run.id, CreateInvite(name="judge", role=Role.EVALUATOR))
        joined = fed.operator.enroll(invite.invite)
        save_membership(state, StoredMembership(coordinator=server.url, membership=joined))
        fed.start()
        for number, name in enumerate(("a", "b")):
            update = {key: 0.3 * tensor for key, tensor in fed.adapter(number).items()}
            fed.submit(name, 1, update)
        fed.wait_for(1)
        own = ["--state", str(state), "--model", str(MODEL), "--threads", "1", "--device", "cpu"]
        assert call(["evaluate", *own], tmp_path, {}).status == 0
        token = tmp_path / "token"
        token.write_text(OPERATOR_TOKEN)
        options = ["--coordinator", fed.server.url, "--token-file", str(token)]

        def show(*words: str) -> str:
            ended = call(["run", "show", fed.run.name, *words, *options], token.parent, {})
            assert ended.status == 0, ended.output
            return ended.output

        test = {problem.prompt: problem for problem in test_set}
        for round_, chosen in ((1, ()), (0, ("--round", "0"))):
            found = FullEvaluation.model_validate_json(show("--responses", "--json", *chosen))
            topics = Counter(each.topic for each in found.responses)
            assert topics.keys() == found.by_topic.keys() and max(topics.values()) <= 10
            for each in found.responses:
                problem = test[each.prompt]
                assert (each.topic, each.answer) == (problem.topic, problem.answer)
                assert each.right == bool(score("exact", each.response, problem))
            text = show("--responses", *chosen)
            assert text.startswith(
                f"Round {round_}: pass@1 {found.pass_at_1:.3f} on {PROBLEMS} problems"
            )
            assert text.count("\n  gold ") == len(found.responses)
        assert "Suspicious" not in show()
