"""How well a receiver detects responses that were not sampled, on the demo's model and problems.

    python benchmarks/sampling.py              # into results/sampling.json
    python benchmarks/sampling.py --cost       # only the check's cost; keeps the rest
    python benchmarks/sampling.py --seeds 0 1  # other seeds, print only
    python benchmarks/sampling.py --quick      # one seed and round, few problems, print only

Four clients train on their private problems and average their adapters after each round. In the
middle of the first round and at the end of the last one, all respond to the public problems, and
each judges the others' right responses with its current policy: these are honest. Then client 2's
responses to client 1 are replaced by each attack's. A score is the evidence against a set of
responses (see training/evidence.py).

An attack often produces exactly the tokens that the seed gives, above all where right answers are
nearly certain. `altered` is the share of its right responses that differ. `auc_single` and
`auc_pooled` are how often the score of one or of 32 altered responses is above that of as many
honest ones. `detected` is the share of verdicts on 128 responses, altered or not, that doubt the
donor. `false_alarm_rate` is over all clients' verdicts on honest responses; `false_alarms` has each
seed's mean and its worst pair.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from pubswap_client.demo.demos import MODEL, RUN_FILE, TINY
from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.policy import Policy
from pubswap_client.privacy.separation import auc
from pubswap_client.recipes.recipe import load_recipe
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_client.training.evidence import response_evidence
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.trainer import LocalTrainer, seeded
from pubswap_client.training.update import UpdateContext, update
from pubswap_protocol.draws import seed_for
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter, initial_adapter
from pubswap_protocol.tensors.responses import Response
from pubswap_protocol.verifiers.registry import score
from pubswap_server.exchange.sampling import ENOUGH, LIMIT, doubtful

RESULT = Path(__file__).parent / "results" / "sampling.json"
SEEDS = (8,)  # the constants of the evidence were chosen on seed 0
POOLS, POOLED = 1000, 32
JUDGE, DONOR = "client-1", "client-2"
Groups = list[list[Response]]
Scores = NDArray[np.float64]  # (n,): the evidence against each response, in nats


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
        split = TINY.split(self.settings.seed, self.settings.clients).named()
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
        updates, engine = UpdateContext(policy, TokenBudget(4096)), TransformersEngine(policy)
        return LocalTrainer(updates, engine, name, private, self.scored)

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

    def judged(self, judge: Adapter, groups: Groups, seed: int) -> Scores:
        """The evidence on each response found by a receiver with the adapter `judge`."""
        self.policy.load_adapter(judge)
        batch, temperature = self.batch(seeded(groups, seed)), self.settings.grpo.temperature
        return response_evidence(self.policy, batch, temperature, 1 << 14).numpy()

    def batch(self, groups: Groups) -> Batch:
        """A batch with rewards alternating between 0 and 1."""
        rewards = [[float(k % 2) for k in range(len(group))] for group in groups]
        return collate([Group(*each) for each in zip(self.prompts, groups, rewards, strict=False)])


def response(tokens: NDArray[np.integer]) -> Response:
    """A response of these tokens; nobody reads its log-probabilities."""
    return Response(tokens.astype(np.int32), np.zeros(len(tokens), np.float32))


@dataclass(frozen=True)
class Scene:
    """A moment of a run: the clients' policies, of which one judges and one may attack."""

    lab: Lab
    clients: dict[str, Adapter]
    seeds: dict[str, int]  # each client's sampling seed
    start: Adapter  # of this round

    def fair(self) -> dict[tuple[str, str], Scores]:
        """Each client's evidence on every other's honest responses, by judge and donor."""
        scores = {}
        for donor, adapter in self.clients.items():
            seed = self.seeds[donor]
            groups = self.honest if donor == DONOR else self.lab.sample(adapter, seed)
            judges = {name: policy for name, policy in self.clients.items() if name != donor}
            for judge, other in judges.items():
                found = self.lab.judged(other, groups, seed)
                scores[judge, donor] = found[self.counted(groups)]
        return scores

    def counted(self, groups: Groups) -> NDArray[np.bool_]:
        """Which responses (P K,) count: the right ones, or all if none is right."""
        right = self.lab.right(groups).flatten()
        return right if right.any() else ~right

    def altered(self, groups: Groups) -> NDArray[np.bool_]:
        """Which responses (P K,) differ from what their seeds give."""
        pairs = zip(chain(*groups), chain(*self.honest), strict=True)
        return np.array([one.tokens.tolist() != other.tokens.tolist() for one, other in pairs])

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
    def attacks(self) -> dict[str, Callable[[], Groups]]:
        """Each attack's responses, by the attack's name."""
        donor, seed = self.clients[DONOR], self.seeds[DONOR]
        return {
            "hand-written text": self.lab.written,
            "best of 8": self.until_right,
            "half rewritten": lambda: self.lab.finished(donor, self.honest, seed + 1),
            "greedy": lambda: self.lab.sample(donor, seed, 1e-4),
            "replayed": lambda: self.lab.sample(self.start, seed + 2),
        }


