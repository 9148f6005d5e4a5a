"""What only the loaded model can tell: its packed path, and a step's duration."""

from pubswap_client.doctor.finding import Finding, ok, warning
from pubswap_client.doctor.prediction import Prediction, duration_text
from pubswap_client.operator.tables import size_text
from pubswap_client.training.trial import Trial
from pubswap_protocol.settings import RunSettings

PACKED, TRIAL, PREDICTION = "packed path", "trial step", "prediction"
_MOSTLY = 0.5


def packed_finding(difference: float) -> Finding:
    """The self-check was passed."""
    return ok(PACKED, f"log-probabilities in packs are the model's own (within {difference:.1e})")


def check_trial(trial: Trial, run: RunSettings) -> Finding:
    """The step went through, and its responses are something to learn from."""
    found = (
        f"{duration_text(trial.seconds)}: sampling {duration_text(trial.rollout_seconds)}, "
        f"verifying {duration_text(trial.reward_seconds)}, updating "
        f"{duration_text(trial.update_seconds)}; responses of {trial.response_tokens:.0f} tokens, "
        f"mean reward {trial.reward:.2f}, memory {size_text(trial.memory_bytes)}"
    )
    limit = run.grpo.max_response_tokens
    if trial.cut_share > _MOSTLY:
        return warning(
            TRIAL,
            f"{found}; {trial.cut_share:.0%} of them were cut off at {limit} tokens",
            "Cut responses are rarely right. Ask the operator for a larger "
            "grpo.max_response_tokens, and see that the prompts ask for short answers.",
        )
    if trial.reward == 0:
        return warning(
            TRIAL,
            f"{found}; none was right, so that this step taught nothing",
            "One step says little. If it stays so, look whether the prompts say how to give the "
            "answer, and take easier problems.",
        )
    if trial.reward == 1:
        return warning(
            TRIAL,
            f"{found}; all were right, so that this step taught nothing",
            "One step says little. If it stays so, take harder problems.",
        )
    return ok(TRIAL, found)


def prediction_finding(prediction: Prediction) -> Finding:
    """Never wrong, only uncertain: responses get longer or shorter in training."""
    return ok(PREDICTION, str(prediction))
