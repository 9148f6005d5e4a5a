"""TRL's AsyncGRPOTrainer: packed rows, shared prompts, token budgets; its update, without rollout.

Only what cannot run here is replaced: its vLLM server, by a worker with frozen responses; its
lookup of the GPU's speed, which it only reports; and, on a CPU, its attention kernel
(FlashAttention 3, from a hub), by exact attention over the same segments.

It has no reference pass and no KL term, weighs tokens equally within a micro-batch, and takes
pi_old from the sampler. Our update is compared with the same settings, see `without_reference`.
"""

import contextlib
import queue
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import trl.experimental.async_grpo.async_grpo_trainer as async_grpo
import trl.experimental.async_grpo.packing as packing
import trl.trainer.utils
from peft import LoraConfig
from timing import Clock, Outcome, Times
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
from workload import AsTrl, Workload, frozen_groups, start_adapter

from pubswap_client.policy.groups import collate
from pubswap_client.policy.logprobs import response_logprobs
from pubswap_client.policy.policy import Policy
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter

TOKENS = 2048  # as many as in one of our micro-batches on a CPU


def without_reference(settings: RunSettings) -> RunSettings:
    """Settings for the step that AsyncGRPOTrainer makes: no KL term, tokens weighed equally."""
    grpo = settings.grpo.model_copy(update={"kl_beta": 0.0, "loss_aggregation": "token_mean"})
    return settings.model_copy(update={"grpo": grpo})


class TrlAsyncSide:
    """A trainer whose optimizer persists across updates, each a `train()` of two steps."""

    def __init__(
        self,
        folder: Path,
        settings: RunSettings,
        device: str,
        scratch: Path,
        tokens: int = TOKENS,
    ) -> None:
        """Load the model in `folder`; a pack has about `tokens` tokens."""
        self._tokens = tokens
        card = model_card(folder, settings.lora, "benchmark", None)
        self.start = start_adapter(card.layout)
        self.clock = Clock(torch.device(device))
        self.settings = settings
        self._policy = Policy.load(folder, card, settings, device)  # type: ignore[arg-type]
        self._policy.load_adapter(self.start)
        self._worker = _FrozenWorker()
        self._marks: dict[str, float] = {}
        async_grpo.get_peak_flops_per_device = lambda *_: None
        if device == "cpu":
            packing._flash_attn = lambda: _Portable
        self.trainer = AsyncGRPOTrainer(
            model=str(folder),
            processing_class=AutoTokenizer.from_pretrained(folder),
            train_dataset=datasets.Dataset.from_list([{"prompt": "w2"}]),
            peft_config=LoraConfig(
                r=settings.lora.rank, lora_alpha=settings.lora.alpha, target_modules="all-linear"
            ),
            args=_config(settings, device, scratch),
            rollout_worker=self._worker,
            weight_transfer=_NoTransfer(),
        )
        self.trainer.remove_callback(PrinterCallback)
        self.trainer.add_callback(_Stop(self))
        self._losses: list[float] = []
        self._record_losses()
        self.reset()

    def reset(self) -> None:
        """Go back to the start adapter, with a new optimizer."""
        self.trainer.optimizer = None
        with torch.no_grad():
            for name, parameter in self._factors().items():
                parameter.copy_(torch.from_numpy(self.start[name]))

    def update(self, workload: Workload) -> Outcome:
        """Two optimizer steps on the workload, with the LM head at response positions only."""
        samples = self._samples(workload)
        budget, packs = closing_budget(samples, self._tokens)
        args = self.trainer.args
        args.token_budget, args.gradient_accumulation_steps = budget, packs
        epochs = self.settings.grpo.gradient_epochs
        self._worker.give(samples, epochs + 1, self.trainer.model_version)
        self._losses.clear()
        with _relieved_head():
            self.trainer.train()
        logged = [line for line in self.trainer.state.log_history if "grad_norm" in line]
        return Outcome(
            Times(rollout=0.0, update=self._marks["end"] - self._marks["begin"]),
            loss=sum(self._losses) / epochs,
            grad_norm=sum(line["grad_norm"] for line in logged) / len(logged),
            adapter=self._adapter(),
        )

    def mark(self, name: str) -> None:
        """Read the clock."""
        self._marks[name] = self.clock()

    def _samples(self, workload: Workload) -> list[RolloutSample]:
        """TRL's samples; their log-probabilities are the start policy's own."""
        batch = collate(frozen_groups(workload), AsTrl())
        old = response_logprobs(self._policy, batch, self.settings.grpo.temperature, TOKENS)
        samples = []
        for row in range(batch.rows):
            group = row // batch.group_size
            prompt, response = batch.prompts[group], batch.responses[row]
            count = len(response)
            zeros = np.zeros(len(prompt))
            samples.append(
                RolloutSample(
                    prompt=[],
                    completion=[],
                    input_ids=torch.cat([prompt, response]).numpy(),
                    completion_mask=np.concatenate([zeros, np.ones(count)]).astype(np.int64),
                    old_log_probs=np.concatenate([zeros, old[row, :count].numpy()]),
                    advantage=float(batch.advantages[row]),
                    model_version=0,
                    group_id=group,
                    metrics={"reward": 0.0},
                )
            )
        return samples

    def _factors(self) -> dict[str, Any]:
        return {
            name.replace(".default.weight", ".weight"): parameter
            for name, parameter in self.trainer.model.named_parameters()
            if parameter.requires_grad
        }

    def _adapter(self) -> Adapter:
        factors = self._factors()
        return {name: factors[name].detach().float().cpu().numpy().copy() for name in self.start}

    def _record_losses(self) -> None:
        original = self.trainer.compute_loss

        def recorded(*args: Any, **kwargs: Any) -> Any:
            loss = original(*args, **kwargs)
            self._losses.append(float(loss.detach()))
            return loss

        self.trainer.compute_loss = recorded


