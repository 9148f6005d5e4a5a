"""HTTP client for the organisation's own `vllm serve`, with one method per endpoint.

Adapters are sent as paths in a shared folder, prompts and responses as token ids.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from pubswap_protocol.errors import EngineFault, InvalidSettings

M = TypeVar("M", bound=BaseModel)

RETRY_SECONDS = 0.5
CONNECT_SECONDS = 1200.0  # for a replica that starts in the same job; large models take long
RESPONSE_SECONDS = 3600.0  # for one prompt's responses
REQUESTS = 32  # prompts at a time
# Statuses from a proxy in front of vLLM while vLLM is down.
AWAY = (502, 503, 504)


class ServedModel(BaseModel):
    """A base model, or an adapter with the base model as `parent` and its folder as `root`."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class ServedModels(BaseModel):
    """The models that a server serves."""

    data: list[ServedModel]


class TokenLogprobs(BaseModel):
    """Log-probabilities of each sampled token, and of the likeliest tokens in its place."""

    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class CompletionChoice(BaseModel):
    """One response; token ids are missing from servers that do not know `return_token_ids`."""

    index: int
    token_ids: list[int] | None = None
    logprobs: TokenLogprobs | None = None


class Completions(BaseModel):
    """The responses to one prompt, and the name of the adapter they came from."""

    model: str
    choices: list[CompletionChoice]


class VllmRefused(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class InferenceServer:
    """One `vllm serve`. Methods may be called from several threads.

    Each raises VllmRefused if vLLM replies with an error, and EngineFault if it cannot be reached
    for `connect_seconds` or its reply cannot be parsed.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        connect_seconds: float | None = None,
    ) -> None:
        """Raises InvalidSettings if the address or the key is invalid."""
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise InvalidSettings("vllm.api_key has characters that are not allowed in a header.")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.connect_seconds = CONNECT_SECONDS if connect_seconds is None else connect_seconds
        try:
            self._http = httpx.Client(
                base_url=self.url,
                verify=httpx.create_ssl_context(),  # honours SSL_CERT_FILE
                trust_env=False,  # private prompts must not go through a proxy
                headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
                timeout=httpx.Timeout(RESPONSE_SECONDS, connect=10, pool=None),
                limits=httpx.Limits(max_connections=REQUESTS),
            )
        except httpx.InvalidURL as error:
            raise InvalidSettings(f"vllm.urls: {url!r} is not an address: {error}.") from None

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def models(self) -> list[ServedModel]:
        """The base model and the loaded adapters. Raises EngineFault also for a refusal."""
        try:
            reply = self._request("GET", "/v1/models")
        except VllmRefused as error:
            raise EngineFault(
                f"vLLM at {self.url} refuses to list its models: {error.message}. Is vllm.api_key "
                "the server's --api-key?"
            ) from None
        return self._parsed(ServedModels, reply).data

    def base_model(self) -> ServedModel:
        for model in self.models():
            if model.parent is None:
                return model
        raise EngineFault(f"vLLM at {self.url} names no base model in /v1/models.")

    def load_adapter(self, name: str, path: Path) -> None:
        """Load an adapter from a folder that the server can read, under a new name."""
        body = {"lora_name": name, "lora_path": str(path)}
        self._request("POST", "/v1/load_lora_adapter", body)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter."""
        self._request("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def complete(self, body: Mapping[str, Any]) -> Completions:
        """The responses to a prompt of token ids."""
        return self._parsed(Completions, self._request("POST", "/v1/completions", body))

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        """Send a request, retrying while the server is down. Requests are safe to repeat."""
        deadline = time.monotonic() + self.connect_seconds
        while True:
            try:
                reply = self._http.request(method, path, json=body)
                if reply.status_code < 400:
                    return reply
                if reply.status_code not in AWAY or time.monotonic() > deadline:
                    raise _refused(reply)
            except (
                httpx.NetworkError,
                httpx.ConnectTimeout,
                httpx.RemoteProtocolError,
                UnicodeError,  # from a host name with an empty part
            ) as error:
                if time.monotonic() > deadline:
                    raise EngineFault(
                        f"vLLM at {self.url} cannot be reached ({error}). Is it running, and is "
                        "its address in vllm.urls right?"
                    ) from None
            except httpx.HTTPError as error:
                raise EngineFault(
                    f"vLLM at {self.url} did not answer {path} ({error!r}); its log says why."
                ) from None
            time.sleep(RETRY_SECONDS)

    def _parsed(self, model: type[M], reply: httpx.Response) -> M:
        try:
            return model.model_validate_json(reply.content)
        except ValidationError as error:
            raise EngineFault(f"{reply.url} did not answer as vLLM does: {error}") from None


def _refused(reply: httpx.Response) -> VllmRefused:
    """The error in vLLM's envelope, or the start of the body if there is none."""
    try:
        message = str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = reply.text[:200]
    return VllmRefused(reply.status_code, message)
