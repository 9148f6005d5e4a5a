"""Settings that were taken out: since when, and what to use instead."""

from collections.abc import Mapping

_CERTIFICATES = "removed in 0.1.0; let the proxy demand certificates, see deploy/nginx"

_AMOUNT = "removed in 0.1.0; the approved terms bound a round, limits.rounds.max the rounds"

_TIMES = "removed in 0.1.0; start and stop the daemon by a timer, it continues where it was"

RENAMED = {
    "swap.strategy": "method.strategy",
    "swap.period": "method.period",
    "swap.mode": "method.mode",
    "swap.sampling_check": "method.sampling_check",
    "swap.quorum": "method.quorum",
    "swap.deadline_seconds": "method.deadline_seconds",
    "fedprox.mu": "method.mu",
    "grpo.donor_ratio": "method.donor_ratio",
    "grpo.clip_low": "grpo.clipping.low",
    "grpo.clip_high": "grpo.clipping.high",
    "aggregation.trim": "aggregation.rule.trim",
    "aggregation.krum_f": "aggregation.rule.bad",
    "aggregation.krum_m": "aggregation.rule.averaged",
    "aggregation.max_weight_share": "aggregation.weights.max_share",
    "aggregation.server_learning_rate": "aggregation.server_optimizer.rate",
    "lora.min_rank": "aggregation.rule.min_rank",
}
"""Keys that became parameters of a named value."""

REMOVED: dict[str, str] = {
    "fedprox": "since 0.1.0 it is method, such as method = { name = 'fedprox', mu = 0.01 }",
    **{old: f"since 0.1.0 it is {new}" for old, new in RENAMED.items()},
    "swap.max_donated_tokens": "removed in 0.1.0; method.strategy = 'none' has no exchange",
    "counters": "removed in 0.1.0; all counters of the messages are sent, see docs/security.md",
    "days": _TIMES,
    "hours": _TIMES,
    "keep_sent_adapters": "removed in 0.1.0; the ledger keeps the digests of sent adapters",
    "max_bytes_a_day": _AMOUNT,
    "max_rounds_a_day": _AMOUNT,
    "proxy_secret": _CERTIFICATES,
    "require_client_certificate": _CERTIFICATES,
    "idle_seconds": "a constant of 30 s since 0.1.0; the proxy has further limits",
    "verifier_seconds": "a constant of 5 s of CPU time since 0.1.0",
    "verifier_workers": "a constant of one process since 0.1.0",
    "vllm.connect_seconds": "a constant of 1,200 s since 0.1.0",
    "vllm.gpu_memory_utilization": "since 0.1.0 it is vllm.extra.gpu_memory_utilization",
    "vllm.kv_cache_gib": "since 0.1.0 it is vllm.extra.kv_cache_memory_bytes, in bytes",
    "vllm.response_seconds": "a constant of 3,600 s since 0.1.0",
    "grpo.advantage_epsilon": "removed in 0.1.0; it is always 1e-6, the default",
    "grpo.clipping = asymmetric": "removed in 0.1.0; use 'token' or 'sequence'",
    "grpo.clipping = soft": "removed in 0.1.0; use 'token' or 'sequence'",
    "method.donor_ratio = donor": "removed in 0.1.0; use 'local' or 'decoupled'",
    "method.donor_ratio = shaped": "removed in 0.1.0; use 'local' or 'decoupled'",
    "grpo.donor_ratio_cap": "removed in 0.1.0; it is always 2, the default",
    "grpo.dual_clip": "removed in 0.1.0; use grpo.clipping and grpo.max_grad_norm",
    "grpo.learning_rate_shape": "removed in 0.1.0; the rate is constant, set by grpo.learning_rate",
    "grpo.overlap": "removed in 0.1.0; method.mode = 'pipelined' makes a step while peers answer",
    "grpo.rollout_correction_cap": "removed in 0.1.0; it is always 2, the default",
    "grpo.zero_variance": "removed in 0.1.0; such groups keep their KL term, the default",
    "aggregation.rule = fedex": "removed in 0.1.0; use 'svd', which is exact too, or 'fedit'",
    "wire.precision = int8": "removed in 0.1.0; use 'bfloat16', with twice the bytes",
    "members.expected": "removed in 0.1.0; use clients",
    "lora.rank = {…}": "a range was removed in 0.1.0; use a number, and aggregation.rule.min_rank",
    "round_seconds": "removed in 0.1.0; use round_steps",
    "aggregation.server_optimizer = yogi": "removed in 0.1.0; use 'adam' or 'momentum'",
    "aggregation.server_beta1": "removed in 0.1.0; it is 0.9, so leave it out",
    "aggregation.server_beta2": "removed in 0.1.0; it is 0.99, so leave it out",
    "aggregation.server_tau": "removed in 0.1.0; it is 0.001, so leave it out",
    "aggregation.weights = improvement": "removed in 0.1.0; a gain on few held-out problems is "
    "mostly noise, so use 'uniform', 'examples' or 'steps'",
    "swap.donors": "removed in 0.1.0; any correct response of a peer may be donated, so leave it "
    "out",
    "swap.candidates": "removed in 0.1.0 with swap.donors; leave it out",
    "swap.max_donor_share": "removed in 0.1.0; verdicts and method.sampling_check limit donors",
    "swap.prompts": "removed in 0.1.0; public prompts are drawn equally often, so leave it out",
    "swap.replay": "removed in 0.1.0; only responses of the same public step are donated, so leave "
    "it out",
    "swap.schedule": "removed in 0.1.0; every method.period-th step is public, so leave it out",
}
"""Sentences by dotted key, or by `key = value` for a value of a key that stays.

One table for run files and for the settings of clients and coordinators, whose keys differ.
"""


def removal(key: str) -> str | None:
    """The sentence for a removed key, else None."""
    return REMOVED.get(key)


def removed_value(key: str, value: object) -> str | None:
    """The sentence for a removed value of a key that stays, else None."""
    return REMOVED.get(f"{key} = {'{…}' if isinstance(value, Mapping) else value}")
