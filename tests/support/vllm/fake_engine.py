"""vLLM's Python interface without a model: tokens follow from a request's seed."""

import types
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

EOS = 1


@dataclass(frozen=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass
class FakeEngine:
    """The module `vllm`: the arguments and calls it got, and the errors that it shall raise."""

    started: list[dict[str, Any]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fail: dict[str, list[Exception | None]] = field(default_factory=dict)
    adapters: dict[int, LoRARequest] = field(default_factory=dict)

    def install(self, modules: MutableMapping[str, Any]) -> None:
        """Take the place of the module `vllm`."""
        module: Any = types.ModuleType("vllm")
        module.LLM = self._start
        module.SamplingParams = SimpleNamespace
        module.lora = types.ModuleType("vllm.lora")
        module.lora.request = types.ModuleType("vllm.lora.request")
        module.lora.request.LoRARequest = LoRARequest
        modules["vllm"], modules["vllm.lora"] = module, module.lora
        modules["vllm.lora.request"] = module.lora.request

    def note(self, what: str) -> None:
        self.calls.append(what)
        error = self.fail[what].pop(0) if self.fail.get(what) else None
        if error is not None:
            raise error

    def _start(self, **arguments: Any) -> Any:
        self.started.append(arguments)
        self.note("start")
        llm_engine = SimpleNamespace(
            add_lora=lambda request: self.adapters.update({request.lora_int_id: request}),
            remove_lora=lambda number: self.adapters.pop(number, None),
            list_loras=lambda: set(self.adapters),
            engine_core=SimpleNamespace(shutdown=lambda timeout: self.note("shutdown")),
        )
        return SimpleNamespace(
            llm_engine=llm_engine,
            sleep=lambda level: self.note("sleep"),
            wake_up=lambda: self.note("wake up"),
            generate=self._generate,
        )

    def _generate(
        self,
        prompts: Sequence[dict[str, Any]],
        sampling: Sequence[Any],
        lora_request: LoRARequest,
        use_tqdm: bool,
    ) -> list[Any]:
        self.note(f"generate {len(prompts)}")
        assert (Path(lora_request.lora_path) / "adapter_model.safetensors").exists()
        return [
            SimpleNamespace(
                lora_request=lora_request,
                outputs=[
                    _output(index, (parameters.seed, index), parameters.max_tokens)
                    for index in range(parameters.n)
                ],
            )
            for parameters in sampling
        ]


def _output(index: int, seed: Sequence[int], longest: int) -> Any:
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, 30, rng.integers(1, longest + 1)).tolist()
    if len(ids) < longest:
        ids[-1] = EOS
    logprobs = [{token: SimpleNamespace(logprob=-1.0)} for token in ids]
    return SimpleNamespace(index=index, token_ids=ids, logprobs=logprobs)
