"""Write into docs/models.md how a small random model of each architecture trains.

It takes minutes. Run it after a change of transformers' version, after make_text_models.py:

    PYTHONPATH=tests .venv/bin/python scripts/make_models_page.py
"""

import warnings
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers.utils import logging

from support.models.every_model import UNLISTED, model_types, way  # type: ignore[import-not-found]

PAGE = Path(__file__).parents[1] / "docs/models.md"
BEGIN, END = "<!-- written by scripts/make_models_page.py -->\n", "<!-- end -->\n"


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    found: dict[str, list[str]] = defaultdict(list)
    for kind in model_types():
        with TemporaryDirectory() as folder:
            try:
                found[way(kind, Path(folder))].append(kind)
            except Exception as error:  # name it, and go on
                print(f"{kind}: {type(error).__name__}: {error}")
                found["not trained: clients fail"].append(kind)
    rows = "".join(
        f"| {name} | {', '.join(kinds)} |\n"
        for name, kinds in sorted(found.items())
        if not name.startswith(UNLISTED)
    )
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    table = f"| | model types |\n|---|---|\n{rows}"
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
