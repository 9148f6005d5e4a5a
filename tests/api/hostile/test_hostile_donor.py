"""A member that lies about its responses, or donates too much."""

from collections.abc import Callable

import numpy as np
import pytest
from safetensors.numpy import load, save

from pubswap_protocol import paths
from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.tensors.responses import (
    Response,
    ResponseRules,
    decode_responses,
    encode_responses,
)
from pubswap_protocol.verifiers import VerifierPool
from support.coordinator.coordinator import TOKENIZER, Federation, Server, begun


def rules_of(fed: Federation) -> ResponseRules:
    """The rules for responses to public step 1."""
    prompts = fed.members["a"].public_step_prompts(fed.run.id, 1, 1).prompts
    return ResponseRules.of(fed.run.model, fed.run.settings, [p.index for p in prompts])


def exchanged(fed: Federation, name: str) -> list[list[Response]]:
    """The responses that a member gets back from the exchange."""
    return decode_responses(fed.members[name].exchanged(fed.run.id, 1, 1), rules_of(fed))


def send(fed: Federation, name: str, body: bytes) -> None:
    """Submit responses."""
    fed.members[name].submit_responses(fed.run.id, 1, 1, body)


def claims(edit: Callable[[dict[str, np.ndarray]], None]) -> Callable[[bytes], bytes]:
    """A function that edits the tensors of a responses file."""

    def edited(body: bytes) -> bytes:
        tensors = load(body)
        edit(tensors)
        return save(tensors)

    return edited


def add_rewards(tensors: dict[str, np.ndarray]) -> None:
    """Add a tensor of claimed rewards."""
    tensors["rewards"] = np.ones((2, 4), np.float32)


def mark_donated(tensors: dict[str, np.ndarray]) -> None:
    """Claim that all responses were donated by the coordinator."""
    tensors["donated"][:] = 1


@pytest.mark.parametrize("edit", [add_rewards, mark_donated])
def test_a_claim_is_refused(server: Server, edit: Callable[[dict[str, np.ndarray]], None]) -> None:
    """There is no field in which a member can claim how good its responses are."""
    fed = begun(server)
    with pytest.raises(PubSwapError) as caught:
        send(fed, "b", claims(edit)(fed.responses("b", 1, 1, [0, 0])))
    assert caught.value.code == "invalid_responses"


def test_a_claim_in_the_metadata_or_in_a_header_changes_nothing(server: Server) -> None:
    """Metadata is refused, and unknown headers are ignored."""
    fed = begun(server)
    body = fed.responses("b", 1, 1, [0, 0])
    path = paths.PUBLIC_STEP_RESPONSES.format(run=fed.run.id, round=1, public_step=1)
    with server.http(fed.tokens["b"]) as http:
        headers = {"X-Reward": "1", "X-Correct": "true", "Content-Type": paths.TENSORS_TYPE}
        assert http.post(path + "?correct=1", content=body, headers=headers).status_code == 200
    send(fed, "a", fed.responses("a", 1, 1, [0, 0]))
    assert not any(r.donated for group in exchanged(fed, "a") for r in group)
    (public_step,) = fed.view().rounds[1].public_steps
    assert public_step.correct_share == {"a": 0.0, "b": 0.0}
    assert public_step.replaced == 0
    other = begun(server)
    with pytest.raises(PubSwapError, match="metadata"):
        body = other.responses("b", 1, 1, [0, 0])
        other.members["b"].submit_responses(
            other.run.id, 1, 1, save(load(body), metadata={"rewards": "1"})
        )


def confident(fed: Federation, name: str, right: int) -> bytes:
    """Wrong responses with log-probability 0, whose texts claim that they are correct."""
    prompts = fed.members[name].public_step_prompts(fed.run.id, 1, 1).prompts
    tokenizer = load_tokenizer(TOKENIZER)
    lies = ["Correct!", "Reward: 1.0", "Answer: yes", "Answer: 1e9"]
    groups = []
    for entry in prompts:
        texts = [f"Answer: {entry.problem.answer}"] * right + lies[right:]
        group = []
        for text in texts:
            ids = [*tokenizer.encode(text).ids[:15], fed.run.model.eos_token_ids[0]]
            tokens = np.array(ids, np.int32)
            group.append(Response(tokens, np.zeros(len(tokens), np.float32)))
        groups.append(group)
    return encode_responses([entry.index for entry in prompts], groups)


def test_only_what_the_coordinator_itself_finds_right_is_donated(server: Server) -> None:
    """Confident lies are not donated, and the receiver's verifier accepts what it is given."""
    fed = begun(server)
    send(fed, "b", confident(fed, "b", right=1))
    send(fed, "a", fed.responses("a", 1, 1, [0, 0]))
    groups = exchanged(fed, "a")
    donated = [[r for r in group if r.donated] for group in groups]
    assert [len(group) for group in donated] == [1, 1]
    prompts = fed.members["a"].public_step_prompts(fed.run.id, 1, 1).prompts
    tokenizer = load_tokenizer(TOKENIZER)
    items = [
        (tokenizer.decode(r.tokens.tolist(), skip_special_tokens=True), entry.problem)
        for entry, group in zip(prompts, donated, strict=True)
        for r in group
    ]
    with VerifierPool(1, 5) as pool:
        assert pool.score_many("exact", items) == [1.0, 1.0]
    (public_step,) = fed.view().rounds[1].public_steps
    assert public_step.correct_share == {"a": 0.0, "b": 0.25}


def test_a_run_may_have_public_steps_without_an_exchange(server: Server) -> None:
    """Each client trains on its own responses to the public prompts."""
    fed = begun(server, method={"strategy": "none"})
    send(fed, "a", fed.responses("a", 1, 1, [0, 0]))
    send(fed, "b", fed.responses("b", 1, 1, [4, 4]))
    assert not any(r.donated for group in exchanged(fed, "a") for r in group)
    assert fed.view().rounds[1].public_steps[0].replaced == 0
