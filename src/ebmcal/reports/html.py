"""The HTML report of a run directory, or of an evaluation of prediction files: one file, no network."""

from pathlib import Path
from typing import TYPE_CHECKING

from ebmcal.reports.details import detail_sections
from ebmcal.reports.overview import find_focus, lead, overview_sections
from ebmcal.reports.page import Page, write_page
from ebmcal.reports.run_data import RunData, Subject, read_run
from ebmcal.reports.tables.results import row_name
from ebmcal.run_dir import RunDir
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    from ebmcal.evaluation import Evaluation


def write_report(run_dir: PathLike, path: PathLike | None = None) -> Path:
    """Write the report of a run directory, to its `report.html` unless `path` is given; returns the path.

    The report of an unfinished run lists what is missing; a corrupt file is an `EbmcalError` that names it.

        ebmcal.write_report("runs/mine", "mine.html")
    """
    return write_page(path or RunDir(Path(run_dir)).report, build_page(read_run(run_dir)))


def write_evaluation_report(evaluation: "Evaluation", path: PathLike, title: str = "Evaluation") -> Path:
    """Write the report of an evaluation of predictions; returns the path.

    write_evaluation_report(ebmcal.evaluate({"ours": ours, "theirs": theirs}), "report.html")
    """
    frame, subjects = evaluation.results, []
    for name in dict.fromkeys(frame["model"]):
        calibrators = dict.fromkeys(frame["calibrator"][(frame["model"] == name) & frame["calibrator"].notna()])
        found = {key: evaluation.predictions.get(row_name(name, key)) for key in (None, *calibrators)}
        known = {key: rows for key, rows in found.items() if rows is not None}
        if None in known:
            versions = {key: rows for key, rows in known.items() if key is not None}
            subjects.append(Subject(name, given={"test": known[None]}, versions=versions))
    return write_page(path, build_page(RunData(title, evaluation, tuple(subjects))))


def build_page(data: RunData) -> Page:
    """The page of a report: what everyone needs first, collapsed sections after it."""
    focus = find_focus(data)
    return Page(data.title, lead(data, focus), [*overview_sections(data, focus), *detail_sections(data, focus)])
