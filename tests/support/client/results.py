"""Results of simulated runs with figures chosen by a test, and whole stores of them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pubswap_protocol.command_line.keys import nested
from pubswap_protocol.command_line.removed import removal, removed_value
from pubswap_protocol.draws import rng_for
from pubswap_protocol.messages import (
    Drift,
    Evaluation,
    MemberView,
    PublicStepSummary,
    Role,
    RoundSummary,
    RunState,
    Traffic,
    WholeRun,
)
from pubswap_protocol.model import ModelCard
from pubswap_protocol.schedule import public_steps_per_round
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterLayout
from pubswap_simulation.results import RESULT, RUNS, Members, Result, Value

STEPS = 24
TOPICS = ("algebra", "counting", "geometry")
CARD = ModelCard(
    source="tiny",
    architecture="Qwen3ForCausalLM",
    vocabulary=64,
    eos_token_ids=(2,),
    parameters=5000,
    config_digest="sha256:" + "c" * 64,
    tokenizer_digest="sha256:" + "a" * 64,
    weights_digest="sha256:" + "b" * 64,
    layout=AdapterLayout(
        tensors={
            "base_model.model.up.lora_A.weight": (2, 10),
            "base_model.model.up.lora_B.weight": (30, 2),
            "base_model.model.down.lora_A.weight": (2, 30),
            "base_model.model.down.lora_B.weight": (10, 2),
        }
    ),
)
ADAPTER_BYTES = 4 * (2 * 10 + 30 * 2) * 2


def make_result(
    scores: Sequence[float],
    tau: int = 12,
    seed: int = 0,
    recipe: str = "small",
    members: Members = "federated",
    client: str | None = None,
    drift: float = 1.0,
    replaced: float = 0.25,
    setting: Mapping[str, Value] | None = None,
) -> Result:
    """A result with these pass@1 after rounds 0, 1, ...; `setting` also sets the run's settings.

    Those that were removed since are in `setting` only.

    Pairwise drift is `drift` in each round. In each public step alpha is `replaced` for the first
    client and twice that for the second.
    """
    setting = dict(setting or {}) | {"local_steps": tau}
    clients = 1 if members in ("alone", "pooled") else 2
    table: dict[str, Any] = {"seed": seed, "rounds": len(scores) - 1, "clients": clients}
    if members != "federated":
        setting["members"] = members
    if clients == 1:
        table["method"] = "fedavg"
    for key, value in setting.items():
        if (
            key != "members"
            and not key.startswith("data.")
            and not (removal(key) or removed_value(key, value))
        ):
            table[key] = value
    settings = RunSettings.model_validate(nested(table))
    rounds = [
        _round(settings, number, score, drift, replaced) for number, score in enumerate(scores)
    ]
    names = [f"client-{number + 1}" for number in range(clients)]
    sent = Traffic(
        adapters_up=ADAPTER_BYTES * settings.rounds,
        adapters_down=ADAPTER_BYTES * settings.rounds,
        responses_up=100 * public_steps_per_round(settings) * settings.rounds,
        responses_down=50 * public_steps_per_round(settings) * settings.rounds,
    )
    views = [MemberView(name=name, role=Role.CLIENT, active=True, traffic=sent) for name in names]
    judge = MemberView(name="judge", role=Role.EVALUATOR, active=True, traffic=sent)
    run = WholeRun(
        id="r",
        name="run",
        state=RunState.FINISHED,
        paused=False,
        round=settings.rounds,
        settings=settings,
        model=CARD,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        rounds=rounds,
        members=[*views, judge],
    )
    steps = settings.rounds * tau
    return Result(
        recipe=recipe,
        setting=setting,
        seed=seed,
        members=members,
        client=client,
        run=run,
        rewards={name: [step / steps for step in range(steps)] for name in names},
        seconds=10 + seed,
    )


def write_store(store: Path, results: Iterable[Result]) -> Path:
    """Write a store with these results; returns it."""
    for index, result in enumerate(results):
        folder = store / RUNS / f"{index:04d}"
        folder.mkdir(parents=True)
        (folder / RESULT).write_text(result.model_dump_json(), encoding="utf-8")
    return store


def study(seeds: Sequence[int] = range(5), alphas: Sequence[float] = (0.3,)) -> list[Result]:
    """A whole comparison in which FedAvg falls with tau and keep does not."""
    grid: list[tuple[dict[str, Value], float, float]] = [({"method": "fedavg"}, 1.0, 1.0)]
    grid += [({"method": "fedprox", "method.mu": mu}, 1.0 + mu, 0.9) for mu in (0.001, 0.01, 0.1)]
    grid += [
        ({"method": "pubswap", "method.strategy": strategy, "method.period": period}, fall, drift)
        for strategy, period, fall, drift in [
            ("random", 2, 1.4, 0.7),
            ("keep", 2, 0.2, 0.6),
            ("keep", 4, 0.5, 0.8),
        ]
    ]
    grid += [
        ({"method": "fedavg", "aggregation.server_optimizer": "momentum"}, 0.9, 1.1),
        ({"method": "pubswap", "method.donor_ratio": "decoupled"}, 0.3, 0.6),
    ]
    return [
        _drawn(setting | {"data.prepare.alpha": alpha}, tau, seed, fall, drift)
        for alpha in alphas
        for seed in seeds
        for tau in (4, 12, 24)
        for setting, fall, drift in grid
    ] + [
        _drawn({"data.prepare.alpha": alpha}, 12, seed, fall, 0, members, client)
        for alpha in alphas
        for seed in seeds
        for members, client, fall in _REFERENCES
    ]


_REFERENCES: tuple[tuple[Members, str | None, float], ...] = (
    ("alone", "client-1", 3.0),
    ("alone", "client-2", 3.4),
    ("pooled", None, -0.5),
)


def _drawn(
    setting: dict[str, Value],
    tau: int,
    seed: int,
    fall: float,
    drift: float,
    members: Members = "federated",
    client: str | None = None,
) -> Result:
    rng = rng_for(seed, "study", str(sorted(setting.items())), tau, client or "")
    rounds = STEPS // tau
    top = 0.72 - 0.04 * fall * tau / 12 + 0.02 * rng.normal()
    scores = [
        float(
            0.4 + (top - 0.4) * (1 - (1 - done / rounds) ** 2) + (done > 0) * 0.005 * rng.normal()
        )
        for done in range(rounds + 1)
    ]
    apart = drift * tau**0.5 * (1 + 0.1 * rng.normal())
    share = 0.2 + 0.02 * rng.normal()
    return make_result(
        scores,
        tau,
        seed,
        members=members,
        client=client,
        drift=apart,
        replaced=share,
        setting=setting,
    )


def _round(
    settings: RunSettings, number: int, score: float, drift: float, replaced: float
) -> RoundSummary:
    shares = [min(1.0, replaced * factor) for factor in (1, 2)]
    topics = {name: min(1.0, score + 0.1 * index) for index, name in enumerate(TOPICS)}
    return RoundSummary(
        round=number,
        updates=settings.clients if number else 0,
        drift=Drift(pairwise=drift, from_mean=drift / 2) if number else None,
        evaluation=Evaluation(pass_at_1=score, by_topic=topics, problems=200, seconds=1),
        public_steps=[
            PublicStepSummary(
                public_step=public_step + 1,
                clients=settings.clients,
                replaced=1,
                replaced_share={f"client-{n + 1}": share for n, share in enumerate(shares)},
                correct_share={f"client-{n + 1}": 0.5 for n in range(2)},
            )
            for public_step in range(public_steps_per_round(settings) if number else 0)
        ],
    )
