"""From the predictions of a run to its `metrics.json`: every method and seed, alone and with post-hoc calibration.

Post-hoc calibrators are fitted on the training predictions, shown as (train), and on the calibration split, shown as
(dev), as the paper does. Part of the evaluation half: it reads predictions and needs no torch.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from ebmcal.calibrators import FewRows, make_calibrator
from ebmcal.errors import EbmcalError
from ebmcal.metrics import FewRowsWarning, ood_detection, ood_scores, paired_test, summarize
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell, RunFolder

#: Where a calibrator is fitted, and how that is shown.
FITTED_ON = {"train": "train", "calibration": "dev"}

PAIRED_METRICS = ("accuracy", "ece_classwise", "ece_top_label", "nll", "brier")


def build_rows(folder: RunFolder, cells: Sequence[Cell], posthoc: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of `metrics.json`, in the order of the cells."""
    with warnings.catch_warnings():
        # Small splits and fits that failed are in the notes; a warning for each of many rows would drown the table.
        warnings.simplefilter("ignore", FewRowsWarning)
        warnings.simplefilter("ignore", FewRows)
        warnings.filterwarnings("ignore", message=".* did not (settle|converge)")
        return [row for cell in cells for row in _cell_rows(folder, cell, posthoc)]


def _cell_rows(folder: RunFolder, cell: Cell, posthoc: Sequence[str]) -> Iterator[dict[str, Any]]:
    for test_set in (s for s in folder.splits(cell) if s.startswith("test")):
        predictions = Predictions.read(folder.predictions(cell, test_set))
        yield _row(cell, None, test_set, predictions)
        for name in posthoc:
            for split, shown in FITTED_ON.items():
                calibrator = make_calibrator(name)
                calibrator.fit_predictions(Predictions.read(folder.predictions(cell, split)))
                yield _row(cell, f"{name} ({shown})", test_set, calibrator.apply(predictions), calibrator.note)


def _row(cell: Cell, posthoc: str | None, test_set: str, predictions: Predictions, note: str = "") -> dict[str, Any]:
    figures = summarize(predictions, warn=False)
    return {
        "method": cell.method,
        "posthoc": posthoc,
        "seed": cell.seed,
        "test_set": test_set,
        "n_rows": predictions.n_rows,
        "note": note,
        "metrics": {name: interval.to_json() for name, interval in figures.items()},
    }


def build_paired(folder: RunFolder, cells: Sequence[Cell], against: str = "baseline") -> list[dict[str, Any]]:
    """Each method against the baseline of the same seed, on the same test rows."""
    tests = []
    for cell in cells:
        base = Cell(against, cell.seed)
        if cell.method == against or base not in cells:
            continue
        ours, theirs = (Predictions.read(folder.predictions(c, "test")).labelled() for c in (cell, base))
        for metric in PAIRED_METRICS:
            test = paired_test(metric, ours.labels, ours.probabilities(), theirs.probabilities(), warn=False)
            tests.append(
                {"method": cell.method, "against": against, "seed": cell.seed, "metric": metric, **test.to_json()}
            )
    return tests


def build_detection(folder: RunFolder, cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """How well each model tells test texts from noise and from other texts: by energy, confidence and entropy."""
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        known = Predictions.read(folder.predictions(cell, "test"))
        for split in (s for s in folder.splits(cell) if s == "noise" or s.startswith("ood_")):
            other = Predictions.read(folder.predictions(cell, split))
            for by in ("energy", "max_prob", "entropy"):
                scores = (ood_scores(by, logits=p.logits, energies=p.energies) for p in (known, other))
                figures = ood_detection(*scores)
                found.setdefault(cell.name, {})[f"{split} by {by}"] = figures
    return found


def require_cells(folder: RunFolder) -> list[Cell]:
    """The cells of a run folder, or an error when it has no predictions."""
    cells = folder.cells()
    if not cells:
        raise EbmcalError(f"{folder.root} has no predictions. Make them with: ebmcal run --output {folder.root}")
    return cells
