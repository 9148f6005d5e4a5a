"""Verifiers of installed packages: which package it is, and what its scores count."""

import compileall
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pubswap_protocol.errors import InvalidSettings, PubSwapError
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool, check_usable, verifier_of, verifier_version
from pubswap_protocol.verifiers.plugin import Package, package_of, working_trees
from pubswap_protocol.verifiers.registry import packages
from support.wheels import EXAMPLE, example, forget, installed, pip, project, use

ODD = """
import time
import numpy as np
NUMBER = 1.0
calls = 0
def right(response, *, prompt, answer, metadata): return float(response == answer)
def nan(response, **_): return float("nan")
def two(response, **_): return 2
def text(response, **_): return "1"
def nothing(response, **_): return None
def negative(response, **_): return -0.5
def true(response, **_): return True
def numpy_true(response, **_): return np.bool_(True)
def half(response, **_): return np.float32(0.5)
def raising(response, **_): raise KeyError(response)
def leaving(response, **_): raise SystemExit(3)
def printing(response, **_):
    print("a word", flush=True)
    return 0.5
def mutating(response, *, metadata, **_):
    metadata["list"].pop()
    return len(metadata["list"]) / 2
def hanging(response, **_):
    while response == "hang": pass
    return 1.0
def sleeping(response, **_):
    if response == "hang": time.sleep(3600)
    return 1.0
"""
FUNCTIONS = [line[4:].partition("(")[0] for line in ODD.splitlines() if line.startswith("def ")]
FILES = {
    "odd_scorers.py": ODD,
    "odd_broken.py": "import no_such_module\n",
    "odd_leaving.py": "raise SystemExit('goodbye')\n",
}
ENTRIES = {
    **{name: f"odd_scorers:{name}" for name in FUNCTIONS},
    "constant": "odd_scorers:NUMBER",
    "absent": "odd_scorers:absent",
    "broken": "odd_broken:score",
    "exiting": "odd_leaving:score",
    "foreign": "json:loads",
    "complaints": "odd_scorers:right",
}
PROBLEM = Problem(id="1", prompt="2 + 2 =", answer="4", metadata={"list": [1, 2]})


@pytest.fixture(autouse=True)
def _nothing_is_known() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a wheel with faulty scorers is installed."""
    folder = tmp_path_factory.mktemp("odd")
    return installed(project(folder / "project", "odd-scorers", FILES, ENTRIES), folder)


def package(monkeypatch: pytest.MonkeyPatch, *sites: Path, entry: str = "complaints") -> Package:
    """The package of an entry point if only these folders have packages."""
    with monkeypatch.context() as here:
        use(here, *sites)
        found = package_of(entry)
    forget()
    return found


def copied(site: Path, folder: Path) -> Path:
    """The package in another folder."""
    return Path(shutil.copytree(site, folder))


def test_the_digest_is_that_of_the_wheel_s_own_files(
    complaints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any folder, with or without bytecode, and whatever pip notes about the installation."""
    first = package(monkeypatch, complaints)
    assert str(first) == f"complaint-triage-1.0.0-{first.digest}"
    bare = copied(complaints, tmp_path / "bare")
    for cache in bare.rglob("__pycache__"):
        shutil.rmtree(cache)
    compiled = copied(bare, tmp_path / "compiled")
    assert compileall.compile_dir(compiled, quiet=1)
    assert [*compiled.rglob("*.pyc")] and not [*bare.rglob("*.pyc")]
    for site in (bare, compiled):
        next(site.glob("*.dist-info")).joinpath("INSTALLER").write_text("another\n")
        assert package(monkeypatch, site) == first


