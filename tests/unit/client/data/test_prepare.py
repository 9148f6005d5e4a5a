"""Preparing whole splits from small files in the hub's formats."""

import errno
import json
import os
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import filter_repo_objects
from typer.testing import CliRunner

from pubswap_client.data.drawing import fitted
from pubswap_client.data.fault_list import fault_list
from pubswap_client.data.manifest import (
    MANIFEST,
    Origin,
    check_files,
    read_manifest,
)
from pubswap_client.data.prepare import prepare
from pubswap_client.data.reading import tables
from pubswap_client.data.sources import HUB_SETS
from pubswap_client.data.spec import DataSpec, SourceName, SplitSizes
from pubswap_protocol.cli import build_app
from pubswap_protocol.errors import Conflict, InvalidProblems, InvalidSettings, PubSwapError
from pubswap_protocol.problems import Problem, read_problems
from support.client.hub_files import (
    MATH_FEATURES,
    math_rows,
    medmcqa_rows,
    medqa_rows,
    write_deepmath,
    write_jsonl,
    write_math,
    write_medmcqa,
    write_medqa,
    write_parquet,
)

SMALL = {"private_size": 12, "public_size": 8, "test_size": 10}
NAMES = [*(f"client-{n}" for n in (1, 2, 3, 4)), "public", "test"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with small hub data sets as they are downloaded: math, deepmath and medical."""
    folder = tmp_path_factory.mktemp("hub")
    write_math(folder / "math")
    (folder / "math" / ".cache" / "huggingface").mkdir(parents=True)
    (folder / "math" / ".cache" / "huggingface" / "x.json").write_text("{}")
    (folder / "math" / "README.md").write_text("# MATH")
    write_deepmath(folder / "deepmath")
    write_medqa(folder / "medical" / "MedQA-USMLE-4-options")
    write_medmcqa(folder / "medical" / "medmcqa")
    return folder


def spec_for(source: SourceName, path: Path, **settings: Any) -> DataSpec:
    return DataSpec(source=source, from_=path, **{**SMALL, **settings})


def sets_of(folder: Path) -> dict[str, list[Problem]]:
    return {name: read_problems(folder / f"{name}.jsonl") for name in NAMES}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def numbered(count: int = 70, topics: int = 3, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "id": n,
            "prompt": f"Say {n}.",
            "answer": str(n),
            "topic": f"t{n % topics}",
            **more,
        }
        for n in range(count)
    ]


@pytest.mark.parametrize("source", ["math", "deepmath", "medical"])
def test_a_split_has_the_sizes_asked_and_no_prompt_twice(
    hub: Path, tmp_path: Path, source: SourceName
) -> None:
    """Four equal private sets, a public and a test set, all disjoint, with a manifest."""
    out = prepare(spec_for(source, hub / source), tmp_path / "deep" / "split")
    sets = sets_of(out)
    assert [len(sets[name]) for name in NAMES] == [12, 12, 12, 12, 8, 10]
    everything = [problem for problems in sets.values() for problem in problems]
    assert len({problem.prompt for problem in everything}) == len(everything) == 66
    assert len({problem.id for problem in everything}) == 66
    verifier = "choice" if source == "medical" else "math"
    assert {problem.verifier for problem in everything} == {verifier}
    manifest = read_manifest(out)
    check_files(out, manifest)
    for name, problems in sets.items():
        counted = Counter(problem.topic for problem in problems)
        assert manifest.files[f"{name}.jsonl"].topics == counted
    assert sorted(contents(out)) == sorted(["manifest.json", *(f"{name}.jsonl" for name in NAMES)])
    fault_list(out).unlink(missing_ok=True)
    assert [path.name for path in out.parent.iterdir()] == ["split"]


def test_default_sizes_are_shares_of_the_usable_problems(tmp_path: Path) -> None:
    """A few answers that their verifier cannot read make the sets smaller, and are counted."""
    rows = [
        {"id": n, "prompt": f"{n} =", "answer": str(n) if n % 40 else "So 7", "topic": "sums"}
        for n in range(200)
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps(row | {"verifier": "math"}) + "\n" for row in rows))
    out = prepare(DataSpec(source="jsonl", from_=file, clients=2), tmp_path / "out")
    manifest = read_manifest(out)
    assert [each.problems for each in manifest.files.values()] == [78, 78, 19, 19]
    assert [left.rows for left in manifest.left_out] == [5]


def test_medical_is_half_medqa_and_leaves_out_what_has_no_answer(hub: Path, tmp_path: Path) -> None:
    """The two sets are mixed half and half; rows without an answer are counted."""
    out = prepare(spec_for("medical", hub / "medical"), tmp_path / "half")
    kinds = Counter(p.id.split("-")[0] for part in sets_of(out).values() for p in part)
    assert kinds == {"medqa": 33, "medmcqa": 33}
    left_out = {left.reason.split(":")[0]: left.rows for left in read_manifest(out).left_out}
    assert left_out == {"cop": 10}


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(hub: Path, tmp_path: Path) -> None:
    """Every file is a function of the spec and the data."""
    spec = spec_for("medical", hub / "medical")
    first, again = (contents(prepare(spec, tmp_path / name)) for name in ("first", "again"))
    assert first == again
    other = contents(prepare(spec.model_copy(update={"seed": 1}), tmp_path / "other"))
    assert all(other[f"{name}.jsonl"] != first[f"{name}.jsonl"] for name in NAMES)


def test_the_split_does_not_depend_on_how_rows_are_spread_over_files(tmp_path: Path) -> None:
    """The hub's parquet files and reversed JSON lines give the same sets."""
    parts = {
        "MedQA": [*medqa_rows(40, "train"), *medqa_rows(20, "test")],
        "medmcqa": [*medmcqa_rows(80, "train"), *medmcqa_rows(20, "validation")],
    }
    write_medqa(tmp_path / "hub" / "MedQA")
    write_medmcqa(tmp_path / "hub" / "medmcqa", test=0)
    (tmp_path / "hub" / "folder.parquet").mkdir()  # a name alone makes no file
    for name, rows in parts.items():
        write_jsonl(tmp_path / "lines" / f"{name}.jsonl", rows[::-1])
    splits = [
        contents(prepare(spec_for("medical", tmp_path / kind), tmp_path / f"{kind}-split"))
        for kind in ("hub", "lines")
    ]
    for name in NAMES:
        assert len({split[f"{name}.jsonl"] for split in splits}) == 1


def test_a_repository_of_the_hub_is_read_as_it_is_laid_out(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All subjects of MATH; the manifest's origin has the commit.

    The repository is a local folder; only the download itself is not tested.
    """

    def download(name: str, repo_type: str, allow_patterns: list[str]) -> str:
        assert repo_type == "dataset"
        folder, commit = hub / "math", tmp_path / name / "snapshots" / "c0ffee"
        files = (path for path in folder.rglob("*") if path.is_file())
        wanted = filter_repo_objects(
            [path.relative_to(folder).as_posix() for path in files],
            allow_patterns=allow_patterns,
        )
        for file in wanted:
            (commit / file).parent.mkdir(parents=True, exist_ok=True)
            (commit / file).symlink_to(folder / file)
        return str(commit)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    found, origins = tables(DataSpec(source="math"), HUB_SETS["math"])
    rows = [[*each.table.rows()] for each in found]
    assert sorted(map(len, rows)) == [6] * 7 + [10] * 7
    assert len({row.cells["type"] for table in rows for row in table}) == 7
    assert origins == [Origin(name="EleutherAI/hendrycks_math", revision="c0ffee")]


def test_alpha_and_clients_leave_the_public_and_test_sets_as_they_are(tmp_path: Path) -> None:
    """So runs with another heterogeneity or number of clients are compared on the same test set."""
    path = write_jsonl(tmp_path / "own.jsonl", numbered(200))
    splits = [
        contents(prepare(spec_for("jsonl", path, **settings), tmp_path / str(number)))
        for number, settings in enumerate([{}, {"alpha": 0.1}, {"clients": 2, "private_size": 24}])
    ]
    for name in ("public.jsonl", "test.jsonl"):
        assert len({split[name] for split in splits}) == 1
    assert splits[0]["client-1.jsonl"] != splits[1]["client-1.jsonl"]


def test_an_existing_split_is_left_alone(tmp_path: Path) -> None:
    """Nothing is written the second time."""
    path = write_jsonl(tmp_path / "own.jsonl", numbered())
    out = prepare(spec_for("jsonl", path), tmp_path / "split")
    times = {file: file.stat().st_mtime_ns for file in out.iterdir()}
    assert prepare(spec_for("jsonl", path), out) == out
    assert {file: file.stat().st_mtime_ns for file in out.iterdir()} == times


def test_another_split_is_not_overwritten(tmp_path: Path) -> None:
    """A folder with a split of another spec or of other files, or with anything else, is refused
    and left unchanged.
    """
    path = write_jsonl(tmp_path / "own.jsonl", numbered())
    out = prepare(spec_for("jsonl", path), tmp_path / "split")
    before = contents(out)
    with pytest.raises(Conflict, match="alpha"):
        prepare(spec_for("jsonl", path, alpha=0.1), out)
    write_jsonl(path, numbered(71))
    with pytest.raises(Conflict, match="other files"):
        prepare(spec_for("jsonl", path), out)
    assert contents(out) == before
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "client-1.jsonl").write_text("precious")
    with pytest.raises(InvalidSettings, match="mine already exists"):
        prepare(spec_for("jsonl", path), mine)
    assert contents(mine) == {"client-1.jsonl": b"precious"}


def test_a_folder_that_cannot_be_created_is_named_with_the_system_s_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a mounted volume, which nothing can be renamed to."""

    def busy(self: Path, target: Path) -> Path:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    path = write_jsonl(tmp_path / "own.jsonl", numbered())
    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(Conflict, match="split could not be created: Device or resource busy"):
        prepare(spec_for("jsonl", path), tmp_path / "split")


def test_a_split_of_an_earlier_version_counts_unless_its_prompts_are_others(tmp_path: Path) -> None:
    """Settings that are gone matter only if they were set, as an instruction was."""
    path = write_jsonl(tmp_path / "own.jsonl", numbered())
    out = prepare(spec_for("jsonl", path), tmp_path / "split")
    manifest = json.loads((out / MANIFEST).read_bytes())
    for instruction, refused in ((None, False), ("Answer in Latin.", True)):
        manifest["spec"] |= {"instruction": instruction, "tasks": {}, "half": None}
        (out / MANIFEST).write_text(json.dumps(manifest))
        outcome = pytest.raises(Conflict, match="instruction") if refused else nullcontext()
        with outcome:
            prepare(spec_for("jsonl", path), out)


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    """A file that differs from what was written is named, and so is a missing one."""
    path = write_jsonl(tmp_path / "own.jsonl", numbered())
    out = prepare(spec_for("jsonl", path), tmp_path / "split")
    (out / "public.jsonl").write_bytes((out / "public.jsonl").read_bytes() + b"\n")
    with pytest.raises(InvalidProblems, match=r"public\.jsonl was changed"):
        prepare(spec_for("jsonl", path), out)
    (out / "public.jsonl").unlink()
    with pytest.raises(InvalidProblems, match=r"public\.jsonl is missing"):
        prepare(spec_for("jsonl", path), out)


def test_a_user_s_problems_get_a_verifier(tmp_path: Path) -> None:
    """Where they have no verifier of their own; ids, metadata and numbers are kept."""
    rows = [
        {"prompt": f"Say {n}.", "answer": n, "topic": n % 2, "id": f"mine-{n}"}
        | {"metadata": {"n": n}}
        for n in range(60)
    ]
    path = write_jsonl(tmp_path / "own.jsonl", rows)
    spec = spec_for(
        "jsonl",
        path,
        verifier="exact",
        private_size=None,
        public_size=None,
        test_size=None,
    )
    sets = sets_of(prepare(spec, tmp_path / "split"))
    assert [len(sets[name]) for name in NAMES] == [12, 12, 12, 12, 6, 6]
    problem = sets["public"][0]
    number = int(problem.id.removeprefix("mine-"))
    assert problem == Problem(
        id=f"mine-{number}",
        prompt=f"Say {number}.",
        answer=str(number),
        topic=str(number % 2),
        verifier="exact",
        metadata={"n": number},
    )


def test_a_table_is_not_read_as_jsonl(tmp_path: Path) -> None:
    """The message has the command that converts it."""
    (tmp_path / "own.csv").write_text("id,prompt,answer\n1,2 + 2 =,4\n")
    with pytest.raises(InvalidProblems, match=r"not JSONL.*pubswap data convert .*own\.csv"):
        prepare(spec_for("jsonl", tmp_path / "own.csv"), tmp_path / "split")


def test_repeated_prompts_are_used_once(tmp_path: Path) -> None:
    """Prompts that differ only in surrounding white space are left out and counted."""
    rows = [
        *numbered(60),
        *(
            {**row, "id": f"again-{n}", "prompt": f" Say {n}. "}
            for n, row in enumerate(numbered(20))
        ),
    ]
    path = write_jsonl(tmp_path / "own.jsonl", rows)
    spec = spec_for("jsonl", path, private_size=10, public_size=10, test_size=10)
    out = prepare(spec, tmp_path / "split")
    prompts = [problem.prompt for part in sets_of(out).values() for problem in part]
    assert sorted(prompts) == sorted(row["prompt"] for row in numbered(60))
    assert [left.rows for left in read_manifest(out).left_out] == [20]


def test_the_papers_sizes_give_way_to_a_few_unusable_rows() -> None:
    """Default private sets may be up to 1 % smaller than the paper's; explicit sizes are
    binding.
    """
    spec = DataSpec(source="math")
    assert fitted(spec, spec.sizes(), {"math": 12_500}) == SplitSizes(2500, 1250, 1250)
    assert fitted(spec, spec.sizes(), {"math": 12_493}) == SplitSizes(2498, 1250, 1250)
    with pytest.raises(InvalidSettings, match="12350 to use"):
        fitted(spec, spec.sizes(), {"math": 12_350})
    given = spec.model_copy(update={"private_size": 2500})
    with pytest.raises(InvalidSettings, match="private_size"):
        fitted(given, given.sizes(), {"math": 12_493})


def test_wrong_files_are_refused_with_the_reason(hub: Path, tmp_path: Path) -> None:
    """Each reason is named: another format, no topic, broken or missing."""
    junk = tmp_path / "junk"
    junk.mkdir()
    (junk / "a.parquet").write_text("junk")
    (tmp_path / "half.jsonl").write_text('{"problem":')
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "empty.jsonl").touch()
    topicless = {"problem": "What is 1?", "solution": "It is $\\boxed{1}$."}
    write_jsonl(tmp_path / "topicless.jsonl", [topicless])
    out = tmp_path / "out"
    cases: list[tuple[SourceName, Path, str]] = [
        ("math", hub / "deepmath", "read as Parquet, has no column 'problem', 'solution', 'type'"),
        (
            "math",
            tmp_path / "topicless.jsonl",
            "topicless.jsonl, read as JSONL, has no column 'type'",
        ),
        ("medical", hub / "medical" / "medmcqa", "medqa gave 0, medmcqa gave 33"),
        ("math", junk, "a.parquet, read as JSONL, has no row with named columns"),
        (
            "math",
            tmp_path / "half.jsonl",
            "half.jsonl, read as JSONL, has no row with named columns",
        ),
        ("math", tmp_path / "text.txt", "text.txt, read as text in UTF-8.* has no column"),
        (
            "math",
            tmp_path / "empty.jsonl",
            "empty.jsonl, read as JSONL, has no row with named columns",
        ),
        ("jsonl", tmp_path / "empty.jsonl", "empty.jsonl has no problems"),
        ("math", tmp_path / "nowhere", "from: there is no"),
    ]
    for source, path, reason in cases:
        with pytest.raises(PubSwapError, match=reason):
            prepare(spec_for(source, path), out)
    assert not out.exists()


def test_answers_that_cannot_be_right_are_refused(tmp_path: Path) -> None:
    """The message names the column of solutions without a box, or of answers that their verifier
    cannot read.
    """
    rows = [{**row, "solution": "It is 3."} for row in math_rows("algebra", "train", 90)]
    write_parquet(tmp_path / "boxless.parquet", rows, MATH_FEATURES)
    with pytest.raises(InvalidProblems, match=r"90 of 90 .*solution: no \\boxed"):
        prepare(spec_for("math", tmp_path / "boxless.parquet"), tmp_path / "out")
    words = write_jsonl(tmp_path / "words.jsonl", numbered(90, verifier="choice"))
    with pytest.raises(InvalidProblems, match=r"answer: .* not read by their own verifier"):
        prepare(spec_for("jsonl", words), tmp_path / "out")


def test_an_empty_line_before_another_is_named(tmp_path: Path) -> None:
    """Not as text that is no JSON."""
    file = write_jsonl(tmp_path / "own.jsonl", numbered(3))
    file.write_text(file.read_text().replace("\n", "\n\n", 1))
    with pytest.raises(InvalidProblems, match="line 2: the line is empty; remove it"):
        prepare(spec_for("jsonl", file), tmp_path / "out")


def test_options_that_are_counted_from_one_are_refused(tmp_path: Path) -> None:
    """As the authors' own files do, and however large the other files of the hub are."""
    write_medqa(tmp_path / "from" / "medqa", train=1000)
    write_medmcqa(tmp_path / "from" / "medmcqa", train=1000)
    rows = [{**row, "cop": row["cop"] + 1} for row in medmcqa_rows(80)]
    write_jsonl(tmp_path / "from" / "train.jsonl", rows)
    with pytest.raises(InvalidProblems, match=r"20 of 80 rows of train.jsonl .* cop: not 0 to 3"):
        prepare(spec_for("medical", tmp_path / "from"), tmp_path / "out")


def test_answers_are_checked_for_each_set_separately(tmp_path: Path) -> None:
    """The larger set must not hide answers of the smaller one that the verifier refuses.

    K is an added option in MedQA here, which no response can choose.
    """
    rows = [
        {**row, "options": {**row["options"], "K": "Plan K"}, "answer_idx": "CKK"[n % 3]}
        for n, row in enumerate(medqa_rows(40))
    ]
    write_jsonl(tmp_path / "from" / "medqa.jsonl", rows)
    write_medmcqa(tmp_path / "from" / "medmcqa", train=100)
    with pytest.raises(InvalidProblems, match=r"not read by their own .*'K'"):
        prepare(spec_for("medical", tmp_path / "from"), tmp_path / "out")


def test_a_few_broken_rows_are_left_out_and_named(tmp_path: Path) -> None:
    """Up to 5 % of broken rows are counted in the manifest, which names the first ones."""
    write_medqa(tmp_path / "from" / "medqa", train=99)
    rows = medmcqa_rows(100)
    rows[3]["opb"] = None
    write_jsonl(tmp_path / "from" / "train.jsonl", rows)
    manifest = read_manifest(prepare(spec_for("medical", tmp_path / "from"), tmp_path / "out"))
    broken = next(left for left in manifest.left_out if left.reason.startswith("opb"))
    assert (broken.rows, broken.first) == (1, ["train.jsonl, line 4"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 2: Invalid JSON"),
        ("[" * 10**5, "line 2: Invalid JSON"),
        ("[1]", "line 2: Input should be an object"),
        ('{"prompt": "a", "answer": "b"}', "line 2: id: it is missing"),
        ('{"id": 1, "prompt": "a"}', "line 2: answer: it is missing"),
        ('{"id": 1, "prompt": "a", "answer": "b", "amount": 3}', "line 2: amount: .*metadata"),
        ('{"id": 1, "prompt": "a", "answer": ""}', "line 2: answer"),
        ('{"id": 1, "prompt": 3, "answer": "b"}', "line 2: prompt"),
        ('{"id": 1, "prompt": "a", "answer": "b", "verifier": "x"}', "'x'"),
        ('{"id": 1, "prompt": "a", "answer": "b", "metadata": 3}', "line 2: metadata"),
        ('{"id": 0, "prompt": "a", "answer": "b"}', "line 2: id '0' occurs twice"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    """A user's own file is refused at its first unusable line."""
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(numbered(1)[0]) + "\n" + line + "\n")
    with pytest.raises(PubSwapError, match=reason):
        prepare(spec_for("jsonl", path), tmp_path / "out")


def test_topics_are_shown_as_they_are_written(tmp_path: Path) -> None:
    """Square brackets are printed literally, even if they look like Rich markup."""
    path = tmp_path / "own.jsonl"
    write_jsonl(path, [row | {"topic": f"[/b] [level {row['topic']}]"} for row in numbered()])
    out = prepare(spec_for("jsonl", path), tmp_path / "[red] out")
    done = CliRunner(env={"COLUMNS": "200"}).invoke(build_app(), ["data", "show", str(out)])
    assert done.exit_code == 0
    assert "[/b] [level t1]" in done.stdout
    assert "[red] out" in done.stdout
