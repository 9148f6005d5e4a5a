"""Donated responses, as their receivers get them."""

from dataclasses import replace

import numpy as np

from pubswap_protocol.tensors.responses import ResponseRules, decode_responses, encode_responses
from support.coordinator.coordinator import Server, begun
from support.coordinator.places import on_sqlite


@on_sqlite
def test_a_donated_response_carries_its_donor_s_log_probabilities(
    server: Server,
) -> None:
    """Bit for bit, because `method.donor_ratio` = donor and decoupled divide by them."""
    fed = begun(server)
    asked = fed.members["a"].public_step_prompts(fed.run.id, 1, 1).prompts
    indices = [entry.index for entry in asked]
    rules = ResponseRules.of(fed.run.model, fed.run.settings, indices)
    sent: dict[bytes, bytes] = {}
    for number, (name, right) in enumerate({"a": [0, 0], "b": [4, 3]}.items()):
        groups = decode_responses(fed.responses(name, 1, 1, right), rules)
        rng = np.random.default_rng(number)
        drawn = [
            [replace(r, logprobs=-rng.random(len(r.tokens), dtype=np.float32)) for r in group]
            for group in groups
        ]
        fed.members[name].submit_responses(fed.run.id, 1, 1, encode_responses(rules.prompts, drawn))
        if name == "b":
            sent = {r.logprobs.tobytes(): r.tokens.tobytes() for group in drawn for r in group}
    data = fed.members["a"].exchanged(fed.run.id, 1, 1)
    peers = [r for group in decode_responses(data, rules) for r in group if r.donated]
    assert len(peers) >= 4
    assert all(sent[r.logprobs.tobytes()] == r.tokens.tobytes() for r in peers)
