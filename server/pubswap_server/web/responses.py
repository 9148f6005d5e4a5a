"""The responses of a closed exchange to one prompt, as people read them."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from pubswap_protocol.errors import NotFound
from pubswap_protocol.tensors.responses import decode_responses
from pubswap_protocol.tokenizer import decode_all, load_tokenizer
from pubswap_server.database.tables import RunRow, SetRow
from pubswap_server.exchange import exchanges
from pubswap_server.exchange.answers import ClosedExchange
from pubswap_server.services import Services

MOST_MEMBERS = 40  # on a page


@dataclass(frozen=True, slots=True)
class ShownResponse:
    """`donated` counts the organisations that train on it in place of one of theirs."""

    text: str
    correct: bool
    donated: int


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """A member's own responses; `replaced` counts those that it trains on a peer's instead of."""

    member: str
    responses: list[ShownResponse]
    replaced: int


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """One prompt of a public step, of so many."""

    prompt: int
    prompts: int
    text: str
    answer: str
    groups: list[ShownGroup]
    more_members: int


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """What the database knows of it; the bytes are read elsewhere."""

    closed: ClosedExchange
    prompt: int
    public: str
    tokenizer: str

    def load(self, services: Services) -> ShownPrompt:
        """Read and decode; raises DamagedBlob."""
        exchange, rules = self.closed.exchange, self.closed.rules
        problem = services.problems(self.public)[rules.prompts[self.prompt]]
        tokenizer = load_tokenizer(services.blobs.read(self.tokenizer))
        members = sorted(self.closed.digests)
        donated: dict[tuple[str, int], int] = {}
        replaced = dict.fromkeys(members, 0)
        if exchange.candidates is None:  # else each member chooses for itself
            for member in members:
                for choice in exchange.choices(member)[self.prompt]:
                    if choice.client != member:
                        key = choice.client, choice.index
                        donated[key] = donated.get(key, 0) + 1
                        replaced[member] += 1
        groups = []
        for member in members[:MOST_MEMBERS]:
            data = services.blobs.read(self.closed.digests[member])
            group = decode_responses(data, rules)[self.prompt]
            texts = decode_all(tokenizer, (response.tokens for response in group))
            verdicts = exchange.correct[member][self.prompt].tolist()
            responses = [
                ShownResponse(text, correct, donated.get((member, index), 0))
                for index, (text, correct) in enumerate(zip(texts, verdicts, strict=True))
            ]
            groups.append(ShownGroup(member, responses, replaced[member]))
        return ShownPrompt(
            self.prompt,
            len(rules.prompts),
            problem.prompt,
            problem.answer,
            groups,
            max(0, len(members) - MOST_MEMBERS),
        )


def read_prompt(session: Session, run: RunRow, round_: int, swap: int, prompt: int) -> StoredPrompt:
    """Raises NotFound, or RoundClosed for a step whose responses are not there (any more)."""
    closed = exchanges.closed(session, run, round_, swap)
    if prompt >= len(closed.rules.prompts):
        raise NotFound(f"The public step has {len(closed.rules.prompts)} prompts.")
    public = session.get_one(SetRow, (run.id, "public")).digest
    return StoredPrompt(closed, prompt, public, run.tokenizer or "")
