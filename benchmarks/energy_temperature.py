"""What a temperature that follows the energy is worth under shift: against one temperature, on the cells of a study.

    python benchmarks/energy_temperature.py results/study

Both are fitted on the calibration half of each cell and judged on its test half and on the labelled texts from
elsewhere (`shift_*`). Writes `energy_temperature.csv`, a row for each cell, texts and calibrator, and
`tables/energy-temperature.md`: NLL and class-wise ECE, means over tasks and seeds, and the difference in NLL with its
interval over seeds and rows. Needs the predictions alone; run it again when the study has more seeds.
"""

import argparse
import csv
import io
import statistics
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.calibrators import make_calibrator
from ebmcal.metrics.comparing import PairedTest, compare_measured, holm, mean_of_tests
from ebmcal.metrics.intervals import Measured, measure
from ebmcal.metrics.registry import metric
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell
from ebmcal.storage.atomic import write_text

PLAIN, ONE, BY_ENERGY = "", "temperature", "energy-temperature"
METRICS = ("accuracy", "ece_classwise", "ece_top_label", "nll", "brier")
N_RESAMPLES = 400

#: (run, method, seed, texts) → calibrator → predictions.
Judged = dict[tuple[str, str, int, str], dict[str, Predictions]]


def read(folder: Path) -> tuple[Judged, dict[tuple[str, str, int], float]]:
    """The labelled texts of every cell as predicted and with each calibrator; and the b of each cell."""
    judged: Judged = {}
    slopes = {}
    for place in sorted((folder / "predictions").glob("*/*/")):
        cell, held_out = Cell.parse(place.name), place / "calibration.parquet"
        if not held_out.exists():
            continue
        fitted = {name: _fit(name, Predictions.read(held_out)) for name in (ONE, BY_ENERGY)}
        slopes[place.parent.name, cell.method, cell.seed] = fitted[BY_ENERGY].b_
        for path in (place / "test.parquet", *sorted(place.glob("shift_*.parquet"))):
            rows = Predictions.read(path)
            if (rows.labels >= 0).any():
                key = (place.parent.name, cell.method, cell.seed, path.stem.removeprefix("shift_"))
                judged[key] = {PLAIN: rows} | {name: found.apply(rows) for name, found in fitted.items()}
    return judged, slopes


def _fit(name: str, rows: Predictions) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows
        return make_calibrator(name).fit_predictions(rows)


def rows_of(judged: Judged, slopes: dict[tuple[str, str, int], float]) -> Iterator[dict[str, Any]]:
    """A line of the CSV for each cell, texts and calibrator."""
    for (run, method, seed, texts), versions in judged.items():
        for calibrator, found in versions.items():
            known = found.labelled()
            figures = {
                name: round(float(metric(name).function(known.labels, probs=known.probabilities())), 5)
                for name in METRICS
            }
            yield {
                "run": run, "method": method, "seed": seed, "texts": texts, "calibrator": calibrator,
                "n_rows": known.n_rows, "b": round(slopes[run, method, seed], 4) if calibrator == BY_ENERGY else "",
                **figures,
            }  # fmt: skip


def table(judged: Judged, lines: Sequence[dict[str, Any]]) -> str:
    """A line for each texts and method; the last column is what the energy changes."""
    groups = list(dict.fromkeys((texts, method) for _, method, _, texts in judged))
    groups.sort(key=lambda group: (group[0] != "test", group[0]))
    tests = {group: _difference(judged, *group) for group in groups}
    adjusted = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
    shown = [["texts", "method", "NLL plain", "T", "T(x)", "ECE plain", "T", "T(x)", "T(x) − T in NLL"]]
    for texts, method in groups:
        means = [
            statistics.fmean(
                line[key] for line in lines if (line["texts"], line["method"], line["calibrator"]) == (texts, method, c)
            )
            for key in ("nll", "ece_classwise")
            for c in (PLAIN, ONE, BY_ENERGY)
        ]
        test, p_value = tests[texts, method], adjusted[texts, method]
        chance = "" if p_value is not None and p_value < 0.05 else " (n.s.)"
        change = f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]{chance}"
        shown.append([texts, f"`{method}`", *(f"{mean:.3f}" for mean in means), change])
    shown.insert(1, ["---"] * len(shown[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in shown) + "\n"


def _difference(judged: Judged, texts: str, method: str) -> PairedTest:
    """NLL with the energy minus without: over the seeds and rows of each task, then over tasks."""
    runs: dict[str, list[list[Measured]]] = {}
    for (run, named, _, on), versions in judged.items():
        if (named, on) == (method, texts):
            runs.setdefault(run, []).append([_nll(versions[name]) for name in (BY_ENERGY, ONE)])
    tests = [compare_measured(*map(list, zip(*seeds, strict=True))).to_json() for seeds in runs.values()]
    return mean_of_tests(tests)


def _nll(rows: Predictions) -> Measured:
    known = rows.labelled()
    wanted = {"nll": (metric("nll"), {})}
    return measure(wanted, known.labels, known.probabilities(), n_resamples=N_RESAMPLES, seed=0)["nll"]


def write_csv(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_text(path, text.getvalue())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    judged, slopes = read(folder)
    if not judged:
        raise SystemExit(f"No predictions with a calibration half below {folder / 'predictions'}.")
    lines = list(rows_of(judged, slopes))
    write_csv(folder / "energy_temperature.csv", lines)
    write_text(folder / "tables" / "energy-temperature.md", table(judged, lines))
    positive = np.mean([b > 0 for b in slopes.values()])
    print(f"{len(lines)} rows of {len(slopes)} cells in {folder / 'energy_temperature.csv'}; b > 0 in {positive:.0%}")
