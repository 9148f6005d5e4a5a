"""Make a split: private sets whose topics differ, a public and a test set, as one folder."""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from pubswap_client.data.answers import refused
from pubswap_client.data.drawing import Split, divide, fitted, quotas, take
from pubswap_client.data.examples import Tally
from pubswap_client.data.fingerprint import Origin, sha256_of
from pubswap_client.data.manifest import (
    MANIFEST,
    LeftOut,
    Manifest,
    SplitFile,
    check_files,
    check_same,
    read_manifest,
    spec_record,
)
from pubswap_client.data.picture import TOPICS, draw_topics
from pubswap_client.data.progress import bar
from pubswap_client.data.reading import read_source
from pubswap_client.data.spec import DataSpec
from pubswap_client.files import sync_folder, write_whole
from pubswap_protocol.errors import Conflict
from pubswap_protocol.problems import Problem, write_problems
from pubswap_protocol.verifiers import VerifierPool

_MOST_WORKERS = 8


def prepare(spec: DataSpec, out: Path) -> Path:
    """Make the folder `out` with the split; does nothing if it holds the same one, intact.

    Raises Conflict if `out` holds anything else, InvalidSettings for sizes or settings that are not
    possible, InvalidProblems for data that cannot be used, or a split that was changed.
    """
    if _is_done(spec, out):
        return out
    split, origins, tally = _make(spec)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Under another name until it is whole: a kill leaves no half split under the name asked for.
    making = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        _write(making, spec, split, origins, tally)
        making.chmod(0o755)
        try:
            making.rename(out)
        except OSError:
            # Another process has made it meanwhile.
            if not _is_done(spec, out):
                raise
        sync_folder(out.parent)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return out


def _is_done(spec: DataSpec, out: Path) -> bool:
    """Whether the split is there. Raises Conflict if something else is."""
    if (out / MANIFEST).exists():
        manifest = read_manifest(out)
        check_same(out, manifest, spec)
        check_files(out, manifest)
        return True
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise Conflict(
            f"{out} is there already and holds no split made by `pubswap data prepare`. Give "
            "another folder, or empty it."
        )
    return False


def _make(spec: DataSpec) -> tuple[Split, list[Origin], Tally]:
    tally = Tally()
    source = read_source(spec, tally)
    sizes = spec.sizes(source.usable)
    total = sizes.total(spec.clients)
    parts = quotas([stream.share for stream in source.streams], total)
    drawn: list[Problem] = []
    with VerifierPool(_workers()) as verifiers, bar("checking answers", total) as advance:
        check = partial(_accepted, spec, verifiers, tally, advance)
        for stream, quota in zip(source.streams, parts, strict=True):
            taken = take(stream.problems, quota, check)
            drawn += taken
    return divide(drawn, spec, fitted(spec, sizes, len(drawn))), source.origins, tally


def _accepted(
    spec: DataSpec,
    verifiers: VerifierPool,
    tally: Tally,
    advance: Callable[[int], None],
    problems: Sequence[Problem],
) -> list[Problem]:
    """Those whose verifier takes their own answer, or whose verifier is the run's to say."""
    known = [problem for problem in problems if problem.verifier is not None]
    wrong = {problem.id for problem in refused(known, None, verifiers.score_many)}
    for problem in known:
        if problem.id in wrong:
            tally.add(f"answer: not accepted by its verifier {problem.verifier}", problem.id)
    advance(len(problems) - len(wrong))
    return [problem for problem in problems if problem.id not in wrong]


def _workers() -> int:
    return min(os.cpu_count() or 1, _MOST_WORKERS)


def _write(folder: Path, spec: DataSpec, split: Split, origins: list[Origin], tally: Tally) -> None:
    files = {}
    for name, problems in split.named().items():
        path = folder / f"{name}.jsonl"
        write_problems(path, problems)
        topics = Counter(problem.topic for problem in problems)
        files[path.name] = SplitFile(
            sha256=sha256_of(path), problems=len(problems), topics=dict(sorted(topics.items()))
        )
    left_out = [
        LeftOut(reason=reason, rows=skipped.rows, first=skipped.first)
        for reason, skipped in tally.reasons.items()
    ]
    manifest = Manifest(
        pubswap=version("pubswap"),
        spec=spec_record(spec),
        origins=origins,
        left_out=left_out,
        files=files,
    )
    draw_topics(manifest, folder / TOPICS)
    write_whole(folder / MANIFEST, manifest.model_dump_json(indent=2).encode() + b"\n")
