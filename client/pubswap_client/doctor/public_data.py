"""The public problems: what every public step draws from."""

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.doctor.findings import Finding, ok
from pubswap_client.state.membership import StoredMembership
from pubswap_protocol.lengths import PromptLimit
from pubswap_protocol.messages import SetKind
from pubswap_protocol.problems import jsonl_lines, parse_problems

PUBLIC = "public prompts"


def check_public(stored: StoredMembership, limit: PromptLimit) -> Finding:
    """No prompt is longer than the run takes; raises InvalidProblems with a list."""
    member = stored.membership
    with CoordinatorClient(stored.coordinator, member.token, ONCE, tls=stored.tls) as api:
        text = api.problem_set(member.run, SetKind.PUBLIC)
    problems = list(parse_problems(jsonl_lines(text), "the public set", extra="ignore"))
    limit.check(problems, "The operator's public set")
    return ok(PUBLIC, f"{len(problems)} of them, none over the limit of {limit.most} tokens")
