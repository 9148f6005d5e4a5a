"""What deploy/ ships names only what the coordinator really has."""

import functools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pubswap_protocol.cli import build_app
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


@pytest.mark.parametrize(
    "unit", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda p: p.name
)
def test_the_units_start_commands_that_exist(unit: Path) -> None:
    """Each command parses, and its environment names are settings."""
    text, known = (
        unit.read_text(),
        {f"PUBSWAP_{name}".upper() for name in ServerSettings.model_fields},
    )
    assert set(re.findall(r"PUBSWAP_[A-Z_]+", text)) <= known
    commands = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program.endswith("/pubswap")
        done = CliRunner().invoke(build_app(), [*arguments, "--help"])
        assert done.exit_code == 0, done.output
