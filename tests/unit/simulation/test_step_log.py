"""The log of a simulated client's steps, across kills."""

from pathlib import Path

from pubswap_client.daemon.reporters import StepReport
from pubswap_client.state.journal import RoundKey
from pubswap_client.training.metrics import StepMetrics
from pubswap_simulation.results import DonatedTokens
from pubswap_simulation.step_log import StepLog, donated_by_round

DIGEST = "blake3:" + "0" * 64


def metrics(
    reward: float, tokens: int = 0, probability: float = 0.0, clipped: float = 0.0
) -> StepMetrics:
    return StepMetrics(
        donated_tokens=tokens,
        donated_probability=probability,
        donated_clip_share=clipped,
        loss=0.0,
        kl=0.0,
        clip_share=0.0,
        reward=reward,
        zero_variance_share=0.0,
        response_tokens=1.0,
        tokens=1,
        seconds=1.0,
        grad_norm=0.0,
    )


def report(log: StepLog, round_: int, step: int, reward: float, *donated: float) -> None:
    made = metrics(reward, *donated)  # type: ignore[arg-type]
    log.step(StepReport(round_, 3, step, 2, False, [made]))


def test_a_log_goes_on_after_a_kill(tmp_path: Path) -> None:
    """A torn line is replaced, a repeated step counts once, and every step is reported."""
    told: list[int] = []
    path = tmp_path / "rewards"
    log = StepLog(path, lambda: told.append(1))
    report(log, 1, 1, 0.25)
    report(log, 1, 2, 0.5)
    with path.open("a") as file:
        file.write("[3, 0.7")
    again = StepLog(path, lambda: told.append(1))
    report(again, 1, 2, 0.5)
    report(again, 2, 1, 0.75)
    assert again.rewards() == StepLog(path, lambda: None).rewards() == [0.25, 0.5, 0.75]
    assert again.steps == 3
    assert len(told) == 4


def test_a_step_that_was_kept_but_not_reported_is_added_at_the_round_s_end(
    tmp_path: Path,
) -> None:
    """A kill between the two loses neither its reward nor its donated tokens."""
    log = StepLog(tmp_path / "rewards", lambda: None)
    for step, reward in ((1, 0.0), (2, 0.25)):
        report(log, 1, step, reward)
    report(log, 2, 2, 1.0)
    log.trained(RoundKey(2, DIGEST), [metrics(0.5, 4, 0.5, 0.25), metrics(1.0)])
    assert log.steps == 4
    assert log.rewards() == [0.0, 0.25, 0.5, 1.0]
    [found] = donated_by_round([log], 2)
    assert found == DonatedTokens(round=2, tokens=4, probability=0.5, clip_share=0.25)


def test_donated_tokens_are_summed_up_by_round(tmp_path: Path) -> None:
    """Over both clients, weighted by tokens; lines without any do not count."""
    first = StepLog(tmp_path / "first", lambda: None)
    report(first, 1, 1, 0.5)
    report(first, 1, 2, 0.5, 30, 0.5, 0.25)
    report(first, 3, 2, 0.5, 8, 0.25, 0.5)
    (tmp_path / "second").write_text("[1, 0.5]\n")
    second = StepLog(tmp_path / "second", lambda: None)
    report(second, 1, 2, 0.5, 10, 0.9, 0.05)
    expected = (
        DonatedTokens(round=1, tokens=40, probability=0.6, clip_share=0.2),
        DonatedTokens(round=3, tokens=8, probability=0.25, clip_share=0.5),
    )
    assert donated_by_round([first, second], 2) == expected
    again = StepLog(tmp_path / "first", lambda: None)
    assert donated_by_round([again, second], 2) == expected
    assert again.rewards() == [0.5, 0.5, 0.5]
