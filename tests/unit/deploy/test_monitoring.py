"""Alerts and dashboard name only what the coordinator exports, and fire when they should."""

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pubswap_server.app import create_app
from pubswap_server.monitoring.metrics import Metrics
from pubswap_server.settings import ServerSettings

DEPLOY = Path(__file__).parents[3] / "deploy"
OF_PROMETHEUS = {"job", "instance", "le"}
SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}


@functools.cache
def routes() -> frozenset[str]:
    """The templates of all routes."""
    return frozenset(create_app(ServerSettings()).openapi()["paths"])


def exported() -> dict[str, set[str]]:
    """The series that the application exports, and their labels."""
    series = {}
    for collector in vars(Metrics()).values():
        if not hasattr(collector, "describe"):
            continue
        for family in collector.describe():
            for suffix in SUFFIXES[family.type]:
                series[family.name + suffix] = {*collector._labelnames} | OF_PROMETHEUS
    return series


def alerts() -> list[dict[str, Any]]:
    """The alert rules."""
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def dashboard() -> dict[str, Any]:
    """Grafana's dashboard."""
    snapshot: dict[str, Any] = json.loads((DEPLOY / "grafana" / "pubswap.json").read_text())
    return snapshot


def expressions() -> list[str]:
    """Every PromQL expression that is shipped."""
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    queries = [v["query"] for v in dashboard()["templating"]["list"] if v["type"] == "query"]
    return [rule["expr"] for rule in alerts()] + panels + queries


def requests(route: str, status: str) -> str:
    """A counter of requests."""
    return f'pubswap_http_requests_total{{route="{route}",status="{status}",instance="a"}}'


def slow(le: str) -> str:
    """A bucket of the heartbeats' times."""
    route = "/v1/runs/{run}/heartbeat"
    return f'pubswap_http_request_seconds_bucket{{route="{route}",{le},instance="a"}}'


@pytest.mark.parametrize("expression", expressions())
def test_every_series_and_label_is_exported(expression: str) -> None:
    """A metric that is renamed takes its alerts and panels with it, or this fails."""
    series = exported()
    names = set(re.findall(r"\bpubswap_\w+", expression))
    assert names or "up{" in expression
    assert names <= series.keys()
    known = set().union(*(series[name] for name in names)) | OF_PROMETHEUS
    matched = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expression))
    grouped = {
        label.strip()
        for part in re.findall(r"by \((.*?)\)", expression)
        for label in part.split(",")
    }
    assert matched | grouped <= known


@pytest.mark.parametrize("expression", expressions())
def test_every_route_that_is_named_is_one(expression: str) -> None:
    """Equal to a template, or a pattern that fits one."""
    for operator, route in re.findall(r"route(=~|!~|=)\"(.*?)\"", expression):
        if operator == "=":
            assert route in routes()
        else:
            alternatives = re.findall(r"\((.*)\)", route)[0].split("|")
            prefix = route.split("(")[0]
            for alternative in alternatives:
                pattern = re.escape(prefix) + alternative
                assert any(re.fullmatch(pattern, known) for known in routes()), pattern


def test_every_alert_says_what_to_do() -> None:
    """A name of its own, a severity, what is wrong, and an action."""
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "action"}
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert scraped["rule_files"] == ["alerts.yml"]
    assert [job["job_name"] for job in scraped["scrape_configs"]] == ["pubswap"]


def test_panels_do_not_overlap() -> None:
    """Each has its place on the board, and a description."""
    taken = set()
    for panel in dashboard()["panels"]:
        assert panel["description"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


# What makes each alert fire, as values of a series each minute, and when.
FIRES = {
    "CoordinatorDown": ({'up{job="pubswap",instance="a"}': "1 1 0x5"}, "5m"),
    "CoordinatorNotReady": ({requests("/readyz", "503"): "0+1x10"}, "6m"),
    "CoordinatorFails": (
        {requests("/v1/runs", "500"): "0+2x20", requests("/v1/runs", "200"): "0+98x20"},
        "15m",
    ),
    "NoSpace": ({requests("/v1/runs/{run}/uploads", "507"): "0 0 1x9"}, "5m"),
    "RoundNotAveraged": ({'pubswap_runs{state="aggregating",instance="a"}': "1x20"}, "16m"),
    "RunStalled": ({'pubswap_runs_stalled{instance="a"}': "1x10"}, "6m"),
    "RunFails": ({'pubswap_runs_failing{instance="a"}': "1x3"}, "1m"),
    "WrongTokens": ({requests("/v1/runs", "401"): "0+59x30"}, "20m"),
    "SlowAnswers": (
        {
            slow('le="1"'): "0+90x30",
            slow('le="2.5"'): "0+100x30",
            slow('le="+Inf"'): "0+100x30",
        },
        "20m",
    ),
}
WELL = {
    'up{job="pubswap",instance="a"}': "1x30",
    requests("/readyz", "503"): "2x30",
    requests("/v1/runs", "500"): "0+1x30",
    requests("/v1/runs", "200"): "0+1000x30",
    requests("/v1/runs", "401"): "0+10x30",
    'pubswap_runs{state="aggregating",instance="a"}': "1x9 0 1x9 0 1x8",
    'pubswap_runs_stalled{instance="a"}': "1 1 0x28",
    'pubswap_runs_failing{instance="a"}': "0x30",
    slow('le="1"'): "0+100x30",
    slow('le="+Inf"'): "0+100x30",
}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_each_alert_fires_when_it_should_and_no_other(tmp_path: Path) -> None:
    """By Prometheus' own rules and clock; and none fires while all is well."""
    assert FIRES.keys() == {rule["alert"] for rule in alerts()}
    cases: list[tuple[str | None, dict[str, str], str]] = [
        *((name, series, at) for name, (series, at) in FIRES.items()),
        *((None, WELL, f"{minute}m") for minute in range(1, 30, 3)),
    ]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": s, "values": values} for s, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": at,
                    "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}][
                        : name is not None
                    ],
                }
            ],
        }
        for name, series, at in cases
    ]
    file = tmp_path / "tests.yml"
    rules = str(DEPLOY / "prometheus" / "alerts.yml")
    file.write_text(yaml.safe_dump({"rule_files": [rules], "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    config = DEPLOY / "prometheus" / "prometheus.yml"
    subprocess.run(["promtool", "check", "config", config], check=True, capture_output=True)
