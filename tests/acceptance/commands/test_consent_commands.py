"""`pubswap client policy`, `approve` and `deny` as an organisation types them."""

import json
from pathlib import Path

import pytest

from pubswap_client.consent.approval import read_approval
from pubswap_client.consent.policy import load_policy, policy_path
from pubswap_client.demo.demos import MODEL
from pubswap_protocol.messages import CreateInvite
from support.coordinator.processes import create_run, serve
from support.forked import ForkedProcesses, pubswap

RUN_FILE = """
name = "acceptance"
[model]
source = "{model}"
[lora]
rank = 16
[data]
public = "public.jsonl"
test = "public.jsonl"
"""


def said(*arguments: str, status: int = 0) -> str:
    """A command's output as one line."""
    done = pubswap(*arguments)
    assert done.returncode == status, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.full
def test_enrolling_writes_a_policy_that_a_person_reads_and_decides_by(tmp_path: Path) -> None:
    """Enrol, show, check, deny, approve; with an existing policy, enrolling approves nothing."""
    with ForkedProcesses(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path)
        with coordinator.api as api:
            run = create_run(coordinator, {})
            state = tmp_path / "a"
            options = ["--state", str(state)]

            def invited(name: str) -> list[str]:
                code = api.invite(run.id, CreateInvite(name=name)).invite
                return ["client", "enroll", "--coordinator", api.url, "--invite", code]

            told = said(*invited("a"), *options)
            assert "LoRA rank" in told and "at most 8" in told and "✗" not in told
            assert "allows this and no more" in told
            policy = load_policy(policy_path(state))
            assert policy.coordinators == (api.url,)
            assert str(policy.limits["lora.rank"]) == "at most 8"
            approval = read_approval(state, run.id)
            assert approval is not None and approval.approved
            assert "The policy allows this." in said("client", "policy", "check", *options)
            assert "The run was approved" in said("client", "policy", "show", *options)
            said("client", "deny", *options)
            told = said("client", "policy", "check", *options, status=1)
            assert "refused: denied: A person at this organisation has denied the run." in told
            asked = said("client", "approve", *options, status=1)
            assert "Nothing was changed; add --yes to go ahead." in asked
            assert "Approved: run acceptance." in said("client", "approve", *options, "--yes")
            assert "The policy allows this." in said("client", "policy", "check", *options)
            other = tmp_path / "b"
            other.mkdir()
            policy_path(other).write_text("limits.lora.rank.max = 4")
            told = said(*invited("b"), "--state", str(other))
            assert (
                "refused: setting_not_allowed: LoRA rank" in told
                and "pubswap client approve" in told
            )
            assert policy_path(other).read_text() == "limits.lora.rank.max = 4"
            assert read_approval(other, run.id) is None
            third = tmp_path / "c-org"
            third.mkdir()
            policy_path(third).write_text('coordinators = ["https://another.example"]')
            told = said(*invited("c"), "--state", str(third), status=1)
            assert "[refused_by_policy]" in told
            assert not (third / "ledger").exists()


def test_a_policy_is_tried_on_a_run_file_before_enrolment(tmp_path: Path) -> None:
    """If the base model is here, its digest and an update's size are known, too."""
    file, policy = tmp_path / "run.toml", tmp_path / "policy.toml"
    file.write_text(RUN_FILE.format(model=json.dumps(str(MODEL))[1:-1]))
    check = ["client", "policy", "check", str(file), "--policy", str(policy)]
    policy.write_text("limits.lora.rank.max = 16\nmax_bytes_a_day = 100_000_000\n")
    assert "The policy allows this." in said(*check)
    policy.write_text(
        f'limits.lora.rank.max = 8\nmax_bytes_a_day = 10\nbase_models = ["sha256:{"0" * 64}"]\n'
    )
    told = said(*check, status=1)
    for code in ("setting_not_allowed", "bytes_of_the_day", "base_model_not_allowed"):
        assert f"refused: {code}" in told
    policy.write_text("limits.method.period.min = 4\nlimits.grpo.responses_per_prompt.max = 8")
    told = said(*check, status=1)
    assert "method.period │ 2 │ at least 4 │ ✗" in told
    assert "grpo.responses_per_prompt │ 8 │ at most 8 │ ✓" in told
    policy.write_text("max_rnak = 8")
    assert "'max_rnak'; the keys are" in said(*check, status=1)
