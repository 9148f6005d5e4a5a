"""The demos: each a run file, a base model, and problems of several topics."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from pubswap_client.data.drawing import Split, dirichlet_split
from pubswap_client.data.spec import SplitSizes
from pubswap_client.demo import questions, smollm2, tasks
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem

RUN_FILE = Path(str(files("pubswap_client.demo") / "run.toml"))
MODEL = RUN_FILE.parent / "model"


@dataclass(frozen=True)
class Demo:
    """A federation that can be made from nothing."""

    run_file: Path
    base: Callable[[], Path]  # the base model's folder
    streams: Callable[[int], dict[str, Iterator[Problem]]]  # by topic, drawn by a seed
    sizes: SplitSizes
    alpha: float
    dtype: Callable[[], str] = lambda: "auto"  # the base's, on this machine
    judged: bool = False  # a second judge reads the answers at the end

    def split(self, seed: int, clients: int) -> Split:
        """Draw the sets, none of which shares a prompt with another.

        The public and test sets hold the topics in equal parts; each client's private set follows
        its own mixture (`dirichlet_split`). Raises InvalidSettings if a topic has too few prompts.
        """
        total = self.sizes.total(clients)
        streams = self.streams(seed)
        # Take topics in turn, so that any contiguous part is as balanced as possible.
        drawn: list[Problem] = []
        while len(drawn) < total:
            for topic, stream in streams.items():
                problem = next(stream, None)
                if problem is None:
                    raise InvalidSettings(
                        f"{clients} clients are too many for the demo: for {total} problems in "
                        f"all, {topic} has too few different ones."
                    )
                drawn.append(problem)
        test, rest = drawn[: self.sizes.test], drawn[self.sizes.test : total]
        public, pool = rest[: self.sizes.public], rest[self.sizes.public :]
        parts = dirichlet_split([problem.topic for problem in pool], clients, self.alpha, seed)
        rng = random.Random(seed)  # noqa: S311 - a reproducible order, not a secret
        rng.shuffle(test)
        rng.shuffle(public)
        return Split([[pool[i] for i in part] for part in parts], public, test)


TINY = Demo(
    run_file=RUN_FILE,
    base=lambda: MODEL,
    streams=tasks.streams,
    sizes=SplitSizes(private=400, public=240, test=640),
    alpha=0.3,
)
REAL = Demo(
    run_file=RUN_FILE.parent / "smollm2.toml",
    base=smollm2.converted,
    streams=lambda seed: {kind: questions.questions(kind, seed) for kind in questions.KINDS},
    sizes=SplitSizes(private=72, public=60, test=96),
    alpha=0.1,  # nearly one kind for each organisation
    dtype=smollm2.fastest_dtype,
    judged=True,
)
DEMOS = {"tiny": TINY, "smollm2": REAL}
