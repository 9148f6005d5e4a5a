"""One run of the benchmark: its model, workloads and sides, and the figures so far."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from compare import best_rows, interleaved, medians, peak, same_work
from flops import ModelShape, update_flops
from our_side import OurSide
from report import memory_line, throughput_line
from rich.console import Console
from sides import Side, make_side
from timing import Outcome, Times, matmul_rate
from trl_async_side import TrlAsyncSide, without_reference
from trl_side import TrlSide
from workload import Lengths, Workload, run_settings


@dataclass
class Bench:
    """Measures into `result`: figures by name, `lines` of the table, and `raw` times."""

    folder: Path
    scratch: Path
    threads: int
    repeats: int
    rollout: bool
    ragged: Lengths
    uniform: Lengths
    console: Console = field(default_factory=lambda: Console(stderr=True))
    result: dict[str, Any] = field(default_factory=lambda: {"lines": {}, "raw": {}})

    def sides(self, trl_rows: list[int]) -> tuple[Side, TrlSide]:
        """Ours, and TRL's with the fastest of these micro-batches on ragged lengths."""
        candidates = {rows: self._side("trl", rows) for rows in trl_rows}
        rows, seconds = best_rows(candidates, self.workload(self.ragged))
        self.note(f"TRL with per_device_train_batch_size {rows}; tried, in seconds: {seconds}")
        self.result["raw"] |= {"trl_rows": rows, "trl_rows_seconds": seconds}
        best = candidates[rows]
        assert isinstance(best, TrlSide)
        return self._side("ours"), best

    def compare(self, name: str, pubswap: Side, trl: TrlSide) -> None:
        """Measure the workload "ragged" or "uniform"."""
        work = self.workload(getattr(self, name))
        raw = self.result["raw"][name] = {"workload": work.describe()}
        self.note(f"{name}: {raw['workload']}")
        raw["apart"] = self._same_work(work, pubswap, trl)
        whole = self.rollout and name == "ragged"
        works = {"ours": _timed(pubswap, work, whole), "trl": _timed(trl, work, whole)}
        if name == "ragged":
            works["trl_valid_positions"] = lambda: trl.valid_positions_update(work).times
        rates: list[float] = []
        times = interleaved(self.repeats, works, lambda: rates.append(self._rate()), self.note)
        for side, measured in times.items():
            raw[side] = {"medians": medians(measured), "repeats": [asdict(one) for one in measured]}
        raw["matmul_flops_per_second"] = rates
        self._speed_figures(name, work, raw, whole)

    def compare_packed(self) -> None:
        """Measure against TRL's packed trainer, on ragged lengths, without a reference pass.

        TRL weighs all tokens of a pack the same. That equals our weights only if all packs are
        alike, so the assertion that both do the same work uses the uniform lengths.
        """
        settings = without_reference(run_settings(self.ragged))
        pubswap = OurSide(self.folder, settings, "cpu")
        trl = TrlAsyncSide(self.folder, settings, "cpu", self.scratch)
        work = self.workload(self.ragged)
        raw: dict[str, Any] = {"apart": self._same_work(self.workload(self.uniform), pubswap, trl)}
        works = {"ours": _timed(pubswap, work, False), "trl": _timed(trl, work, False)}
        interleaved(1, works, lambda: None, self.note)  # warm up torch on these lengths
        times = interleaved(self.repeats, works, lambda: None, self.note)
        for side, measured in times.items():
            raw[side] = {"medians": medians(measured), "repeats": [asdict(one) for one in measured]}
        self.result["raw"]["packed"] = raw
        line = throughput_line(
            raw["ours"]["medians"]["update"], raw["trl"]["medians"]["update"], work.tokens
        )
        self.result["lines"]["update_ragged_vs_trl_async"] = line
        self.result["update_ragged_vs_trl_async"] = line["ratio"]

    def memory(self) -> None:
        """Measure peak memory, with each side alone in a process."""
        pubswap, trl = (
            peak(side, self.folder, self.ragged, "cpu", self.threads) for side in ("ours", "trl")
        )
        self.result["raw"]["memory"] = {"ours": pubswap, "trl": trl}
        line = self.result["lines"]["peak memory of an update"] = memory_line(pubswap, trl)
        self.result["memory_vs_trl"] = line["ratio"]

    def workload(self, lengths: Lengths) -> Workload:
        """The workload of these lengths; always the same."""
        return Workload.make(lengths, self._config()["vocab_size"])

    def note(self, text: str) -> None:
        """Print progress to stderr."""
        self.console.print(text, style="dim", highlight=False, soft_wrap=True)

    def _speed_figures(self, name: str, work: Workload, raw: dict[str, Any], whole: bool) -> None:
        pubswap, trl = raw["ours"]["medians"], raw["trl"]["medians"]
        figures = {f"update_{name}_vs_trl": (pubswap["update"], trl["update"])}
        if whole:
            figures[f"step_{name}_vs_trl"] = (pubswap["step"], trl["step"])
            figures[f"rollout_{name}_vs_trl"] = (pubswap["rollout"], trl["rollout"])
        if "trl_valid_positions" in raw:
            better = raw["trl_valid_positions"]["medians"]["update"]
            figures[f"update_{name}_vs_trl_valid_positions"] = (pubswap["update"], better)
        for figure, pair in figures.items():
            line = self.result["lines"][figure] = throughput_line(*pair, work.tokens)
            self.result[figure] = line["ratio"]
        if name == "ragged":
            raw["update_flops"] = self._flops(work)
            rate = median(raw["matmul_flops_per_second"])
            self.result["flops_vs_matmul"] = raw["update_flops"] / pubswap["update"] / rate

    def _same_work(self, work: Workload, pubswap: Side, trl: Side) -> dict[str, float]:
        """Check that both sides do the same work; this also warms them up."""
        pubswap.reset()
        trl.reset()
        apart = same_work(pubswap.update(work), trl.update(work), pubswap.start)
        self.note(f"The same work: the sides' results differ by {apart}")
        return apart

    def _side(self, name: str, rows: int = 8) -> Side:
        settings = run_settings(self.ragged)
        return make_side(name, self.folder, settings, "cpu", rows, self.scratch)

    def _rate(self) -> float:
        return matmul_rate(torch.device("cpu"))

    def _flops(self, work: Workload) -> int:
        grpo = run_settings(self.ragged).grpo
        shape = ModelShape.from_config(self._config(), run_settings(self.ragged).lora.rank)
        return update_flops(shape, work.lengths, grpo.gradient_epochs, reference=True)

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((self.folder / "config.json").read_bytes())
        return config


def _timed(side: Side, work: Workload, whole: bool) -> Callable[[], Times]:
    def update() -> Times:
        outcome: Outcome = side.update(work)
        return outcome.times

    return (lambda: side.step(work)) if whole else update
