"""The report of a run as text: Markdown to paste, LaTeX in the layout of the paper, JSON for scripts."""

import json
from collections.abc import Callable

from ebmcal.errors import unknown_name
from ebmcal.reports.details import find_baseline
from ebmcal.reports.run_data import RunData, read_run
from ebmcal.reports.tables import (
    Table,
    comparison_table,
    detection_table,
    list_test_sets,
    paper_table,
    summary_table,
)
from ebmcal.reports.tables.examples import energy_examples, noise_examples
from ebmcal.storage import PathLike


def report_text(run_dir: PathLike, format: str) -> str:
    """The tables of a run directory as "markdown", "latex" or "json"."""
    if format not in _FORMATS:
        raise unknown_name("report format", format, _FORMATS)
    return _FORMATS[format](read_run(run_dir)) + "\n"


def _markdown(data: RunData) -> str:
    found = [*_summaries(data), comparison_table(data.evaluation), detection_table(data.evaluation)]
    parts = [f"# {data.title}"]
    if data.missing:
        parts.append("Not finished:\n\n" + "\n".join(f"- {line}" for line in data.missing))
    parts += [table.to_markdown() for table in [*found, *_examples(data)] if len(table)]
    return "\n\n".join(parts)


def _latex(data: RunData) -> str:
    return paper_table([data.evaluation]).to_latex()


def _json(data: RunData) -> str:
    content = {"missing": list(data.missing), **data.evaluation.to_json()}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)


def _summaries(data: RunData) -> list[Table]:
    return [summary_table(data.evaluation, verbose=True, test_set=name) for name in list_test_sets(data.evaluation)]


def _examples(data: RunData) -> list[Table]:
    """Three texts at each end of the energies of each model, and a few noise texts."""
    found = []
    for subject in data.subjects:
        rows = subject.read(subject.test_sets[0]) if subject.test_sets else None
        baseline = find_baseline(data, subject)
        before = baseline.read(subject.test_sets[0]) if baseline is not None and subject.test_sets else None
        if rows is not None:
            found.append(energy_examples(rows, before, n=3).named(f"{subject.name}: lowest and highest energy"))
    return [*found, noise_examples(data.noise_examples, n=5)]


_FORMATS: dict[str, Callable[[RunData], str]] = {"markdown": _markdown, "latex": _latex, "json": _json}
