"""FFA-LoRA and FedEx-LoRA with real daemons, and their adapters in real PEFT."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.demo.federation import MODEL
from pubswap_client.state.membership import load_membership
from pubswap_protocol.messages import Role, WholeRun
from pubswap_protocol.tensors.adapter import decode_adapter, initial_adapter, open_stack
from pubswap_protocol.tensors.peft_folder import write_peft_folder
from support.client import dense
from support.coordinator.processes import (
    ONE_THREAD,
    Coordinator,
    create_run,
    enroll,
    federated_adapter,
    serve,
    start,
    start_client,
    wait_finished,
)
from support.forked import ForkedProcesses

pytestmark = pytest.mark.full


@pytest.mark.usefixtures("unmeasured")
def test_ffa_clients_train_and_send_b_alone(tmp_path: Path) -> None:
    """B changes, A stays as the seed made it, and less is sent than received.

    A client's other processes have that A too. A whole run, with exchanges, of clients with two
    processes ends within 1e-5 of one with single ones: only the order of sums differs.
    """
    overrides = {"aggregation.rule": "ffa", "grpo.learning_rate": 1e-5}
    view, data = federated_adapter(tmp_path / "run", overrides)
    _, two = federated_adapter(tmp_path / "two", overrides, more=["--processes", "2"])
    layout = view.model.layout
    first, final = initial_adapter(layout, view.settings.seed), decode_adapter(layout, data)
    for name, tensor in final.items():
        assert np.array_equal(tensor, first[name]) == ("lora_A" in name)
    assert np.allclose(dense.flat(final), dense.flat(decode_adapter(layout, two)), atol=1e-5)
    assert max(np.abs(t).max() for n, t in final.items() if "lora_B" in n) > 1e-5
    traffic = view.rounds[1].traffic
    assert traffic.adapters_up < 0.7 * traffic.adapters_down


def evaluated(coordinator: Coordinator, run: WholeRun, seconds: float = 60) -> WholeRun:
    """The run once every round has been evaluated."""
    deadline = time.monotonic() + seconds
    while True:
        view = coordinator.api.whole_run(run.id)
        if all(summary.evaluation is not None for summary in view.rounds):
            return view
        coordinator.processes.check()
        assert time.monotonic() < deadline, "a round was not evaluated"
        time.sleep(0.2)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_fedex_clients_train_on_the_residuals_and_the_export_holds_them(tmp_path: Path) -> None:
    """Two daemons and an evaluator finish; PEFT's model is base + factors + residuals."""
    folder = tmp_path / "run"
    folder.mkdir()
    with ForkedProcesses(folder / "logs") as processes:
        coordinator = serve(processes, folder)
        with coordinator.api:
            run = create_run(coordinator, {"aggregation.rule": "fedex", "method": "fedavg"})
            for seed, name in ((3, "alpha"), (4, "beta")):
                start_client(coordinator, enroll(coordinator, run, name), seed)
            judge = enroll(coordinator, run, "judge", Role.EVALUATOR)
            options = ["--state", str(judge), "--model", str(MODEL), "--threads", "1"]
            processes.start("judge", ["evaluate", *options], ONE_THREAD)
            start(coordinator, run)
            wait_finished(coordinator, run)
            view = evaluated(coordinator, run)
            final = view.rounds[-1].adapter or ""
            with CoordinatorClient(
                coordinator.api.url, load_membership(judge).membership.token
            ) as member:
                data = member.blob(run.id, final)
            export = coordinator.api.global_adapter(run.id, "final")
    layout, lora = view.model.layout, view.settings.lora
    deltas = dense.products(decode_adapter(layout, bytes(data)))
    # The evaluator kept the residuals of both rounds, a client only the first's.
    kept = sorted((judge / "residuals").iterdir())
    assert len(kept) == 2
    (first,) = (folder / "alpha" / "residuals").iterdir()
    assert first.name in {path.name for path in kept}
    largest = 0.0
    for path in kept:
        for name, product in dense.products(open_stack(path, layout).load()).items():
            deltas[name] = deltas[name] + product
            largest = max(largest, float(np.abs(product).max()))
    assert largest > 1e-6

    write_peft_folder(folder / "adapter", export, lora, view.model, str(MODEL))
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    merged = PeftModel.from_pretrained(base, str(folder / "adapter")).merge_and_unload()
    after = merged.state_dict()
    for name, delta in deltas.items():
        weight = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
        moved = (after[weight] - before[weight]).numpy()
        assert np.allclose(moved, lora.alpha / lora.rank * delta, rtol=0, atol=1e-6)
