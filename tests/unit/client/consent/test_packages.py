"""Verifiers of installed packages: a member allows each by its digest."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pubswap_client.consent.consent import Consent, adopt
from pubswap_client.consent.ledger import Ledger
from pubswap_client.consent.policy import LocalPolicy, default_text, load_policy, policy_path
from pubswap_client.consent.proposal import proposal_of
from pubswap_client.consent.rules import Code, compare
from pubswap_client.demo.demos import MODEL
from pubswap_protocol.messages import RunState, RunView
from pubswap_protocol.model import model_card
from pubswap_protocol.verifiers import verifier_of
from pubswap_protocol.verifiers.registry import VERIFIERS, packages, verifier_version
from support.client.terms import with_terms
from support.coordinator.coordinator import merged
from support.wheels import forget, use

URL = "https://c.example"
VERIFIER = "plugin:complaints"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    forget()
    yield
    forget()


def view(verifier: object = VERIFIER) -> RunView:
    """A run in its first round."""
    settings = merged({"verifier": verifier})
    run = RunView(
        id="r",
        name="triage",
        state=RunState.TRAINING,
        paused=False,
        round=1,
        settings=settings,
        model=model_card(MODEL, settings.lora, "org/model", None),
        created_at="2026-11-23T19:00:00Z",
    )
    return with_terms(run)


def codes(state: Path, verifier: object = VERIFIER) -> list[Code]:
    """Why a member stays away now."""
    refusals = Consent(state, URL, Ledger(state)).review(view(verifier))
    return [refusal.code for refusal in refusals]


def allowed(state: Path, *names: str) -> None:
    """Write a policy with these verifiers."""
    state.mkdir(exist_ok=True)
    lines = ['approve = "never"', f"verifiers = {[*names]}" if names else ""]
    policy_path(state).write_text("\n".join(lines))


def test_a_package_is_used_only_with_the_digest_that_the_policy_names(
    complaints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installing it is not enough, nor is its name; after a change it is refused again."""
    site = Path(shutil.copytree(complaints, tmp_path / "site"))
    use(monkeypatch, site)
    [package] = packages(verifier_of(VERIFIER))
    state = tmp_path / "state"
    for names in ((), (VERIFIER,), ("plugin:other@x",), (package[:-1],)):
        allowed(state, *names)
        assert codes(state) == [Code.VERIFIER]
        assert codes(state, "exact") == []
    allowed(state, "plugin:other@x", package)
    assert codes(state) == []
    parts = [{"verifier": VERIFIER}, {"verifier": "math"}]
    weighted = VERIFIERS.read({"name": "weighted", "parts": parts})
    assert codes(state, weighted) == []
    with (site / "complaint_triage" / "scorer.py").open("a") as scorer:
        scorer.write("# changed\n")
    forget()  # as a restart does
    assert codes(state) == [Code.VERIFIER]
    refusal = Consent(state, URL, Ledger(state)).review(view())[0]
    assert refusal.detail.startswith("The run asks for verifier: plugin:complaints@complaint-tri")
    assert str(tmp_path) not in refusal.detail


def test_a_package_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    """Nothing is looked for elsewhere, and a policy cannot allow what is not there."""
    allowed(tmp_path / "state", VERIFIER + "@anything")
    assert codes(tmp_path / "state") == [Code.VERIFIER]
    asked = {line.what: line.asks for line in compare(LocalPolicy(), proposal_of(view(), URL))}
    assert asked["verifier"] == "plugin:complaints, which is not installed here as a wheel"


def test_the_first_policy_allows_what_is_installed(
    complaints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person sees it at enrolment; without the package, none is allowed in advance."""
    missing = default_text(proposal_of(view(), URL))
    assert "verifiers" not in missing
    use(monkeypatch, complaints)
    assert adopt(tmp_path, view(), URL) is not None
    policy = load_policy(policy_path(tmp_path))
    assert policy.verifiers == packages(verifier_of(VERIFIER))
    (line,) = [
        line for line in compare(policy, proposal_of(view(), URL)) if line.what == "verifier"
    ]
    assert (line.code, line.asks) == (None, policy.verifiers[0])


def test_another_version_than_the_run_s_is_named(
    complaints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise enrolment shows the member's own as what the run asks."""
    use(monkeypatch, complaints)
    [package] = packages(verifier_of(VERIFIER))

    def asks(theirs: str) -> str:
        proposal = proposal_of(view().model_copy(update={"verifier_version": theirs}), URL)
        return next(x.asks for x in compare(LocalPolicy(), proposal) if x.what == "verifier")

    assert asks(verifier_version(VERIFIER)) == package
    another = "plugin:complaints@10+complaint-triage-9.9.9"
    assert asks(another) == f"{another}, and another version is installed here: {package}"
