"""Runs NVFlare's ordinary PyTorch FedAvg recipe in its POC mode, which uses real processes."""

import argparse
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat
from nvflare.recipe import PocEnv


def main() -> None:
    """Run the job to its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    passed = ("folder", "log", "megabytes", "rounds")
    recipe = FedAvgRecipe(
        name="adapters",
        # By class and arguments, because of an instance the server would keep default arguments.
        model={
            "class_path": "peers.nvflare_job.model.Adapter",
            "args": {"megabytes": options.megabytes},
        },
        min_clients=options.clients,
        num_rounds=options.rounds,
        train_script=str(Path(__file__).with_name("client.py")),
        train_args=" ".join(f"--{name} {getattr(options, name)}" for name in passed),
        server_expected_format=ExchangeFormat.PYTORCH,
    )
    run = recipe.execute(PocEnv(num_clients=options.clients))
    run.get_result()


if __name__ == "__main__":
    main()
