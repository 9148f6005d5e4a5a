"""Prometheus metrics; routes are labelled by their templates, never by paths."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """One application's registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "pubswap_http_requests_total",
            "Requests by route template, method and status.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "pubswap_http_request_seconds",
            "Time to answer, long polls included.",
            ["route"],
            registry=self.registry,
        )
        self.aggregation_seconds = Histogram(
            "pubswap_aggregation_seconds", "Time to average a round.", registry=self.registry
        )
        self.runs = Gauge("pubswap_runs", "Runs by state.", ["state"], registry=self.registry)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
