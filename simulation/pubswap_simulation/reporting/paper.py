"""The paper's own figures: pass@1 in per cent of the final checkpoint, by row and tau.

Rows are named as in this report's tables; recipes as those that are shipped.
"""

from collections.abc import Mapping

Rows = Mapping[str, Mapping[int, float]]

_MAIN = (10, 40, 90, 120)
_KEEP = "PubSwap-keep, period {}"


def _rows(taus: tuple[int, ...], **rows: tuple[float, ...]) -> Rows:
    names = {
        "base": "base model",
        "fedavg": "FedAvg",
        "fedprox": "FedProx, best μ",
        "keep2": _KEEP.format(2),
        "keep4": _KEEP.format(4),
        "keep8": _KEEP.format(8),
    }
    return {
        names[key]: dict(zip(taus, values if len(values) > 1 else values * len(taus), strict=True))
        for key, values in rows.items()
    }


FIGURES: Mapping[str, Rows] = {
    "qwen3-1.7b-math": _rows(
        _MAIN,
        base=(55.2,),
        fedavg=(77.9, 75.6, 75.5, 75.9),
        fedprox=(77.5, 76.0, 76.5, 75.6),
        keep2=(77.0, 76.7, 76.9, 76.6),
    ),
    "qwen3-1.7b-deepmath": _rows(
        _MAIN,
        base=(14.9,),
        fedavg=(48.9, 52.7, 50.4, 50.7),
        fedprox=(50.6, 52.3, 48.0, 47.7),
        keep2=(51.1, 53.0, 53.3, 55.8),
    ),
    "qwen2.5-math-1.5b-math": _rows(
        _MAIN,
        base=(58.4,),
        fedavg=(73.5, 72.3, 71.9, 71.1),
        fedprox=(72.8, 71.4, 71.5, 70.6),
        keep2=(72.4, 71.6, 72.5, 71.9),
    ),
    "qwen2.5-math-1.5b-deepmath": _rows(
        _MAIN,
        base=(34.9,),
        fedavg=(51.0, 52.3, 50.5, 49.3),
        fedprox=(52.2, 52.1, 48.0, 49.4),
        keep2=(52.4, 53.1, 50.8, 53.1),
    ),
    "qwen3-4b-deepmath": _rows(
        _MAIN, base=(51.1,), fedavg=(66.9, 66.5, 67.0, 67.4), keep2=(70.0, 65.4, 70.2, 70.5)
    ),
    "llama-3.2-3b-medical": _rows(
        _MAIN, base=(49.2,), fedavg=(58.7, 58.2, 57.9, 56.0), keep2=(57.5, 59.4, 58.5, 58.1)
    ),
    "qwen3-1.7b-deepmath-alpha0.1": _rows(
        (40, 90, 120), base=(14.9,), fedavg=(52.0, 51.6, 51.3), keep2=(53.0, 56.7, 54.9)
    ),
    "qwen3-1.7b-deepmath-periods": _rows(
        (80, 90, 120),
        fedavg=(48.0, 50.4, 50.7),
        fedprox=(46.5, 48.0, 47.7),
        keep2=(52.2, 53.3, 55.8),
        keep4=(54.3, 54.3, 52.5),
        keep8=(53.1, 53.4, 52.6),
    ),
    "qwen2.5-math-1.5b-deepmath-periods": _rows(
        (90, 120),
        fedavg=(50.5, 49.3),
        fedprox=(48.0, 49.4),
        keep2=(51.0, 53.1),
        keep4=(52.3, 53.6),
        keep8=(51.9, 51.7),
    ),
}


def figures(recipes: set[str]) -> Mapping[str, Rows]:
    """Those of the recipes that the paper has; of all its recipes if it has none of these."""
    found = {recipe: rows for recipe, rows in FIGURES.items() if recipe in recipes}
    return found or FIGURES
