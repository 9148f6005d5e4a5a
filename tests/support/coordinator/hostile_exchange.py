"""A public step whose prompts and responses are hostile markup."""

from pubswap_protocol import paths
from pubswap_protocol.messages import SetKind
from pubswap_protocol.problems import Problem
from pubswap_protocol.tensors.responses import encode_responses
from support.coordinator.coordinator import Federation, Server, create, jsonl

HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(2)><a href="javascript:alert(3)">x</a>'


def hostile_exchange(server: Server, **public_step: str) -> tuple[Federation, str]:
    """A run whose first public step is complete, and the path of that step's page.

    All responses of a are right, and all of b's wrong.
    """
    fed = create(server, method={"period": 1, **public_step})
    hostile = [Problem(id=f"p{n}", prompt=f"{HOSTILE} {n}", answer="7") for n in range(12)]
    fed.operator.put_set(fed.run.id, SetKind.PUBLIC, jsonl(hostile))
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    for name in "ab":
        fed.enroll(name)
    fed.start()
    size = fed.run.settings.grpo.responses_per_prompt
    for name, right in (("a", size), ("b", 0)):
        prompts = fed.members[name].public_step_prompts(fed.run.id, 1, 1).prompts
        group = [fed.say("7" if k < right else "<b>0</b>") for k in range(size)]
        file = encode_responses([entry.index for entry in prompts], [group for _ in prompts])
        fed.members[name].submit_responses(fed.run.id, 1, 1, file)
    return fed, f"/runs/{fed.run.id}/rounds/1/steps/1"
