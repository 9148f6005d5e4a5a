"""Runs of before the parameters of methods, rules and other named values were their own."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import Conflict
from pubswap_protocol.messages import RunState, RunView
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.terms import agreed, differences, make_terms, with_clients
from pubswap_server.database.engine import migrate
from pubswap_server.database.tables import RunRow
from support.client.results import CARD
from support.coordinator.older import go_back

Tables = dict[str, Any]
DEFAULTS: Tables = json.loads(Path(__file__).with_name("settings-0019.json").read_text())

EXCHANGE = {
    "clients": 5,
    "grpo": {
        "clipping": "sequence",
        "clip_low": 0.01,
        "clip_high": 0.02,
        "donor_ratio": "decoupled",
    },
    "swap": {
        "strategy": "random",
        "period": 4,
        "mode": "pipelined",
        "sampling_check": "off",
        "quorum": 3,
        "deadline_seconds": 7.0,
    },
    "fedprox": {"mu": 0.5},
    "aggregation": {
        "rule": "multi_krum",
        "krum_f": 1,
        "krum_m": 2,
        "trim": 0.4,
        "server_optimizer": "momentum",
        "server_learning_rate": 0.3,
    },
}
EXCHANGE_TODAY = {
    "clients": 5,
    "method": {
        "name": "pubswap",
        "strategy": "random",
        "period": 4,
        "mode": "pipelined",
        "sampling_check": "off",
        "quorum": 3,
        "deadline_seconds": 7.0,
        "donor_ratio": "decoupled",
    },
    "grpo": {"clipping": {"name": "sequence", "low": 0.01, "high": 0.02}},
    "aggregation": {
        "rule": {"name": "multi_krum", "bad": 1, "averaged": 2},
        "server_optimizer": {"name": "momentum", "rate": 0.3},
    },
}
PROXIMAL = {
    "method": "fedprox",
    "fedprox": {"mu": 0.5},
    "aggregation": {"rule": "svd", "weights": "examples", "max_weight_share": 0.4, "krum_f": 7},
    "lora": {"min_rank": 8},
    "privacy": {"epsilon": 3.0, "clip": 0.5},
}
PROXIMAL_TODAY = {
    "method": {"name": "fedprox", "mu": 0.5},
    "aggregation": {
        "rule": {"name": "svd", "min_rank": 8},
        "weights": {"name": "examples", "max_share": 0.4},
    },
    "privacy": {"epsilon": 3.0, "clip": 0.5},
}
PLAIN = {
    "method": "fedavg",
    "swap": {"period": 9, "strategy": "random"},
    "aggregation": {"rule": "trimmed_mean", "trim": 0.3, "server_optimizer": "adam"},
    "privacy": {"clip": 0.5},
}
PLAIN_TODAY = {
    "method": "fedavg",
    "aggregation": {
        "rule": {"name": "trimmed_mean", "trim": 0.3},
        "server_optimizer": {"name": "adam", "rate": 0.01},
    },
}


def older(changes: Tables) -> Tables:
    """The settings as schema 0019 stored them, all of them, with some changed."""
    tables: Tables = json.loads(json.dumps(DEFAULTS))
    for key, value in changes.items():
        tables[key] = tables[key] | value if isinstance(value, dict) else value
    return tables


def stored_by_0019(database_url: str, settings: Tables) -> str:
    """Make this a database of schema 0019 with one open run, and return the run's terms."""
    migrate(database_url)
    model = CARD.model_dump(mode="json")
    terms = make_terms("run", settings, model, "math@1", digest_of(b"public"))
    engine = create_engine(database_url, poolclass=NullPool)
    values = {"settings": RunSettings(), "model": CARD, "verifier_version": "math@1"}
    with Session(engine) as session, session.begin():
        session.add(RunRow(id="r", name="run", state="open", terms=terms, **values))
    with engine.begin() as connection:
        old = {"settings": json.dumps(settings)}
        connection.execute(text("UPDATE runs SET settings = :settings"), old)
        go_back(connection.exec_driver_sql, "0019")
    return terms


@pytest.mark.parametrize(
    ("before", "today"),
    [
        ({}, {}),
        (EXCHANGE, EXCHANGE_TODAY),
        (PROXIMAL, PROXIMAL_TODAY),
        (PLAIN, PLAIN_TODAY),
        ({"swap": {"max_donated_tokens": 1}}, {"method": {"strategy": "none"}}),
    ],
    ids=["defaults", "exchange", "proximal", "plain", "no exchange"],
)
def test_a_run_of_before_means_what_its_members_approved(
    database_url: str, before: Tables, today: Tables
) -> None:
    """Settings and terms are read alike, and the bytes of the terms stay, so nobody is asked."""
    terms = stored_by_0019(database_url, older(before))
    migrate(database_url)
    meant = RunSettings.model_validate(today)
    with Session(create_engine(database_url, poolclass=NullPool)) as session:
        row = session.get_one(RunRow, "r")
        assert row.settings == meant
        assert row.terms == terms
        shown = RunView(
            id="r",
            name=row.name,
            state=RunState.OPEN,
            paused=False,
            round=0,
            settings=row.settings,
            model=row.model,
            created_at=datetime(2026, 11, 23, tzinfo=UTC),
            terms=row.terms,
        )
    assert agreed(shown).settings == meant


def test_a_change_of_older_terms_is_told_by_today_s_names() -> None:
    """A member that has approved terms of before sees just what differs."""
    old, other = (
        make_terms("run", older(each), CARD.model_dump(mode="json"), "math@1", digest_of(b""))
        for each in (EXCHANGE, EXCHANGE | {"aggregation": EXCHANGE["aggregation"] | {"krum_m": 3}})
    )
    assert differences(old, other) == {"aggregation.rule.averaged": ("2", "3")}
    assert differences(old, with_clients(old, 6)) == {"clients": ("5", "6")}


def test_a_run_with_a_longest_donated_response_is_refused(database_url: str) -> None:
    """No setting does this any more, and without it the run would be another one."""
    stored_by_0019(database_url, older({"swap": {"max_donated_tokens": 100}}))
    migrate(database_url)
    with Session(create_engine(database_url, poolclass=NullPool)) as session:
        row = session.get_one(RunRow, "r")
        with pytest.raises(Conflict, match=r"\(swap.max_donated_tokens: removed in"):
            _ = row.settings.method
