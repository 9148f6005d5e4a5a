"""The rollout engine: is vLLM installed, do its replicas answer, can both see the adapters."""

import os
from contextlib import closing
from importlib.util import find_spec

from pubswap_client.doctor.finding import Finding, failure, of_error, ok
from pubswap_client.inference import InferenceServer, Refused
from pubswap_client.settings import ClientSettings
from pubswap_protocol.errors import EngineFault
from pubswap_protocol.settings import RunSettings

ENGINE = "rollout engine"


def check_engine(settings: ClientSettings, run: RunSettings | None) -> Finding:
    """The engine is there; it is started, and asked to sample, by the trial step only."""
    if settings.engine == "vllm":
        return check_installed()
    if settings.engine == "vllm-server":
        return check_replicas(settings, run)
    return ok(ENGINE, "transformers, which needs nothing more")


def check_installed() -> Finding:
    """vLLM can be imported."""
    if find_spec("vllm") is None:
        return failure(
            ENGINE,
            "vLLM is not installed",
            "pip install '.[client,vllm]' in an environment without the server extra, or "
            "set engine = 'transformers'.",
        )
    return ok(ENGINE, "vLLM is installed")


def check_replicas(settings: ClientSettings, run: RunSettings | None) -> Finding:
    """Every replica answers and takes the run's lengths, and the shared folder is ours to write."""
    folder = settings.vllm.adapter_dir
    if folder is None or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return failure(
            ENGINE,
            f"vllm.adapter_dir {folder} is no folder that can be written to",
            "Make it on a disk that this machine and all replicas see at the same path.",
        )
    longest = run.grpo.max_prompt_tokens + run.grpo.max_response_tokens if run else 0
    for url in settings.vllm.urls:
        if (fault := _fault(settings, url, longest)) is not None:
            return fault
    return ok(ENGINE, f"{len(settings.vllm.urls)} replicas answer")


def _fault(settings: ClientSettings, url: str, longest: int) -> Finding | None:
    key = settings.vllm.api_key.get_secret_value() if settings.vllm.api_key else None
    with closing(InferenceServer(url, key, connect_seconds=0)) as server:
        try:
            base = next((model for model in server.models() if model.parent is None), None)
        except EngineFault as error:
            return of_error(ENGINE, error, f"Start vLLM there, or correct {url} in vllm.urls.")
        except Refused as error:
            return failure(
                ENGINE,
                f"{url} refuses to be asked: {error.message}",
                "Set vllm.api_key to what it was started with as --api-key.",
            )
    if base is not None and base.max_model_len is not None and base.max_model_len < longest:
        return failure(
            ENGINE,
            f"{url} takes {base.max_model_len} tokens, the run needs {longest}",
            f"Start it again with --max-model-len {longest}.",
        )
    return None
