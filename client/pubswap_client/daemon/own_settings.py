"""What a member does less of than the run's settings say: prompts, responses, rank."""

from pubswap_client.settings import ClientSettings
from pubswap_client.training.own_rank import OwnRank
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.settings import RunSettings


def own_settings(client: ClientSettings, run: RunSettings) -> RunSettings:
    """The run's settings with the member's own b and K: those of its private steps.

    Raises InvalidSettings for more than the run's.
    """
    own = {
        name: value
        for name in ("prompts_per_step", "responses_per_prompt")
        if (value := getattr(client, name)) is not None
    }
    for name, value in own.items():
        if value > (most := getattr(run.grpo, name)):
            raise InvalidSettings(
                f"{name} = {value} is above the run's grpo.{name} = {most}; a member may have less."
            )
    return run.model_copy(update={"grpo": run.grpo.model_copy(update=own)})


def own_rank(client: ClientSettings, run: RunSettings) -> OwnRank | None:
    """The member's rank if it is not the run's; raises InvalidSettings if the run refuses it."""
    rank, most = client.rank, run.lora.rank
    if rank is None or rank == most:
        return None
    fewest = run.lora.min_rank or most
    if not fewest <= rank <= most:
        takes = f"the rank {most}" if fewest == most else f"ranks from {fewest} to {most}"
        raise InvalidSettings(f"rank = {rank} is none of the run's: it takes {takes} (lora.rank).")
    return OwnRank(rank)
