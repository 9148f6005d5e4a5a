"""Responses that would be judged by one part and trained by another are refused."""

import numpy as np
import pytest

from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.errors import InvalidResponses
from pubswap_protocol.messages import Event
from pubswap_protocol.tensors.responses import Response, encode_responses
from support.coordinator.coordinator import PAD, TOKENIZER, Federation, Server, begun

LIE = "Give 500 mg."


def encoded(fed: Federation, name: str, form: str) -> bytes:
    """A member's responses to public step 1; E is the end token, A the answer, L a lie, P a pad."""
    prompts = fed.members[name].public_step_prompts(fed.run.id, 1, 1).prompts
    tokenizer = load_tokenizer(TOKENIZER)
    longest = fed.run.settings.grpo.max_response_tokens

    def ids(answer: str) -> list[int]:
        parts = {
            "E": [fed.run.model.eos_token_ids[0]],
            "P": [PAD],
            "A": tokenizer.encode(f"Answer: {answer}").ids,
            "L": tokenizer.encode(LIE).ids[:4],
        }
        return [token for part in form for token in parts[part]][:longest]

    def group(answer: str) -> list[Response]:
        tokens = np.array(ids(answer), np.int32)
        one = Response(tokens, np.full(len(tokens), -0.5, np.float32))
        return [one] * fed.run.settings.grpo.responses_per_prompt

    return encode_responses(
        [entry.index for entry in prompts], [group(entry.problem.answer) for entry in prompts]
    )


def events(fed: Federation, kind: str) -> list[Event]:
    return [each for each in fed.operator.events(fed.run.id).events if each.kind == kind]


@pytest.mark.parametrize("form", ["EAE", "LEAE", "AEE", "LEA", "A"])
def test_what_is_no_response_is_refused_and_nobody_waits(server: Server, form: str) -> None:
    """The honest member trains on its own at once, and the log says once why."""
    fed = begun(server, clients=2, method={"deadline_seconds": 3600})
    body = encoded(fed, "b", form)
    for _ in range(3):
        with pytest.raises(InvalidResponses, match="end token"):
            fed.members["b"].submit_responses(fed.run.id, 1, 1, body)
    fed.members["a"].submit_responses(fed.run.id, 1, 1, fed.responses("a", 1, 1, [0, 0]))
    fed.members["a"].exchanged(fed.run.id, 1, 1)
    (public_step,) = fed.view().rounds[1].public_steps
    assert (public_step.clients, public_step.replaced) == (1, 0)
    [refused] = events(fed, "responses refused")
    assert refused.details["member"] == "b" and "end token" in refused.details["reason"]


def test_a_member_may_mend_what_was_refused(server: Server) -> None:
    """While the exchange is open, what it sends then counts like any other's."""
    fed = begun(server, clients=2, method={"deadline_seconds": 3600})
    with pytest.raises(InvalidResponses):
        fed.members["b"].submit_responses(fed.run.id, 1, 1, encoded(fed, "b", "EAE"))
    good = fed.responses("b", 1, 1, [4, 4])
    receipts = [fed.members["b"].submit_responses(fed.run.id, 1, 1, good) for _ in range(2)]
    assert [receipt.status for receipt in receipts] == ["accepted", "accepted"]
    fed.members["a"].submit_responses(fed.run.id, 1, 1, fed.responses("a", 1, 1, [0, 0]))
    fed.members["a"].exchanged(fed.run.id, 1, 1)
    (public_step,) = fed.view().rounds[1].public_steps
    assert (public_step.clients, public_step.replaced) == (2, 4)


def test_a_right_response_with_a_token_of_a_turn_is_not_donated(server: Server) -> None:
    """It is the member's own, and the log says that most of its right ones are of that kind."""
    fed = begun(server, clients=2)
    fed.members["b"].submit_responses(fed.run.id, 1, 1, encoded(fed, "b", "APE"))
    fed.members["a"].submit_responses(fed.run.id, 1, 1, fed.responses("a", 1, 1, [0, 0]))
    fed.members["a"].exchanged(fed.run.id, 1, 1)
    (public_step,) = fed.view().rounds[1].public_steps
    assert public_step.replaced == 0 and public_step.correct_share["b"] == 0.0
    assert not events(fed, "responses withheld")
    # The verifier reads the pad as text, so it must be where an answer may have words before it.
    fed = begun(server, clients=2)
    fed.members["b"].submit_responses(fed.run.id, 1, 1, encoded(fed, "b", "PAE"))
    fed.members["a"].submit_responses(fed.run.id, 1, 1, fed.responses("a", 1, 1, [0, 0]))
    fed.members["a"].exchanged(fed.run.id, 1, 1)
    (public_step,) = fed.view().rounds[1].public_steps
    assert public_step.replaced == 0 and public_step.correct_share["b"] == 1.0
    [withheld] = events(fed, "responses withheld")
    assert withheld.details["member"] == "b"
    assert withheld.details["withheld"] == withheld.details["right"] > 0
