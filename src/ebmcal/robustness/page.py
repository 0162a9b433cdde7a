"""The result of a robustness test as tables and as an HTML page: curves over strength, tests with their failures."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ebmcal.reports.figures import Picture, draw
from ebmcal.reports.page import Block, Page, Pictures, Section
from ebmcal.reports.plots import Series, line_plot
from ebmcal.reports.table import Column, Table
from ebmcal.robustness.perturbations import PERTURBATIONS

if TYPE_CHECKING:
    import pandas as pd

Meta = Mapping[str, Any]

#: The kinds of tests, as CheckList abbreviates them.
ABBREVIATIONS = {"invariance": "INV", "directional": "DIR", "minimum-functionality": "MFT"}

#: Pictures of a perturbation: title, caption, column → label of the axis.
PICTURES = (
    (
        "accuracy and calibration",
        "Each point: the same texts, perturbed at this strength, with 95% intervals. A robust model may lose accuracy "
        "but keeps its calibration.",
        {"accuracy": "accuracy", "ece_top_label": "ECE top-label"},
    ),
    (
        "energy and OOD detection",
        "Mean energy relative to the original texts, and the share of texts flagged as OOD. Both should rise.",
        {"energy": "energy − energy at 0", "ood": "share OOD"},
    ),
)


def condition_table(conditions: "pd.DataFrame", meta: Meta, *, with_suites: bool = False) -> Table:
    """Metrics by perturbation, strength and model; `with_suites` also for the texts of invariance tests."""
    if not with_suites:
        conditions = conditions[conditions["perturbation"].isin(["", *PERTURBATIONS])]
    order = {name: i for i, name in enumerate(conditions["perturbation"].unique())}
    rows = conditions.assign(order=conditions["perturbation"].map(order)).sort_values(
        ["order", "strength"], kind="stable"
    )
    columns = {
        "title": "Texts", "strength": "Strength", "model": "Model", "accuracy": "Accuracy", "ece_top_label": "ECE",
        "nll": "NLL", "confidence": "Confidence", "energy": "Energy", "ood": "OOD", "changed_label": "Label changed",
    }  # fmt: skip
    calibrators = zip(meta["models"], meta["calibrators"], strict=True)
    notes = (
        f"{meta['n_rows']:,} texts of {meta['data']}, seed {meta['seed']}. ECE is top-label, with 20 bins.",
        "; ".join(
            f"{model}: calibrated by {name}" if name else f"{model}: not calibrated" for model, name in calibrators
        )
        + ".",
        f"OOD: flagged at a false-alarm rate of {meta['false_alarm_rate']:.0%}.",
    )
    frame = rows[list(columns)].rename(columns=columns)
    digits: dict[Column, int | None] = {"Strength": 2, "Energy": 2}
    return Table(frame, "Perturbed texts", notes, digits=digits, sections=list(rows["perturbation"]))


def failure_table(tests: "pd.DataFrame", meta: Meta) -> Table:
    """Failure rates of the tests, with one column per model."""
    import pandas as pd

    notes = [
        "Failed: share of cases with a wrong or changed label, or a probability that moved the wrong way. INV: "
        "invariance, DIR: directional, MFT: minimum functionality."
    ]
    notes += [f"Skipped: {'; '.join(meta['skipped'])}."] if meta["skipped"] else []
    if tests.empty:
        return Table(pd.DataFrame(), "Tests", tuple(notes))
    first = tests[tests["model"] == meta["models"][0]]  # all models have the same cases
    frame: dict[Column, list[Any]] = {
        "Test": list(first["test"]),
        "Kind": [ABBREVIATIONS[kind] for kind in first["kind"]],
        "Strength": [None if strength == 0 else str(int(strength)) for strength in first["strength"]],
        "Cases": list(first["n_cases"]),
    }
    extra: dict[Column, list[str]] = {}
    for model in meta["models"]:
        own, column = tests[tests["model"] == model], ("Failed", model)
        frame[column] = list(own["failed"])
        extra[column] = [_interval(a, b) for a, b in zip(own["failed_low"], own["failed_high"], strict=True)]
    sections = list(first["suite"])
    return Table(pd.DataFrame(frame), "Tests", tuple(notes), extra=pd.DataFrame(extra), sections=sections)


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or low != low else f"[{low:.3f}, {high:.3f}]"


def make_page(
    conditions: "pd.DataFrame", tests: "pd.DataFrame", failures: "pd.DataFrame", examples: "pd.DataFrame", meta: Meta
) -> Page:
    """The page: one section per perturbation, then the tests, their failures and all numbers."""
    names = [name for name in conditions["perturbation"].unique() if name]
    sections = [_section(conditions, examples, name, f"s{i}") for i, name in enumerate(names)]
    if not tests.empty:
        blocks: list[Block] = [failure_table(tests, meta)]
        blocks += [_text_table(failures, f"Failures (at most {_n_shown(failures)} per test)")] if len(failures) else []
        sections.append(Section("Tests", blocks))
    sections.append(Section("All numbers", [condition_table(conditions, meta, with_suites=True)], collapsed=True))
    lead = f"{meta['n_rows']:,} texts of {meta['data']}, perturbed with seed {meta['seed']}."
    return Page(f"Robustness: {' and '.join(meta['models'])}", lead, sections)


def _n_shown(failures: "pd.DataFrame") -> int:
    return int(failures.groupby(["model", "suite", "test", "strength"]).size().max())


def _section(conditions: "pd.DataFrame", examples: "pd.DataFrame", name: str, key: str) -> Section:
    own = conditions[conditions["perturbation"] == name]
    title, unit = own["title"].iloc[0], own["unit"].iloc[0]
    rows = conditions[conditions["perturbation"].isin(["", name])].sort_values("strength", kind="stable")
    pictures = [_picture(rows, title, unit, i, f"{key}-{i}") for i in range(len(PICTURES))]
    blocks: list[Block] = [Pictures(tuple(picture for picture in pictures if picture))]
    shown = examples[examples["perturbation"] == name] if len(examples) else examples
    return Section(title, [*blocks, *([_text_table(shown, "Examples")] if len(shown) else [])])


def _picture(rows: "pd.DataFrame", title: str, unit: str, which: int, key: str) -> Picture | None:
    heading, caption, columns = PICTURES[which]
    lines = {column: _series(rows, column) for column in columns}
    panels = [partial(line_plot, line, x=unit, y=columns[column]) for column, line in lines.items() if line]
    return draw(key, f"{title}: {heading}", caption, *panels) if panels else None


def _series(rows: "pd.DataFrame", column: str) -> list[Series]:
    """One line per model; energies are relative to those of the original texts."""
    found = []
    for model, own in rows.groupby("model", sort=False):
        values = own[column].to_numpy(dtype=float)
        if (values != values).any():
            continue
        values = values - values[0] if column == "energy" else values
        ends = [
            own[f"{column}_{end}"].to_numpy(dtype=float) if f"{column}_{end}" in own else None
            for end in ("low", "high")
        ]
        found.append(Series(str(model), own["strength"].to_numpy(dtype=float), values, *ends))
    return found


def _text_table(rows: "pd.DataFrame", title: str) -> Table:
    columns = [c for c in ("model", "test", "strength", "text", "perturbed", "expected", "got") if c in rows.columns]
    names = {column: column.capitalize() for column in columns}
    return Table(rows[columns].rename(columns=names).reset_index(drop=True), title, digits={"Strength": 2})