def closing_budget(samples: Sequence[RolloutSample], near: int) -> tuple[int, int]:
    """A token budget near `near` for which a pack ends at the last sample, and the pack count.

    TRL's packs ignore where a step ends: an open pack continues with the next step's samples.
    """
    entries = [
        {"input_ids": s.input_ids, "completion_mask": s.completion_mask, "group_id": s.group_id}
        for s in samples
    ]
    following = entries[0] | {"group_id": len(entries)}  # of the next step; it closes the last pack
    longest = max(len(one["input_ids"]) for one in entries)
    for distance in range(0, near, 32):
        for budget in (near - distance, near + distance):
            if budget < longest:
                continue
            packs = list(async_grpo.TokenBudgetBatcher([*entries, following], 1, budget, {}))
            if sum(len(row.samples) for (row,) in packs) == len(entries):
                return budget, len(packs)
    raise ValueError("No token budget closes a pack at the end of the step.")


class _FrozenWorker:
    """TRL's RolloutWorkerProtocol without sampling: the queue repeats the step's samples."""

    def __init__(self) -> None:
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()

    def give(self, samples: Sequence[RolloutSample], times: int, version: int) -> None:
        """Queue the samples `times` times: once more than needed, so that the last pack closes."""
        while not self.rollout_buffer.empty():
            self.rollout_buffer.get_nowait()
        for number in range(times):
            for sample in samples:
                group = sample.group_id + number * len(samples)
                self.rollout_buffer.put(replace(sample, group_id=group, model_version=version))

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def update_model_version(self, model_version: int) -> None: ...

    def check_health(self, stale_after_s: float) -> None:
        raise RuntimeError("TRL waits for more samples than a step has.")


class _NoTransfer:
    """TRL's WeightTransferProtocol, transferring nothing."""

    def init_weight_transfer(self) -> None: ...

    def pause(self) -> None: ...

    def send_weights(self, iterator: Iterator[Any]) -> None: ...

    def resume(self) -> None: ...

    def destroy(self) -> None: ...


class _Stop(TrainerCallback):
    """Reads the clock before the first pack is asked for, and after the last optimizer step."""

    def __init__(self, side: TrlAsyncSide) -> None:
        self._side = side

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._side.mark("begin")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step + 1 == args.max_steps:
            self._side.mark("end")


class _Portable:
    """The part of FlashAttention 3 that TRL uses, segment by segment."""

    @staticmethod
    def flash_attn_varlen_func(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_ends: Tensor,
        key_ends: Tensor,
        *_lengths: int,
        softmax_scale: float,
        **_: Any,
    ) -> Tensor:
        """Causal attention of each segment's queries (N, H, D) on its keys, aligned at the end."""
        parts = []
        counts = [ends.diff().tolist() for ends in (query_ends, key_ends)]
        split = zip(
            query.split(counts[0]), key.split(counts[1]), value.split(counts[1]), strict=True
        )
        for queries, keys, values in split:
            offset = len(keys) - len(queries)
            mask = torch.ones((len(queries), len(keys)), dtype=torch.bool).tril(offset)
            parts.append(
                scaled_dot_product_attention(
                    *(whole.transpose(0, 1)[None] for whole in (queries, keys, values)),
                    attn_mask=mask,
                    scale=softmax_scale,
                    enable_gqa=True,
                )[0].transpose(0, 1)
            )
        return torch.cat(parts)


@contextlib.contextmanager
def _relieved_head() -> Iterator[None]:
    """Score response positions only on a CPU too, as TRL does by itself with Triton."""
    original = trl.trainer.utils._use_triton
    trl.trainer.utils._use_triton = lambda _device: True
    try:
        yield
    finally:
        trl.trainer.utils._use_triton = original


def _config(settings: RunSettings, device: str, scratch: Path) -> AsyncGRPOConfig:
    grpo = settings.grpo
    return AsyncGRPOConfig(
        output_dir=str(scratch),
        dtype="bfloat16" if device == "cuda" else "float32",
        use_cpu=device == "cpu",
        bf16=device == "cuda",
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        max_steps=grpo.gradient_epochs,
        num_generations=grpo.responses_per_prompt,
        max_completion_length=grpo.max_response_tokens,
        max_staleness=1 << 20,
        weight_sync_steps=1 << 20,
        learning_rate=grpo.learning_rate,
        weight_decay=grpo.weight_decay,
        max_grad_norm=grpo.max_grad_norm,
        epsilon=grpo.clipping.low,
        epsilon_high=grpo.clipping.high,
        temperature=grpo.temperature,
    )
