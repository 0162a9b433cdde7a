"""The seeds of a run as one model: for each method with several seeds, the mean of their probabilities.

Shown as "hidden + ensemble", and below it with each post-hoc calibrator, fitted on the calibration split of the
ensemble itself. `judging` judges them as it does the cells.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from ebmcal.calibrators import Calibrator, make_calibrator
from ebmcal.calibrators.held_out import require_two_classes
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions, ensemble
from ebmcal.runfolder import Cell, RunFolder

#: What an ensemble is called in the place of a post-hoc step.
ENSEMBLE = "ensemble"


def ensembles_of(
    folder: RunFolder, cells: Sequence[Cell], posthoc: Sequence[str] = ()
) -> Iterator[tuple[dict[str, Any], Predictions]]:
    """What to call it and the predictions, for every test set of every method that has several seeds among the cells.

    for identity, predictions in ensembles_of(folder, cells, ["temperature"]):
        judge(predictions, **identity)
    """
    for method in dict.fromkeys(cell.method for cell in cells):
        members = [cell for cell in cells if cell.method == method]
        if len(members) > 1:
            for shown, note, test_set, predictions in _steps(folder, members, posthoc):
                yield {"method": method, "posthoc": shown, "test_set": test_set, "note": note}, predictions


def _steps(
    folder: RunFolder, members: Sequence[Cell], posthoc: Sequence[str]
) -> Iterator[tuple[str, str, str, Predictions]]:
    calibrators = list(_fitted(posthoc, _together(folder, members, "calibration"))) if posthoc else []
    for test_set in (split for split in folder.splits(members[0]) if split.startswith("test")):
        rows = _together(folder, members, test_set)
        yield ENSEMBLE, f"{len(members)} seeds", test_set, rows
        for calibrator in calibrators:
            yield f"{ENSEMBLE} + {calibrator.name} (dev)", calibrator.note, test_set, calibrator.apply(rows)


def _fitted(posthoc: Sequence[str], held_out: Predictions) -> Iterator[Calibrator]:
    """Those that can be fitted: why others cannot is told of each seed by itself."""
    for name in posthoc:
        with contextlib.suppress(EbmcalError):
            require_two_classes(held_out, "calibration split")
            yield make_calibrator(name).fit_predictions(held_out)


def _together(folder: RunFolder, members: Sequence[Cell], split: str) -> Predictions:
    return ensemble([Predictions.read(folder.predictions(cell, split)) for cell in members])
