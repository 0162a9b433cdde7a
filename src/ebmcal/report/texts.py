"""The report without pictures: Markdown to paste, LaTeX in the paper's layout, JSON for scripts."""

import json
from collections.abc import Callable
from pathlib import Path

from ebmcal import tables
from ebmcal.errors import unknown_name
from ebmcal.report.page import find_baseline, with_rows
from ebmcal.report.reading import Material, read_run
from ebmcal.tables.examples import energy_example_table, energy_examples, noise_example_table, noise_examples


def report_text(run_dir: str | Path, form: str) -> str:
    """The tables of a run folder as "markdown", "latex" or "json"."""
    if form not in TEXTS:
        raise unknown_name("report format", form, TEXTS)
    return TEXTS[form](read_run(run_dir)) + "\n"


def _markdown(material: Material) -> str:
    found = [*_summaries(material), tables.paired_table(material.document), *_examples(material)]
    parts = [tables.to_markdown(table) for table in found if table.rows]
    if material.missing:
        parts.insert(0, "Not finished:\n\n" + "\n".join(f"- {line}" for line in material.missing))
    return "\n\n".join(parts)


def _latex(material: Material) -> str:
    return tables.to_latex(tables.paper_table([{"task": material.title, **with_rows(material)}]))


def _json(material: Material) -> str:
    document = with_rows(material)
    seeds = [tables.seed_table(document, test_set=name) for name in tables.list_test_sets(document)]
    found = {"summary": _summaries(material), "seeds": seeds, "paired": [tables.paired_table(document)]}
    found["detection"] = [tables.detection_table(document)]
    data = {name: [tables.to_data(table) for table in group] for name, group in found.items()}
    return json.dumps({"missing": list(material.missing), **data}, indent=2, ensure_ascii=False, allow_nan=False)


def _summaries(material: Material) -> list[tables.Table]:
    document = {"task": material.title, **with_rows(material)}
    return [tables.summary_table(document, test_set=name) for name in tables.list_test_sets(document)]


def _examples(material: Material) -> list[tables.Table]:
    """Three texts at each end of each model's energies, and a few noise texts."""
    found = []
    for subject in material.subjects:
        baseline = find_baseline(subject, material.subjects)
        for name, rows in list(subject.test_sets().items())[:1]:
            before = baseline.splits.get(name) if baseline else None
            found.append(energy_example_table(energy_examples(rows, before, n=3), subject.name))
    return [*found, noise_example_table(noise_examples(material.noise_records, n=5))]


TEXTS: dict[str, Callable[[Material], str]] = {"markdown": _markdown, "latex": _latex, "json": _json}
