"""What the images' files say of extras and versions."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_gpu_image_names_extras_and_versions_that_exist() -> None:
    """Members judge as the coordinator does only with its versions of the verifiers."""
    text = (ROOT / "deploy/client.Dockerfile").read_text()
    (extras,) = re.findall(r"EXTRAS=(\S+,\S+)", text)
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert (
            set(extras.split(",")) <= tomllib.load(file)["project"]["optional-dependencies"].keys()
        )
    (pattern,) = re.findall(r"PINNED='(.*?)'", text)
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line.partition("==")[0] for line in lines if re.search(pattern, line)]
    assert len(pinned) == pattern.count("|") + 1
    assert {"torch", "math-verify", "reasoning_gym"} <= set(pinned)