def test_another_interpreter_finds_the_same_digest(
    complaints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of its own, as each member has."""
    code = "from pubswap_protocol.verifiers import verifier_version as v; print(v('plugin:{}'))"
    use(monkeypatch, complaints)
    done = subprocess.run(
        [sys.executable, "-c", code.format("complaints")],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.strip() == verifier_version("plugin:complaints"), done.stderr


@pytest.mark.parametrize("change", ["byte", "added", "module", "bytecode", "entry", "version"])
def test_any_change_of_the_package_changes_the_digest(
    complaints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A byte of its data, a file that the wheel did not have, another function."""
    site = copied(complaints, tmp_path / "site")
    inside, information = site / "complaint_triage", next(site.glob("*.dist-info"))
    if change == "byte":
        data = bytearray((inside / "categories.json").read_bytes())
        data[10] ^= 1
        (inside / "categories.json").write_bytes(data)
    elif change == "added":
        (inside / "more").mkdir()
        (inside / "more" / "categories.json").write_text("{}")
    elif change == "module":
        (inside / "helper.py").write_text("")
    elif change == "bytecode":  # without its source Python would run it
        (inside / "helper.pyc").write_bytes(b"")
    elif change == "entry":
        points = information / "entry_points.txt"
        points.write_text(points.read_text().replace(":score", ":other"))
    else:
        metadata = information / "METADATA"
        metadata.write_text(metadata.read_text().replace("1.0.0", "1.0.1"))
    assert str(package(monkeypatch, site)) != str(package(monkeypatch, complaints))


def test_a_rebuilt_wheel_with_another_data_file_has_another_digest(
    complaints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a member's wheel has that was built from changed sources."""
    changed = example(tmp_path)
    data = changed / "src" / "complaint_triage" / "categories.json"
    data.write_text(data.read_text().replace("charges", "charge"))
    site = installed(changed, tmp_path)
    assert package(monkeypatch, site).digest != package(monkeypatch, complaints).digest


def test_a_package_whose_files_are_not_as_installed_is_refused(
    complaints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is missing, or Python would import another package of this name."""
    site = copied(complaints, tmp_path / "site")
    (site / "complaint_triage" / "categories.json").unlink()
    with pytest.raises(InvalidSettings, match=r"cannot be read: .*Install it again"):
        package(monkeypatch, site)
    shadow = tmp_path / "shadow" / "complaint_triage"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("def score(response, **_): return 1.0\n")
    with pytest.raises(InvalidSettings, match=r"not among the files of its package complaint-tri"):
        package(monkeypatch, complaints, tmp_path / "shadow")


def test_a_working_tree_is_for_simulations(
    complaints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be tested, and a simulation has a version of it; a policy and a run cannot name it."""
    tree, site = example(tmp_path), tmp_path / "site"
    pip("install", "--no-build-isolation", "--target", site, "--editable", tree)
    found = package(monkeypatch, site, tree / "src")  # as the .pth file does
    assert found.editable
    assert str(found).startswith("complaint-triage-1.0.0-editable-")
    assert not package(monkeypatch, complaints).editable
    use(monkeypatch, site, tree / "src")
    check_usable("plugin:complaints")
    with pytest.raises(InvalidSettings, match=r"working tree.*pip wheel"):
        verifier_version("plugin:complaints")
    assert packages(verifier_of("plugin:complaints")) == ("plugin:complaints",)
    with working_trees():
        assert verifier_version("plugin:complaints").endswith(str(found))
    (tree / "src" / "complaint_triage" / "more.json").write_text("{}")
    forget()
    assert package_of("complaints").digest != found.digest


def test_a_source_folder_on_the_path_is_a_working_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no list of installed files, and once had the digest of nothing."""
    tree = example(tmp_path)
    pip("wheel", "--no-build-isolation", "--wheel-dir", tmp_path, tree)
    assert [*(tree / "src").glob("*.egg-info")]
    first = package(monkeypatch, tree / "src")
    assert first.editable
    scorer = tree / "src" / "complaint_triage" / "scorer.py"
    scorer.write_text(scorer.read_text().replace("0.5", "0.6"))
    assert package(monkeypatch, tree / "src").digest != first.digest


def test_no_package_or_two_of_them(
    complaints: Path, odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told by name, with what to do."""
    with pytest.raises(InvalidSettings, match=r"complaints is not installed.*Installed: none\."):
        verifier_version("plugin:complaints")
    use(monkeypatch, complaints)
    with pytest.raises(InvalidSettings, match=r"'claims'.*Installed: plugin:complaints\."):
        verifier_version("plugin:claims")
    use(monkeypatch, odd)
    with pytest.raises(InvalidSettings, match=r"complaint-triage and odd-scorers\. Uninstall"):
        verifier_version("plugin:complaints")


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 65, "\n"])
def test_a_name_that_no_entry_point_has(name: str) -> None:
    """It is refused before anything is looked for."""
    with pytest.raises(InvalidSettings):
        verifier_of(f"plugin:{name}")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("broken", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("exiting", "cannot be imported: SystemExit: goodbye"),
        ("absent", "cannot be imported: AttributeError"),
        ("constant", "odd_scorers:NUMBER, which is no function"),
        ("foreign", "json:loads, which Python finds at .*, not among the files of its package odd"),
    ],
)
def test_an_entry_point_that_leads_nowhere(
    odd: Path, monkeypatch: pytest.MonkeyPatch, entry: str, reason: str
) -> None:
    """It is refused before the first response, in a sentence, and ends no process of ours."""
    use(monkeypatch, odd)
    with VerifierPool() as pool, pytest.raises(PubSwapError, match=reason):
        pool.prepare([f"plugin:{entry}"])


