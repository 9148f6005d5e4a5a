"""TRL's side: GRPOTrainer.train() for one generation batch, timed inside its own loop.

Only TRL's source of tokens is replaced: `_generate` returns frozen responses, or a logits processor
forces TRL's own sampling to them. TRL's names that begin with an underscore are private, so `trl`
is pinned in the dev extra.
"""

from pathlib import Path
from typing import Any

import datasets
import torch
import trl
import trl.trainer.utils
from our_side import force, forced_tokens
from peft import LoraConfig
from timing import Clock, Outcome, Times
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessor,
    PrinterCallback,
    TrainerCallback,
)
from workload import Workload, start_adapter, text

from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter


class TrlSide:
    """A trainer whose optimizer persists across updates, each a `train()` of two steps."""

    def __init__(
        self,
        folder: Path,
        settings: RunSettings,
        device: str,
        rows: int,
        scratch: Path,
        liger: bool = False,
    ) -> None:
        """Load the model in `folder`; `rows` is TRL's per_device_train_batch_size."""
        card = model_card(folder, settings.lora, "benchmark", None)
        self.start = start_adapter(card.layout)
        self.clock = Clock(torch.device(device))
        self._workload: Workload | None = None
        self._marks: dict[str, float] = {}
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.trainer = trl.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=dtype),
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=self._rewards,
            train_dataset=_dataset(None),
            peft_config=LoraConfig(
                r=settings.lora.rank, lora_alpha=settings.lora.alpha, target_modules="all-linear"
            ),
            args=_config(settings, device, rows, scratch, liger),
        )
        self.trainer.remove_callback(PrinterCallback)
        self.trainer.add_callback(_Stop(self._mark))
        self._sample = self.trainer._generate
        self._score = self.trainer._generate_and_score_completions
        self._model_generate = self.trainer.model.generate
        self.trainer._generate_and_score_completions = self._timed_score
        self._losses = _record_losses(self.trainer)
        self.reset()

    def reset(self) -> None:
        """Go back to the start adapter, with a new optimizer."""
        self.trainer.optimizer = None  # train() then creates one
        with torch.no_grad():
            for name, parameter in self._factors().items():
                parameter.copy_(torch.from_numpy(self.start[name]))

    def update(self, workload: Workload) -> Outcome:
        """The update phase, with `workload`'s responses in place of sampling."""
        self.trainer._generate = self._frozen
        times = self._train(workload)
        logged = [line for line in self.trainer.state.log_history if "grad_norm" in line]
        return Outcome(
            times,
            loss=sum(self._losses) / len(logged),
            grad_norm=sum(line["grad_norm"] for line in logged) / len(logged),
            adapter=self._adapter(),
        )

    def valid_positions_update(self, workload: Workload) -> Outcome:
        """The update phase with TRL's fused LM head at response positions only, on a CPU too.

        With Triton TRL does so by itself. On a CPU it also scores prompts and padding, which would
        say nothing about a GPU.
        """
        original = trl.trainer.utils._use_triton
        trl.trainer.utils._use_triton = lambda _device: True
        try:
            return self.update(workload)
        finally:
            trl.trainer.utils._use_triton = original

    def step(self, workload: Workload) -> Times:
        """A whole step: TRL's own generation through transformers, then the update."""
        forced = _Forced(workload)
        self.trainer.model.generate = lambda **inputs: self._model_generate(
            **inputs, logits_processor=[forced.restart(inputs["input_ids"])]
        )
        self.trainer._generate = self._sampled
        times = self._train(workload)
        self.trainer.model.generate = self._model_generate
        return times

    def _train(self, workload: Workload) -> Times:
        self._workload = workload
        self._marks.clear()
        self._losses.clear()
        self.trainer.train_dataset = _dataset(workload)
        self.trainer.train()
        marks = self._marks
        return Times(marks["known"] - marks["begin"], marks["end"] - marks["known"])

    def _timed_score(self, inputs: Any) -> Any:
        self._mark("begin")
        return self._score(inputs)

    def _frozen(self, _prompts: Any) -> tuple[Any, ...]:
        assert self._workload is not None
        responses = [tokens for group in self._workload.responses for tokens in group]
        prompts = [
            prompt
            for prompt, group in zip(self._workload.prompts, self._workload.responses, strict=True)
            for _ in group
        ]
        self._mark("known")
        return prompts, responses, None, ["-"] * len(responses), None, {}, None, None

    def _sampled(self, prompts: Any) -> tuple[Any, ...]:
        assert self._workload is not None
        sampled = self._sample(prompts)
        self._mark("known")
        if sampled[1] != [tokens for group in self._workload.responses for tokens in group]:
            raise RuntimeError("TRL's rollout did not sample the workload's responses.")
        return sampled

    def _rewards(self, **_columns: Any) -> list[float]:
        assert self._workload is not None
        return [reward for group in self._workload.rewards for reward in group]

    def _mark(self, name: str) -> None:
        self._marks[name] = self.clock()

    def _factors(self) -> dict[str, Any]:
        return {
            name.replace(".default.weight", ".weight"): parameter
            for name, parameter in self.trainer.model.named_parameters()
            if parameter.requires_grad
        }

    def _adapter(self) -> Adapter:
        factors = self._factors()
        return {name: factors[name].detach().float().cpu().numpy().copy() for name in self.start}


class _Stop(TrainerCallback):
    """Reads the clock after the last optimizer step."""

    def __init__(self, mark: Any) -> None:
        self._mark = mark

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == args.max_steps:
            self._mark("end")


class _Forced(LogitsProcessor):
    """Allows only the workload's next token in each row, like our engine's subclass."""

    def __init__(self, workload: Workload) -> None:
        self._rows = [tokens for group in workload.responses for tokens in group]
        self._table = torch.empty(0)
        self._prompt_length = 0

    def restart(self, prompts: Tensor) -> "_Forced":
        self._table = forced_tokens(self._rows).to(prompts.device)
        self._prompt_length = prompts.shape[1]
        return self

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return force(scores, self._table[:, input_ids.shape[1] - self._prompt_length])


def _config(settings: RunSettings, device: str, rows: int, scratch: Path, liger: bool) -> Any:
    grpo = settings.grpo
    total = grpo.prompts_per_step * grpo.responses_per_prompt
    return trl.GRPOConfig(
        output_dir=str(scratch),
        use_cpu=device == "cpu",
        bf16=device == "cuda",
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        shuffle_dataset=False,
        max_steps=grpo.gradient_epochs,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=total // rows,
        num_generations=grpo.responses_per_prompt,
        num_iterations=grpo.gradient_epochs,
        max_completion_length=grpo.max_response_tokens,
        learning_rate=grpo.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=grpo.weight_decay,
        max_grad_norm=grpo.max_grad_norm,
        loss_type="grpo",
        beta=grpo.kl_beta,
        epsilon=grpo.clipping.low,
        epsilon_high=grpo.clipping.high,
        temperature=grpo.temperature,
        use_bias_correction_kl=False,
        use_liger_kernel=liger,
    )


def _dataset(workload: Workload | None) -> Any:
    prompts = ["w2"] if workload is None else [text(prompt) for prompt in workload.prompts]
    return datasets.Dataset.from_list([{"prompt": prompt} for prompt in prompts])


def _record_losses(trainer: Any) -> list[float]:
    """A list to which each training step adds its loss, already divided by the accumulation."""
    losses: list[float] = []
    original = trainer.training_step

    def recorded(*args: Any, **kwargs: Any) -> Any:
        loss = original(*args, **kwargs)
        losses.append(float(loss))
        return loss

    trainer.training_step = recorded
    return losses
