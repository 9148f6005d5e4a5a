"""A coordinator, as its operator sees it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pubswap._run import Run, valid_name
from pubswap_client.operator.connecting import DEFAULT_URL, client_with
from pubswap_protocol.cli import explained


class Coordinator:
    """A coordinator, as its operator sees it: `Coordinator().runs()`.

    It sends nothing until a method is called, and does not retry a failed request. A `with` block
    closes its connections, which end with the process in any case.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, ca_file: Path | str | None = None
    ) -> None:
        """Find missing arguments where the operator's commands find them.

        The address is PUBSWAP_COORDINATOR or http://127.0.0.1:8470. The token is
        PUBSWAP_OPERATOR_TOKEN, or in the file PUBSWAP_OPERATOR_TOKEN_FILE, or in operator-token in
        the folder PUBSWAP_DATA_DIR or pubswap-data, so that it need not appear in a notebook.
        `ca_file` is the CA of the coordinator's certificate (PEM) if it is a private one, or
        PUBSWAP_CA_FILE.

        Raises InvalidSettings if the address is invalid or no token is found.
        """
        file = os.environ.get("PUBSWAP_OPERATOR_TOKEN_FILE")
        self._api = client_with(
            url or os.environ.get("PUBSWAP_COORDINATOR") or DEFAULT_URL,
            token,
            Path(file) if file else None,
            Path(ca_file) if ca_file is not None else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.__exit__()

    def __repr__(self) -> str:
        return f"Coordinator({self._api.url!r})"

    def runs(self) -> list[Run]:
        """All runs, newest first."""
        return [Run(self._api, view.id, view.name) for view in self._api.runs()]

    def run(self, run: str) -> Run:
        """One run, by its id or name. Raises UnknownRun."""
        view = self._api.run(valid_name(run))
        return Run(self._api, view.id, view.name)

    def create(
        self,
        recipe: Path | str,
        *,
        data: Path | str | None = None,
        set: Mapping[str, Any] | None = None,
        initial_adapter: Path | str | None = None,
    ) -> Run:
        """Create a run from its file, or from a recipe's name, and open it for members.

        Sends the public and the test set to the coordinator. A recipe with `data.prepare` writes
        its sets to the folder `data`, by default NAME-data; the private ones stay there, for you
        to hand to their organisations. `set` overrides values of the file by dotted key:
        `{"method.period": 4}`. `initial_adapter` is the folder of the adapter to start from, as
        `Run.adapter` or PEFT writes it.

        Raises InvalidSettings, InvalidProblems or InvalidAdapter before anything is sent.
        """
        from pubswap_client.recipes.recipe import load_recipe
        from pubswap_client.recipes.runfile import create_and_open, make_sets, prepare

        with explained():
            loaded = load_recipe(recipe, dict(set or {}))
            files = make_sets(loaded, Path(data) if data is not None else None)
            start = Path(initial_adapter) if initial_adapter is not None else None
            view = create_and_open(self._api, prepare(loaded, files, start))
        return Run(self._api, view.id, view.name)
