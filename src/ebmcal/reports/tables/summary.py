"""Tables of one evaluation: models × metrics, paired tests, OOD detection."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ebmcal.reports.tables.published import PUBLISHED, PUBLISHED_NOTE, published_set
from ebmcal.reports.tables.results import (
    FROZEN_PROBE,
    Key,
    Row,
    list_test_sets,
    metric_direction,
    metric_title,
    recommended_key,
    result_rows,
    row_name,
    shown_metrics,
    text_or_none,
)
from ebmcal.reports.tables.table import Column, Table, format_value

if TYPE_CHECKING:
    from ebmcal.evaluation import Evaluation

COMPARISON_NOTE = (
    "Difference: model minus reference on the same {test_set} rows, with 95% interval. p (Holm) is adjusted for all "
    "tests of this table. Needed: rough number of rows or seeds that would show this difference in four of five cases."
)
DETECTION_NOTE = (
    "AUROC: how well a score separates test texts from other texts; 0.5 is guessing, higher is better. FPR: share of "
    "other texts accepted by a threshold that accepts 95% of the test texts; lower is better."
)


def summary_table(
    evaluation: "Evaluation",
    verbose: bool = False,
    *,
    test_set: str | None = None,
    metrics: Sequence[str] | None = None,
    recommended: Key | None = None,
) -> Table:
    """Models × metrics on a test set (the first unless stated), the recommended model first, the best values marked.

    `verbose` adds intervals, calibrators fitted on the training rows, ensembles of the seeds, and the published results
    of a paper task.
    """
    test_set = test_set or next(iter(list_test_sets(evaluation)), "test")
    recommended = recommended or recommended_key(evaluation)
    rows = result_rows(evaluation.results, test_set)
    rows = [row for row in rows if verbose or not row.is_detail or row.key == recommended] or rows
    rows.sort(key=lambda row: row.key != recommended)
    names = list(metrics) if metrics is not None else shown_metrics(evaluation, rows)
    table = metrics_table(rows, names, intervals=verbose)
    theirs = published_set(evaluation.meta.get("task"), test_set) if verbose else None
    if theirs:
        pairs = [PUBLISHED.get(_published_name(row.key), {}).get(theirs, (None, None)) for row in rows]
        for name, values in zip(("Published", "Published ECE"), zip(*pairs, strict=True), strict=True):
            table.frame[name] = list(values)
    notes = [*_summary_notes(evaluation, rows, names, test_set, verbose), *([PUBLISHED_NOTE] if theirs else [])]
    chosen = next((i for i, row in enumerate(rows) if row.key == recommended), None)
    return Table(
        table.frame, table.title, tuple(notes), table.better, extra=table.extra, recommended=chosen,
        sections=["recommended" if i == chosen else row.key[0] for i, row in enumerate(rows)],
    )  # fmt: skip


def metrics_table(rows: Sequence[Row], metrics: Sequence[str], *, intervals: bool = False) -> Table:
    """Any result rows × metrics, with intervals (or standard deviations over seeds) if wanted."""
    import pandas as pd

    titles = {metric: metric_title(metric) for metric in metrics}
    columns: dict[str, list[Any]] = {"Model": [row.name for row in rows]}
    if len({row.n_seeds for row in rows if row.n_seeds and row.key[0] != FROZEN_PROBE}) > 1:
        columns["Seeds"] = [row.n_seeds for row in rows]
    columns |= {title: [row.value(metric) for row in rows] for metric, title in titles.items()}
    extra = None
    if intervals:
        found = {t: [r.values[m].interval if m in r.values else "" for r in rows] for m, t in titles.items()}
        extra = pd.DataFrame(found)
    better: dict[Column, int] = {t: metric_direction(m) for m, t in titles.items() if metric_direction(m)}
    return Table(pd.DataFrame(columns), better=better, extra=extra)


def seed_table(evaluation: "Evaluation", *, test_set: str | None = None) -> Table:
    """Every trained model (method and seed) and calibrator with every metric and what the calibrator learned."""
    import pandas as pd

    frame = evaluation.results
    frame = frame[frame["test_set"] == (test_set or next(iter(list_test_sets(evaluation)), "test"))]
    if "n_seeds" in frame:
        frame = frame[frame["seed"].notna() | frame["n_seeds"].isna()]
    found: dict[str, dict[str, Any]] = {}
    for record in frame.to_dict("records"):
        name = row_name(str(record["model"]), text_or_none(record.get("calibrator")))
        row = found.setdefault(name, {"Model": name})
        row[metric_title(str(record["metric"]))] = record["value"]
        if text_or_none(record.get("calibrator")) and text_or_none(record.get("note")):
            notes = [note for note in record["note"].split("; ") if not note.startswith("mean of ")]  # an ensemble
            row["Fitted"] = notes[0] if notes else None
    table = pd.DataFrame(list(found.values()))
    return Table(table[[c for c in table if c != "Fitted"] + [c for c in table if c == "Fitted"]])


def comparison_table(evaluation: "Evaluation", *, metrics: Sequence[str] | None = None) -> Table:
    """Paired tests of models against their reference."""
    frame = evaluation.comparisons
    records = frame.to_dict("records") if len(frame) else []
    sets = " and ".join(dict.fromkeys(str(record["test_set"]) for record in records))
    chosen = [record for record in records if metrics is None or record["metric"] in metrics]
    return comparison_rows_table(chosen, "Paired tests", (COMPARISON_NOTE.format(test_set=sets),))


def comparison_rows_table(records: Sequence[Mapping[str, Any]], title: str, notes: tuple[str, ...]) -> Table:
    """Paired tests, given as records, as a table."""
    import pandas as pd

    rows = [
        {
            "Model": row_name(str(record["model"]), text_or_none(record.get("calibrator"))),
            "Reference": record["reference"],
            "Metric": metric_title(str(record["metric"])),
            "Tasks": record.get("n_tasks"),
            "Difference": record["difference"],
            "p": _p_value(record.get("p_value")),
            "p (Holm)": _p_value(record.get("p_adjusted")),
            "Needed": _needed(record),
        }
        for record in records
    ]
    columns = ["Model", "Reference", "Metric", "Tasks", "Difference", "p", "p (Holm)", "Needed"]
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    frame = frame[[c for c in columns if c not in ("Tasks", "Needed") or frame[c].notna().any()]]
    intervals = [f"[{format_value(r.get('low'))}, {format_value(r.get('high'))}]" for r in records]
    return Table(
        frame, title, notes if rows else (), extra=pd.DataFrame({"Difference": intervals}),
        sections=[row["Model"] for row in rows],
    )  # fmt: skip


def detection_table(evaluation: "Evaluation", *, texts: str = "") -> Table:
    """Other texts × models, a column per score, means over seeds; `texts` selects by the start of their name.

    The names start with "ood_", except for "noise".
    """
    import pandas as pd

    frame = evaluation.detection
    frame = frame[frame["texts"].astype(str).str.startswith(texts)] if len(frame) else frame
    if not len(frame):
        return Table(pd.DataFrame(columns=["Texts", "Model"]), "OOD detection")
    frame = frame.assign(
        Model=[str(name).rpartition("-seed")[0] or str(name) for name in frame["model"]],
        Texts=frame["texts"].astype(str).str.removeprefix("ood_"),
        score=frame["score"].astype(str).str.replace("_", " "),
    )
    means = frame.groupby(["Texts", "Model", "score"], sort=False)[["auroc", "fpr95"]].mean().unstack("score")
    scores = list(dict.fromkeys(frame["score"]))
    rows = means.index.to_frame(index=False)
    extra = {
        score: [f"FPR {value:.2f}" if value == value else "" for value in means["fpr95"][score]] for score in scores
    }
    values = pd.DataFrame({score: list(means["auroc"][score]) for score in scores})
    table = pd.concat([rows, values], axis="columns")
    return Table(table, "OOD detection", (DETECTION_NOTE,), extra=pd.DataFrame(extra), sections=list(rows["Texts"]))


def _published_name(key: Key) -> str:
    """The paper applies calibrators to its baseline only and names the row after the calibrator."""
    return key[1] if key[0] == "baseline" and key[1] else row_name(*key)


def _summary_notes(
    evaluation: "Evaluation", rows: Sequence[Row], metrics: Sequence[str], test_set: str, verbose: bool
) -> list[str]:
    n_rows, n_seeds = max((row.n_rows or 0 for row in rows), default=0), max((r.n_seeds or 1 for r in rows), default=1)
    name = "test rows" if test_set == "test" else f"rows of {test_set}"
    notes = [f"All values: {n_rows:,} {name}{f', mean of {n_seeds} seeds' if n_seeds > 1 else ''}."]
    if verbose and any(value.low is not None for row in rows for value in row.values.values()):
        notes.append("In brackets: 95% intervals.")
    binned = [metric for metric in metrics if metric.startswith(("ece", "mce"))]
    if binned:
        notes.append(f"ECE: {evaluation.meta.get('n_bins') or 20} bins.{_floor_note(rows, binned)}")
    return notes


def _floor_note(rows: Sequence[Row], metrics: Sequence[str]) -> str:
    """What a perfectly calibrated model would show by chance."""
    parts = []
    for metric in metrics:
        floors = [f for row in rows if metric in row.values and (f := row.values[metric].noise_floor) is not None]
        ends = dict.fromkeys(f"{end:.3f}" for end in (min(floors), max(floors))) if floors else {}
        parts += [f"{' to '.join(ends)} ({metric_title(metric).removeprefix('ECE ')})"] if ends else []
    return f" A perfectly calibrated model would show by chance about {', '.join(parts)}." if parts else ""


def _p_value(value: Any) -> Any:
    return "< 0.001" if isinstance(value, float) and value < 0.001 else value


def _needed(record: Mapping[str, Any]) -> str | None:
    for unit in ("rows", "seeds"):
        count = record.get(f"{unit}_needed")
        if isinstance(count, int | float) and count == count:
            return f"{int(count):,} {unit}" if count <= 10**7 else f"> 10 million {unit}"
    return None
