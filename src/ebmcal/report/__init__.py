"""The report: one HTML file that needs nothing else, neither network nor server.

`reading` gathers a run folder, `page` makes tables and pictures of it, the template lays them out.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ebmcal.predictions import Predictions
from ebmcal.runfolder import RunFolder
from ebmcal.storage.atomic import write_text
from ebmcal.storage.sealing import SEAL, reseal


def write_report(run_dir: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run folder, to its `report.html` unless `out` says otherwise, and return where it is.

    A half-finished run gives a report that says what is missing; a damaged file is an `EbmcalError` that names it.

        ebmcal.write_report("runs/mine", "mine.html")
    """
    from ebmcal.report.html import render
    from ebmcal.report.material import read_run
    from ebmcal.report.page import build_page

    target = Path(out) if out is not None else RunFolder(Path(run_dir)).report
    write_text(target, render(build_page(read_run(run_dir))))
    if target == RunFolder(Path(run_dir)).report and (target.parent / SEAL).exists():
        reseal(target)
    return target


def report_text(run_dir: str | Path, form: str) -> str:
    """The tables of a run folder as one text: `form` is "markdown", "latex" (the paper's layout) or "json".

    For example:

        print(report_text("runs/mine", "markdown"))
    """
    from ebmcal.report import plain

    return plain.report_text(run_dir, form)


def write_evaluation_report(
    path: str | Path,
    named: Mapping[str, Predictions],
    document: Mapping[str, Any] | None = None,
    title: str = "Predictions",
) -> Path:
    """Write the report of prediction files alone: name → predictions, the first (or "baseline") beside the others.

    `document` is a `metrics.json` document whose methods are the names; without it the metrics are computed here.

        write_evaluation_report("mine.html", {"ours": ours, "theirs": theirs})
    """
    from ebmcal.report.html import render
    from ebmcal.report.material import Material, Subject
    from ebmcal.report.page import build_page
    from ebmcal.tables import check_document

    subjects = tuple(Subject(name, None, {"test": predictions}) for name, predictions in named.items())
    material = Material(title, check_document(document or {}, "the metrics"), subjects)
    write_text(path, render(build_page(material)))
    return Path(path)


__all__ = ["report_text", "write_evaluation_report", "write_report"]
