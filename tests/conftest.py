"""Which tests a run has, and what those of real processes share."""

import gc
from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also the tests marked `full`")


def pytest_configure(config: pytest.Config) -> None:
    if find_spec("structlog"):  # which vLLM's environment does not have
        import structlog

        # The default draws a traceback with all locals, for seconds on the server's event loop.
        *others, _ = structlog.get_config()["processors"]
        plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        structlog.configure(processors=[*others, plain])
    config.addinivalue_line("markers", "full: slow; for --full, or when its file is named")
    config.addinivalue_line("markers", "long: minutes; for -m long, or when its file is named")
    if find_spec("hypothesis"):  # which vLLM's environment does not have
        from hypothesis import settings

        examples = 30 if config.getoption("full") else 20
        settings.register_profile("pubswap", max_examples=examples, deadline=None)
        settings.load_profile("pubswap")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests, unless --full or their file is given, and the long ones."""
    if any(".py" in word for word in config.args) or config.getoption("markexpr"):
        return
    left_out = ("long",) if config.getoption("full") else ("long", "full")
    found = {item for item in items if any(map(item.get_closest_marker, left_out))}
    config.hook.pytest_deselected(items=[*found])
    items[:] = [item for item in items if item not in found]


def pytest_collection_finish() -> None:
    """Leave what is imported out of garbage collections: each would take a second otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the test starts are not measured.

    Coverage makes a daemon half as slow again, and what daemons run is measured elsewhere.
    """
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


@pytest.fixture(scope="session")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the wheel of examples/complaints is installed."""
    from support.wheels import example, installed

    folder = tmp_path_factory.mktemp("complaints")
    return installed(example(folder), folder)
