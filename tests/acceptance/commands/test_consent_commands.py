"""`pubswap client policy`, `approve` and `deny` as an organisation types them."""

from pathlib import Path

import pytest

from pubswap_client.consent.approval import read_approval
from pubswap_client.consent.policy import load_policy, policy_path
from pubswap_protocol.messages import CreateInvite
from support.coordinator.processes import create_run, serve
from support.forked import ForkedProcesses, pubswap


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
            allowed = policy_path(state).read_text()
            approval = read_approval(state, run.id)
            assert approval is not None and approval.approved
            assert "The policy allows this." in said("client", "policy", "check", *options)
            with policy_path(state).open("a") as file:
                file.write("limits.grpo.responses_per_prompt.max = 1\n")
            told = said("client", "policy", "check", *options, status=1)
            assert "at most 1 │ ✗" in told and "refused: setting_not_allowed" in told
            policy_path(state).write_text(allowed)
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
                "refused: setting_not_allowed: The run asks for LoRA rank: 8." in told
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
