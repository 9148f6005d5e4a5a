"""Settings that were taken out: since when, and what to use instead."""

_CERTIFICATES = "removed in 0.1.0; let the proxy demand certificates, see deploy/nginx"

_TIMES = "removed in 0.1.0; start and stop the daemon by a timer, it continues where it was"

REMOVED: dict[str, str] = {
    "counters": "removed in 0.1.0; all counters of the messages are sent, see docs/organisation.md",
    "days": _TIMES,
    "hours": _TIMES,
    "keep_sent_adapters": "removed in 0.1.0; the ledger keeps the digests of sent adapters",
    "max_rounds_a_day": "removed in 0.1.0; use max_bytes_a_day",
    "proxy_secret": _CERTIFICATES,
    "require_client_certificate": _CERTIFICATES,
    "idle_seconds": "a constant of 30 s since 0.1.0; the proxy has further limits",
    "verifier_seconds": "a constant of 5 s of CPU time since 0.1.0",
    "verifier_workers": "a constant of one process since 0.1.0",
    "vllm.connect_seconds": "a constant of 1,200 s since 0.1.0",
    "vllm.gpu_memory_utilization": "since 0.1.0 it is vllm.extra.gpu_memory_utilization",
    "vllm.kv_cache_gib": "since 0.1.0 it is vllm.extra.kv_cache_memory_bytes, in bytes",
    "vllm.response_seconds": "a constant of 3,600 s since 0.1.0",
}
"""Sentences by dotted key, or by `key = value` for a value of a key that stays.

One table for run files and for the settings of clients and coordinators, whose keys differ.
"""


def removal(key: str, value: object = None) -> str | None:
    """The sentence for a removed key, or for a removed value of another one; else None."""
    return REMOVED.get(key) or REMOVED.get(f"{key} = {value}")