def scenes(lab: Lab, rounds: int) -> Iterator[Scene]:
    """The middle of the first round, and the end of the last one."""
    for number in range(1, rounds + 1):
        start, first = lab.adapter, number == 1
        adapters = lab.train(number, lab.settings.local_steps // (2 if first else 1))
        if number in (1, rounds):
            seeds = {name: seed_for(number, index) >> 12 for index, name in enumerate(adapters)}
            yield Scene(lab, adapters, seeds, start)
        lab.average(lab.train(number, lab.settings.local_steps) if first else adapters)


def pooled(scores: Scores, size: int, rng: np.random.Generator) -> Scores:
    """The scores (POOLS,) of pools of `size` responses, each drawn without replacement."""
    drawn = rng.random((POOLS, len(scores))).argsort(axis=1)[:, :size]
    summed: Scores = scores[drawn].sum(axis=1)
    return summed


def alarms(pools: Scores) -> float:
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
            update(UpdateContext(lab.policy, TokenBudget(4096)), optimizer, batch, [])
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
    honest: list[float] = []
    for seed in seeds[:1] if quick else seeds:
        lab = Lab(problems=48 if quick else 160, seed=seed)
        alarmed[seed] = []
        for scene in scenes(lab, 1 if quick else 3):
            scores = scene.fair()
            alarmed[seed] += [alarms(pooled(one, ENOUGH, rng)) for one in scores.values()]
            mine = [one for (judge, _), one in scores.items() if judge == JUDGE]
            honest += [float(one.mean()) for one in mine]
            for name, make in scene.attacks.items():
                result_of = SceneResult.of(scene, make(), np.concatenate(mine))
                attacks.setdefault(name, []).append(result_of)
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
        "honest": honest,
        "attacks": {
            name: {
                **{key: float(np.mean(each)) for key, each in _figures(scenes_, rng).items()},
                "evidence": [float(one.scores.mean()) for one in scenes_],
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
    fair: Scores  # of honest donors, by the same judge

    @classmethod
    def of(cls, scene: Scene, groups: Groups, fair: Scores) -> "SceneResult":
        """The judge's evidence on the responses of an attack."""
        counted = scene.counted(groups)
        scores = scene.lab.judged(scene.clients[JUDGE], groups, scene.seeds[DONOR])
        return cls(scores[counted], scene.altered(groups)[counted], fair)


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
        "detected": [alarms(pooled(result.scores, ENOUGH, rng)) for result in results],
    }


def _show(result: dict[str, object]) -> None:
    keys = ("altered", "auc_single", "auc_pooled", "detected")
    table = Table("attack", *(key.removeprefix("auc_") for key in keys), "evidence")
    attacks = result["attacks"]
    assert isinstance(attacks, dict)
    for name, figures in attacks.items():
        evidence = statistics.mean(figures["evidence"])
        table.add_row(name, *(f"{figures[key]:.4f}" for key in keys), f"{evidence:.2f}")
    console = Console(width=120)
    console.print(table)
    console.print({name: value for name, value in result.items() if name != "attacks"})


if __name__ == "__main__":
    main()