@pytest.fixture
def pool(odd: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VerifierPool]:
    """Workers that find the faulty scorers."""
    use(monkeypatch, odd)
    with VerifierPool(seconds=1.0) as started:
        yield started


def test_what_a_scorer_returns(pool: VerifierPool, capfd: pytest.CaptureFixture[str]) -> None:
    """Numbers from 0 to 1 count, numpy's and truth values, too; all else scores 0."""
    expected = {
        **dict.fromkeys(("nan", "two", "text", "nothing", "negative", "raising"), 0.0),
        **dict.fromkeys(("true", "numpy_true", "right"), 1.0),
        **dict.fromkeys(("half", "printing"), 0.5),
    }
    got = {name: pool.score(f"plugin:{name}", ("4", PROBLEM)) for name in expected}
    assert {name: scored.score for name, scored in got.items()} == expected
    assert not any(scored.cut_off for scored in got.values())
    printed, said = capfd.readouterr()
    assert "a word" not in printed + said
    assert {name for name, scored in got.items() if "raised TypeError" in scored.fault} == {
        "text",
        "nothing",
    }


def test_metadata_is_as_it_was_for_each_response(pool: VerifierPool) -> None:
    """A scorer that changes it gives the same score again, and changes nothing here."""
    cases = [("4", PROBLEM)] * 3
    assert pool.score_many("plugin:mutating", cases) == [0.5] * 3
    assert PROBLEM.metadata == {"list": [1, 2]}


@pytest.mark.parametrize("name", ["hanging", "leaving"])
def test_a_scorer_that_hangs_or_leaves_is_cut_off(pool: VerifierPool, name: str) -> None:
    """The next response gets a new process."""
    scored = pool.score(f"plugin:{name}", ("hang", PROBLEM))
    assert (scored.score, scored.cut_off, scored.fault) == (
        0.0,
        name == "hanging",
        "raised SystemExit: 3" if name == "leaving" else "",
    )
    assert pool.score("plugin:right", ("4", PROBLEM)).score == 1.0


def test_the_example_s_own_tests_pass(
    complaints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the installed wheel, without PubSwap."""
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(complaints), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["plugin:mine", "reasoning_gym:gcd"])
def test_a_verifier_in_one_word_is_read_again_as_it_is(name: str) -> None:
    """As where a run file's settings become the run's."""
    once = RunSettings(verifier=name)
    assert str(RunSettings(verifier=once.verifier).verifier) == name
