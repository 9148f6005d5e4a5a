"""How well a receiver detects responses that were not sampled, on the demo's model and problems.

    python tests/benchmarks/sampling.py              # into results/sampling.json
    python tests/benchmarks/sampling.py --cost       # only the check's cost; keeps the rest
    python tests/benchmarks/sampling.py --seeds 0 1  # other seeds, print only
    python tests/benchmarks/sampling.py --quick      # one seed and round, few problems, print only

For each seed, four clients train on their private problems and average their adapters after each
round. In the middle of the first round and at the end of the last one, all respond to the public
problems, and each judges the others' right responses with its current policy: these are honest.
Then client 2's responses to client 1 are replaced by each attack's, which claims the
log-probabilities that its responses have under the policy that drew them. A score is the larger of
the two kinds of evidence against a set of responses (see docs/learning.md), reported for 32
responses at a time.

An attack often produces exactly the tokens that the seed gives, above all where right answers are
nearly certain. `altered` is the share of its right responses that differ. `auc_single` and
`auc_pooled` are how often the score of one or of 32 altered responses is above that of as many
honest ones; `auc_sent` is `auc_pooled` for all responses sent, altered or not. `auc_verdict` is the
same for the 128 responses of a verdict, and `detected` is the share of such verdicts that doubt the
donor. `auc_forged` is `auc_pooled` with the forged log-probabilities that hide the attack best:
those of the donor's own policy, certainty, or the smallest ones with which the noise would choose
each token. `false_alarm_rate` is over all clients' verdicts on honest responses; `false_alarms` has
each seed's mean and its worst pair.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from pubswap_client.demo.federation import MODEL, RUN_FILE
from pubswap_client.demo.tasks import demo_problems
from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.logprobs import plan_of, score_pack
from pubswap_client.policy.packing import pack
from pubswap_client.policy.policy import Policy
from pubswap_client.privacy.separation import auc
from pubswap_client.recipes.recipe import load_recipe
from pubswap_client.rollout.gumbel import gumbel_noise
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_client.training.evidence import (
    KINDS,
    EvidenceTable,
    calibrated,
    response_evidence,
)
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.trainer import LocalTrainer, seeded
from pubswap_client.training.update import update
from pubswap_protocol.draws import seed_for
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter, initial_adapter
from pubswap_protocol.tensors.responses import Response
from pubswap_protocol.verifiers.registry import score
from pubswap_server.exchange.sampling import ENOUGH, LIMIT, doubtful

RESULT = Path(__file__).parent / "results" / "sampling.json"
SEEDS = (7, 8, 9)  # the constants of the evidence were chosen on other seeds
POOLS, POOLED = 1000, 32
JUDGE, DONOR = "client-1", "client-2"
Groups = list[list[Response]]
Scores = NDArray[np.float64]  # (n, 5): evidence of each of KINDS against each response, in nats


@dataclass
class Lab:
    """Clients that train side by side, and a policy to sample and to judge with."""

    problems: int
    seed: int
    settings: RunSettings = field(init=False)
    adapter: Adapter = field(init=False)

    def __post_init__(self) -> None:
        recipe = load_recipe(RUN_FILE, {"seed": self.seed})
        values = {name: getattr(recipe, name) for name in RunSettings.model_fields}
        self.settings = RunSettings(**values)
        split = demo_problems(self.settings.seed, self.settings.clients).named()
        self.public = split.pop("public")[: self.problems]
        split.pop("test")
        self.card = model_card(MODEL, self.settings.lora, "demo", None)
        self.clients = {name: self._trainer(name, private) for name, private in split.items()}
        self.policy = self._load()
        self.prompts = [self.policy.encode(problem.prompt) for problem in self.public]
        self.adapter = initial_adapter(self.card.layout, self.settings.seed)

    def _load(self) -> Policy:
        return Policy.load(MODEL, self.card, self.settings, device="cpu")

    def _trainer(self, name: str, private: Sequence[Problem]) -> LocalTrainer:
        policy = self._load()
        engine, budget = TransformersEngine(policy), TokenBudget(4096)
        return LocalTrainer(policy, engine, self.settings, name, private, self.scored, budget)

    def scored(self, cases: Sequence[tuple[str, Problem]]) -> list[float]:
        """Rewards, computed in this process because the problems' verifiers are fast."""
        return [score(case.verifier or self.settings.verifier, text, case) for text, case in cases]

    def train(self, round_: int, steps: int) -> dict[str, Adapter]:
        """The clients' adapters after so many steps of a round from the global adapter."""
        for trainer in self.clients.values():
            trainer.begin_round(round_, self.adapter)
            for step in range(1, steps + 1):
                trainer.private_step(step)
        return {name: trainer.adapter() for name, trainer in self.clients.items()}

    def average(self, adapters: dict[str, Adapter]) -> None:
        """Make the mean the global adapter."""
        self.adapter = {
            name: np.mean([each[name] for each in adapters.values()], axis=0)
            for name in self.adapter
        }

    def sample(self, adapter: Adapter, seed: int, temperature: float | None = None) -> Groups:
        """Sample K responses to each public problem with the noise of a sampling seed."""
        self.policy.load_adapter(adapter)
        grpo = self.settings.grpo
        sampling = SamplingParameters(
            *(grpo.responses_per_prompt, grpo.max_response_tokens),
            *(temperature or grpo.temperature, seed),
            gumbel=True,
        )
        return TransformersEngine(self.policy).generate(self.prompts, sampling)

    def finished(self, adapter: Adapter, groups: Groups, seed: int) -> Groups:
        """The responses with their second half sampled again with other noise."""
        self.policy.load_adapter(adapter)
        grpo, halves = self.settings.grpo, []
        for prompt, group in zip(self.prompts, groups, strict=True):
            halves += [[*prompt, *one.tokens[: len(one.tokens) // 2].tolist()] for one in group]
        sampling = SamplingParameters(
            1, grpo.max_response_tokens // 2, grpo.temperature, seed, gumbel=True
        )
        ends = TransformersEngine(self.policy).generate(halves, sampling)
        more = iter(end for [end] in ends)
        return [
            [
                response(np.concatenate([one.tokens[: len(one.tokens) // 2], next(more).tokens]))
                for one in group
            ]
            for group in groups
        ]

    def written(self) -> Groups:
        """The right answers in words that no policy sampled."""
        eos = self.card.eos_token_ids[0]
        count = self.settings.grpo.responses_per_prompt
        answers = [self.policy.encode(f"I say {one.answer}") for one in self.public]
        return [[response(np.array([*answer, eos]))] * count for answer in answers]

    def right(self, groups: Groups) -> NDArray[np.bool_]:
        """Which responses (P, K) are right."""
        texts = iter(self.policy.decode([one for group in groups for one in group]))
        cases = [
            (next(texts), problem)
            for problem, group in zip(self.public, groups, strict=True)
            for _ in group
        ]
        return np.array(self.scored(cases)).reshape(len(groups), -1) == 1

    def claimed(self, adapter: Adapter, groups: Groups, seed: int, raised: bool = False) -> Groups:
        """The responses with the log-probabilities that they have under this adapter.

        With `raised`, logits are first raised just enough for the seed's noise to choose each
        token.
        """
        self.policy.load_adapter(adapter)
        batch, temperature = self.batch(seeded(groups, seed)), self.settings.grpo.temperature
        claims = torch.zeros_like(batch.behaviour)
        for rows in plan_of(self.policy, batch, range(batch.rows), 1 << 14):
            part, seen = pack(batch, rows, self.policy.device), []

            def look(_rows: slice, logits: torch.Tensor, seen: list[torch.Tensor] = seen) -> None:
                seen.append(logits.clone())

            with torch.no_grad(), self.policy.packed():
                score_pack(self.policy, part, temperature, observe=look)
            logits, sent = torch.cat(seen), part.tokens[:, None]
            if raised:
                noised = logits + gumbel_noise(
                    torch.cat([batch.seeds[row].expand(batch.lengths[row]) for row in rows])[
                        :, None
                    ],
                    torch.cat([_positions(batch, row) for row in rows])[:, None],
                    torch.arange(logits.shape[1]),
                )
                short = noised.amax(dim=1, keepdim=True) - noised.gather(1, sent) + 0.01
                logits.scatter_add_(1, sent, short.clamp(min=0))
            chosen = logits.gather(1, sent)[:, 0] - logits.logsumexp(dim=1)
            claims.view(-1)[part.indices] = chosen
        sent_logprobs = iter(claims.numpy())
        return [
            [replace(one, logprobs=next(sent_logprobs)[: len(one.tokens)]) for one in g]
            for g in groups
        ]

    def judged(self, judge: Adapter, groups: Groups, seed: int) -> EvidenceTable:
        """The evidence on each response found by a receiver with the adapter `judge`."""
        self.policy.load_adapter(judge)
        batch = self.batch(seeded(groups, seed))
        return response_evidence(self.policy, batch, self.settings.grpo.temperature, 1 << 14)

    def batch(self, groups: Groups) -> Batch:
        """A batch with rewards alternating between 0 and 1."""
        rewards = [[float(k % 2) for k in range(len(group))] for group in groups]
        return collate(
            [Group(*each) for each in zip(self.prompts, groups, rewards, strict=False)],
            self.settings.grpo.advantage_epsilon,
        )


def response(tokens: NDArray[np.integer]) -> Response:
    """A response that claims probability 1 for every token."""
    return Response(tokens.astype(np.int32), np.zeros(len(tokens), np.float32))


def certain(groups: Groups) -> Groups:
    """The responses with log-probabilities of 0."""
    return [[response(one.tokens) for one in group] for group in groups]


def _positions(batch: Batch, row: int) -> torch.Tensor:
    first = batch.prompt_lengths[row // batch.group_size] - 1
    return torch.arange(first, first + batch.lengths[row])


@dataclass(frozen=True)
class Sight:
    """A judge's evidence on a donor's responses, and which of them count."""

    table: EvidenceTable
    counted: NDArray[np.bool_]

    @property
    def scale(self) -> float:
        """How far the donor's log-odds are from the judge's."""
        [scale] = self.table.scales([np.flatnonzero(self.counted).tolist()])
        return scale

    def scores(self, peers: "Iterable[Sight]") -> Scores:
        """Scores calibrated by these donors and this one."""
        near = calibrated([self.scale, *(peer.scale for peer in peers)])
        scores: Scores = self.table.sums(near).numpy()[self.counted]
        return scores


@dataclass(frozen=True)
class Scene:
    """A moment of a run: the clients' policies, of which one judges and one may attack."""

    lab: Lab
    clients: dict[str, Adapter]
    seeds: dict[str, int]  # each client's sampling seed
    start: Adapter  # of this round
    previous: Adapter | None  # the start of the round before
    base: Adapter

    def fair(self) -> "dict[tuple[str, str], Sight]":
        """Each client's evidence on every other's honest responses, by judge and donor."""
        sights = {}
        for donor, adapter in self.clients.items():
            seed = self.seeds[donor]
            groups = self.honest if donor == DONOR else self.lab.sample(adapter, seed)
            judges = {name: policy for name, policy in self.clients.items() if name != donor}
            for judge, other in judges.items():
                table = self.lab.judged(other, groups, seed)
                sights[judge, donor] = Sight(table, self.counted(groups))
        return sights

    def counted(self, groups: Groups) -> NDArray[np.bool_]:
        """Which responses (P K,) count: the right ones, or all if none is right."""
        right = self.lab.right(groups).flatten()
        return right if right.any() else ~right

    def altered(self, groups: Groups) -> NDArray[np.bool_]:
        """Which responses (P K,) differ from what their seeds give."""
        pairs = zip(chain(*groups), chain(*self.honest), strict=True)
        return np.array([one.tokens.tolist() != other.tokens.tolist() for one, other in pairs])

    def forged(self, groups: Groups, adapter: Adapter) -> list[Groups]:
        """The same responses with forged log-probabilities that may hide the attack."""
        claimed, seed = self.lab.claimed, self.seeds[DONOR]
        return [
            claimed(self.clients[DONOR], groups, seed),
            certain(groups),
            claimed(adapter, groups, seed, raised=True),
        ]

    @cached_property
    def honest(self) -> Groups:
        """The responses that the donor should send."""
        return self.lab.sample(self.clients[DONOR], self.seeds[DONOR])

    def until_right(self) -> Groups:
        """Honest responses with each wrong one replaced by the first right one of seven more."""
        donor, seed = self.clients[DONOR], self.seeds[DONOR]
        groups = [list(group) for group in self.honest]
        right = self.lab.right(self.honest)
        for number in range(7):
            others = self.lab.sample(donor, seed_for(seed, number))
            better = self.lab.right(others) & ~right
            for prompt, index in np.argwhere(better):
                groups[prompt][index] = others[prompt][index]
            right |= better
        return groups

    @property
    def attacks(self) -> dict[str, tuple[Callable[[], Groups], Adapter]]:
        """Each attack's responses and the policy that drew them, by the attack's name."""
        donor, seed = self.clients[DONOR], self.seeds[DONOR]
        sample, finished = self.lab.sample, self.lab.finished
        attacks: dict[str, tuple[Callable[[], Groups], Adapter]] = {
            "hand-written text": (self.lab.written, donor),
            "best of 8": (self.until_right, donor),
            "half rewritten": (lambda: finished(donor, self.honest, seed + 1), donor),
            "greedy": (partial(sample, donor, seed, 1e-4), donor),
            "replayed": (partial(sample, self.start, seed + 2), self.start),
            "temperature 1.0": (partial(sample, donor, seed, 1.0), donor),
            "temperature 0.4": (partial(sample, donor, seed, 0.4), donor),
        }
        if self.previous is not None:  # in the first round the base is its start, with none before
            attacks["base model"] = (partial(sample, self.base, seed), self.base)
            attacks["stale policy"] = (partial(sample, self.previous, seed), self.previous)
        return attacks


def scenes(lab: Lab, rounds: int) -> Iterator[Scene]:
    """The middle of the first round, and the end of the last one."""
    base, previous = lab.adapter, None
    for number in range(1, rounds + 1):
        start, first = lab.adapter, number == 1
        adapters = lab.train(number, lab.settings.local_steps // (2 if first else 1))
        if number in (1, rounds):
            seeds = {name: seed_for(number, index) >> 12 for index, name in enumerate(adapters)}
            yield Scene(lab, adapters, seeds, start, previous, base)
        previous = start
        lab.average(lab.train(number, lab.settings.local_steps) if first else adapters)


def pooled(scores: Scores, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """The scores (POOLS,) of pools of `size` responses, each drawn without replacement.

    This is what a coordinator computes from reports on POOLED responses each.
    """
    drawn = rng.random((POOLS, len(scores))).argsort(axis=1)[:, :size]
    return score_of(scores[drawn])


def score_of(pools: NDArray[np.float64]) -> NDArray[np.float64]:
    """The scores (M,) of M pools of responses (M, n, 5)."""
    reports = np.add.reduceat(pools, np.arange(0, pools.shape[1], POOLED), axis=1)
    noise, policy = (
        np.logaddexp.reduce(kinds, axis=2) - np.log(kinds.shape[2])
        for kinds in (reports[:, :, :2], reports[:, :, 2:])
    )
    return np.maximum(noise.sum(axis=1), policy.sum(axis=1))


def alarms(pools: NDArray[np.float64]) -> float:
    """The share of verdicts that doubt the donor."""
    return float(np.mean([bool(doubtful(ENOUGH, pool)) for pool in pools.tolist()]))


def cost_share(repeats: int) -> float:
    """The share of an update's CPU time, on one thread, spent on checking 24 of 64 responses."""
    lab = Lab(problems=48, seed=SEEDS[0])
    groups = seeded(lab.sample(lab.adapter, 1)[:8], 1)
    donated = [
        [replace(one, donated=k < 3, donor=k + 1) for k, one in enumerate(g)] for g in groups
    ]
    plain = [[one.anonymous() for one in group] for group in donated]
    batches = {"checked": lab.batch(donated), "plain": lab.batch(plain)}
    times: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(repeats):
        for name, batch in batches.items():
            optimizer = torch.optim.AdamW(lab.policy.trainable(), lr=0.0)
            began = time.process_time()
            update(lab.policy, optimizer, batch, lab.settings, [], TokenBudget(4096))
            times[name].append(time.process_time() - began)
    # Compare neighbours in time, because the machine's speed varies.
    pairs = zip(times["checked"], times["plain"], strict=True)
    return max(0.0, statistics.median(1 - plain / checked for checked, plain in pairs))


def main() -> None:
    """Measure, print and save the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smaller run of two minutes")
    parser.add_argument("--cost", action="store_true", help="only the cost of the check")
    parser.add_argument("--seeds", type=int, nargs="+", help="other seeds; saves nothing")
    options = parser.parse_args()
    quick = options.quick
    seeds = options.seeds or SEEDS
    torch.set_num_threads(1)
    if options.cost:
        figures = json.loads(RESULT.read_text(encoding="utf-8")) | {"cost_share": cost_share(31)}
        RESULT.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        return
    rng = np.random.default_rng(0)
    alarmed: dict[int, list[float]] = {}
    attacks: dict[str, list[SceneResult]] = {}
    honest: list[list[float]] = []
    for seed in seeds[:1] if quick else seeds:
        lab = Lab(problems=48 if quick else 160, seed=seed)
        alarmed[seed] = []
        for scene in scenes(lab, 1 if quick else 3):
            fair = scene.fair()
            scores = {key: sight.scores(others(fair, *key)) for key, sight in fair.items()}
            alarmed[seed] += [alarms(pooled(one, ENOUGH, rng)) for one in scores.values()]
            mine = [one for (judge, _), one in scores.items() if judge == JUDGE]
            honest += [one.mean(axis=0).tolist() for one in mine]
            peers, all_mine = others(fair, JUDGE, DONOR), np.concatenate(mine)
            for name, attack in scene.attacks.items():
                attacks.setdefault(name, []).append(SceneResult.of(scene, *attack, peers, all_mine))
        Console().print(f"seed {seed}: honest donors doubted {np.mean(alarmed[seed]):.5f}")
    result = {
        "false_alarm_rate": float(np.mean([rate for rates in alarmed.values() for rate in rates])),
        "false_alarms": {
            str(seed): {"mean": float(np.mean(rates)), "worst": max(rates)}
            for seed, rates in alarmed.items()
        },
        "cost_share": cost_share(5 if quick else 31),
        "limit": LIMIT,
        "responses_pooled": POOLED,
        "responses_of_a_verdict": ENOUGH,
        "honest": _means(honest),
        "attacks": {
            name: {
                **{key: float(np.mean(each)) for key, each in _figures(scenes_, rng).items()},
                **_means([one.scores.mean(axis=0).tolist() for one in scenes_]),
            }
            for name, scenes_ in attacks.items()
        },
    }
    _show(result)
    if not quick and not options.seeds:
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class SceneResult:
    """The results of an attack in a scene, on the responses that count."""

    scores: Scores
    altered: NDArray[np.bool_]
    forged: list[Scores]  # one for each way of forging the log-probabilities
    fair: Scores  # of honest donors, by the same judge

    @classmethod
    def of(
        cls,
        scene: Scene,
        make: Callable[[], Groups],
        adapter: Adapter,
        peers: Sequence[Sight],
        fair: Scores,
    ) -> "SceneResult":
        """Carry out the attack, whose responses the policy with this adapter drew."""
        lab, seed, groups = scene.lab, scene.seeds[DONOR], make()
        judge, counted = scene.clients[JUDGE], scene.counted(groups)

        def judged(sent: Groups) -> Scores:
            return Sight(lab.judged(judge, sent, seed), counted).scores(peers)

        return cls(
            judged(lab.claimed(adapter, groups, seed)),
            scene.altered(groups)[counted],
            [judged(sent) for sent in scene.forged(groups, adapter)],
            fair,
        )


def others(fair: Mapping[tuple[str, str], Sight], judge: str, donor: str) -> list[Sight]:
    """A judge's evidence on its other donors."""
    return [one for (by, of), one in fair.items() if by == judge and of != donor]


def _means(by_scene: list[list[float]]) -> dict[str, list[float]]:
    """Each kind of evidence against a response, by scene."""
    return dict(zip(KINDS, map(list, zip(*by_scene, strict=True)), strict=True))


def _figures(results: list[SceneResult], rng: np.random.Generator) -> dict[str, list[float]]:
    """The figures by scene, comparing the attack with the scene's honest donors."""

    def together(scores: Scores, fair: Scores, size: int = POOLED) -> float:
        return auc(pooled(scores, size, rng), pooled(fair, size, rng))

    return {
        "altered": [float(result.altered.mean()) for result in results],
        "auc_single": [
            together(result.scores[result.altered], result.fair, 1) for result in results
        ],
        "auc_pooled": [together(result.scores[result.altered], result.fair) for result in results],
        "auc_sent": [together(result.scores, result.fair) for result in results],
        "auc_verdict": [together(result.scores, result.fair, ENOUGH) for result in results],
        "detected": [alarms(pooled(result.scores, ENOUGH, rng)) for result in results],
        "auc_forged": [
            min(together(scores[result.altered], result.fair) for scores in result.forged)
            for result in results
        ],
    }


def _show(result: dict[str, object]) -> None:
    keys = ("altered", "auc_single", "auc_pooled", "auc_sent", "auc_verdict", "detected")
    keys += ("auc_forged",)
    table = Table("attack", *(key.removeprefix("auc_") for key in keys), "evidence")
    attacks = result["attacks"]
    assert isinstance(attacks, dict)
    for name, figures in attacks.items():
        evidence = " ".join(f"{statistics.mean(figures[kind]):.2f}" for kind in KINDS)
        table.add_row(name, *(f"{figures[key]:.4f}" for key in keys), evidence)
    console = Console(width=120)
    console.print(table)
    console.print({name: value for name, value in result.items() if name != "attacks"})


if __name__ == "__main__":
    main()
