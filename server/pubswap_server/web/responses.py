"""The responses of a closed exchange to one prompt, decoded to text."""

from collections import Counter
from typing import Any

from sqlalchemy.orm import Session

from pubswap_protocol.errors import NotFound
from pubswap_protocol.tensors.responses import decode_responses
from pubswap_server.database.tables import RunRow, SetRow
from pubswap_server.exchange import exchanges
from pubswap_server.exchange.cache import ClosedExchange
from pubswap_server.services import Services

MAX_MEMBERS = 40  # on a page

Stored = tuple[ClosedExchange, str, str]
"""An exchange, and the digests of the public set and of the tokenizer."""


def read_stored(
    session: Session, run: RunRow, round_: int, public_step: int, prompt: int
) -> Stored:
    """Raises NotFound, or RoundClosed if the step has no responses (any more)."""
    closed = exchanges.closed(session, run, round_, public_step)
    if prompt >= len(closed.rules.prompts):
        raise NotFound(f"The public step has {len(closed.rules.prompts)} prompts.")
    public = session.get_one(SetRow, (run.id, "public")).digest
    return closed, public, run.tokenizer or ""


def shown(services: Services, stored: Stored, prompt: int) -> dict[str, Any]:
    """The template's values for one prompt; raises DamagedBlob.

    `donated` counts the organisations that train on a response in place of one of their own.
    `replaced` counts a member's own responses replaced by peers'.
    """
    closed, public, tokenizer_digest = stored
    pool, rules, members = closed.pool, closed.rules, sorted(closed.digests)
    problem = services.problems(public)[rules.prompts[prompt]]
    tokenizer = services.tokenizer(tokenizer_digest)
    donated, replaced = Counter[tuple[str, int]](), Counter[str]()
    for member in members:
        for choice in closed.strategy.allowed(pool, prompt, member):
            if choice.client != member:
                donated[choice.client, choice.index] += 1
                replaced[member] += 1
    groups = []
    for member in members[:MAX_MEMBERS]:
        data = services.blobs.read(closed.digests[member])
        group = decode_responses(data, rules)[prompt]
        texts = [rules.form.text(tokenizer, response.tokens) for response in group]
        verdicts = pool.correct[member][prompt].tolist()
        responses = [
            {"text": text, "correct": correct, "donated": donated[member, index]}
            for index, (text, correct) in enumerate(zip(texts, verdicts, strict=True))
        ]
        groups.append({"member": member, "responses": responses, "replaced": replaced[member]})
    return {
        "prompt": prompt,
        "prompts": len(rules.prompts),
        "text": problem.text,
        "answer": problem.answer,
        "groups": groups,
        "more_members": max(0, len(members) - MAX_MEMBERS),
    }
