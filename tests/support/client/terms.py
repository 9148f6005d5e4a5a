"""Runs with the terms that a coordinator would give them."""

from dataclasses import replace
from datetime import UTC, datetime

from pubswap_client.consent.proposal import Proposal
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import RunState, RunView
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.terms import make_terms
from support.client.results import CARD


def terms_of(settings: RunSettings, name: str = "medqa", model: ModelCard = CARD) -> str:
    """The terms of a run with an empty public set."""
    values = (each.model_dump(mode="json") for each in (settings, model))
    return make_terms(name, *values, "exact@1", digest_of(b""))


def with_terms(view: RunView) -> RunView:
    """The run as a coordinator shows it to a member once it is open."""
    return view.model_copy(update={"terms": terms_of(view.settings, view.name, view.model)})


def proposed(settings: RunSettings) -> Proposal:
    """What a run with these settings asks in its first round."""
    view = RunView(
        id="r",
        name="medqa",
        state=RunState.TRAINING,
        paused=False,
        round=1,
        settings=settings,
        model=CARD,
        created_at=datetime(2026, 11, 23, tzinfo=UTC),
    )
    return Proposal(with_terms(view), "https://c.example")


def changed(ask: Proposal, **changes: object) -> Proposal:
    """The same run with other fields."""
    return replace(ask, view=ask.view.model_copy(update=changes))
