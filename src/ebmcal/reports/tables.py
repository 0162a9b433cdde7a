"""Tables as views of an `Evaluation`: models × metrics, paired tests, OOD detection, the paper's main table.

All start from `over_seeds`, one row per method, calibrator and metric. A row is known by its key: (method, calibrator),
where the calibrator is "" for a model as trained.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.metrics import HEADLINE_METRICS, HUMAN_METRICS, METRICS
from ebmcal.reports.table import Column, Table, format_value

if TYPE_CHECKING:
    import pandas as pd

    from ebmcal.evaluation import Evaluation

Key = tuple[str, str]

#: Methods of the paper, in its order; other methods follow in the order of the results.
METHOD_ORDER = ("baseline", "poscal", "scalar", "hidden", "sharp-hidden")

#: Logistic regression on the encoder before finetuning, a row of every run; it has no seeds.
FROZEN_PROBE = "frozen-probe"

COMPARISON_NOTE = (
    "Difference: model minus reference on the same {test_set} rows, with 95% interval. p (Holm) is adjusted for all "
    "tests of this table. Needed: rough number of rows or seeds that would show this difference in four of five cases."
)
DETECTION_NOTE = (
    "AUROC: how well a score separates test texts from other texts; 0.5 is guessing, higher is better. FPR: share of "
    "other texts accepted by a threshold that accepts 95% of the test texts; lower is better."
)
PUBLISHED_NOTE = (
    "Published: He et al. 2021, RoBERTa-base, one run. The paper defines its ECE class-wise (20 bins); "
    "the authors' scripts compute it top-label."
)
#: Test sets of the paper.
TEST_SETS = {
    "sst2": "SST-2", "mnli": "MNLI", "mnli_mm": "MNLI(mm)", "qnli": "QNLI", "qqp": "QQP", "mrpc": "MRPC",
    "cola": "CoLA", "rte": "RTE", "wnli": "WNLI", "average": "Average",
}  # fmt: skip
_ROWS = """
baseline: .942/.050 .876/.067 .872/.068 .929/.043 .904/.034 .862/.133 .539/.182 .724/.279 .571/.058 .802/.102
scaling-binning (train): .940/.036 .872/.051 .869/.056 .931/.034 .904/.035 .843/.092 .586/.146 .717/.271 .457/.144 .791/.096
temperature (train): .942/.042 .876/.058 .872/.060 .929/.030 .904/.034 .862/.126 .539/.175 .724/.275 .571/.063 .802/.096
poscal: .944/.040 .876/.067 .872/.067 .930/.039 .905/.032 .867/.129 .540/.184 .789/.206 .571/.060 .810/.092
scalar: .942/.033 .871/.038 .871/.047 .927/.016 .899/.034 .862/.098 .540/.150 .753/.207 .542/.033 .801/.073
hidden: .956/.032 .869/.032 .868/.044 .923/.016 .900/.033 .867/.099 .545/.131 .797/.148 .542/.036 .807/.063
sharp-hidden: .947/.038 .875/.027 .872/.031 .930/.016 .900/.032 .862/.089 .563/.133 .811/.182 .571/.073 .815/.069
scaling-binning (dev): .944/.019 .876/.030 .870/.032 .931/.021 .905/.021 .862/.062 .557/.048 .731/.042 .542/.189 .802/.052
temperature (dev): .942/.037 .876/.024 .872/.026 .929/.018 .904/.026 .862/.126 .539/.109 .724/.235 .571/.046 .802/.072
"""  # noqa: E501

#: The results of the paper: method → test set → (performance, ECE). Performance is accuracy, for CoLA the Matthews
#: correlation. It is not certain which ECE was published: the paper and the authors' scripts differ.
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    method: {name: tuple(map(float, pair.split("/"))) for name, pair in zip(TEST_SETS, row.split(), strict=True)}
    for method, _, row in (line.partition(":") for line in _ROWS.strip().splitlines())
}


def published_set(task: str | None, test_set: str = "test") -> str | None:
    """The key of a test set in `PUBLISHED`, or None if the paper has no such task.

    >>> published_set("SST-2"), published_set("mnli", "test_mismatched"), published_set("mine")
    ('sst2', 'mnli_mm', None)
    """
    name = "".join(c for c in (task or "").lower() if c.isalnum())
    if name == "mnli" and "mismatched" in test_set:
        return "mnli_mm"
    return name if name in TEST_SETS and name != "average" and test_set.startswith("test") else None


def row_name(model: str, calibrator: str | None) -> str:
    """The name of a model with its calibrator.

    >>> row_name("hidden", "temperature (dev)"), row_name("hidden", None)
    ('hidden + temperature (dev)', 'hidden')
    """
    return f"{model} + {calibrator}" if calibrator and isinstance(calibrator, str) else model


def metric_title(metric: str) -> str:
    """The title of a metric as a heading.

    >>> metric_title("ece_classwise"), metric_title("aurc_by_energy"), metric_title("my_score")
    ('ECE class-wise', 'AURC by energy', 'My score')
    """
    known = (METRICS | HUMAN_METRICS).get(metric.removesuffix("_by_energy"))
    title = known.title + " by energy" * metric.endswith("_by_energy") if known else metric.replace("_", " ")
    return title[:1].upper() + title[1:]


def metric_directions(metrics: Sequence[str]) -> dict[Column, int]:
    """Title → +1 if higher is better, −1 if lower is better; without metrics of which that is unknown."""
    known = {m: (METRICS | HUMAN_METRICS).get(m.removesuffix("_by_energy")) for m in metrics}
    return {metric_title(m): 1 if metric.higher_is_better else -1 for m, metric in known.items() if metric}


def list_test_sets(evaluation: "Evaluation") -> list[str]:
    """The test sets of an evaluation, in the order of the results."""
    return list(dict.fromkeys(evaluation.results["test_set"]))


def recommended_key(evaluation: "Evaluation") -> Key | None:
    """The recommended method and calibrator: `meta["recommended"]`, an object with "trial" and "calibrator"."""
    found = evaluation.meta.get("recommended")
    if not isinstance(found, Mapping) or not found.get("trial"):
        return None
    trial = str(found["trial"])
    return trial.rpartition("-seed")[0] or trial, str(found.get("calibrator") or "")


def over_seeds(results: "pd.DataFrame", test_set: str) -> "pd.DataFrame":
    """One row per method (or model), calibrator and metric: value, interval, noise floor, deviation over seeds, …

    The rows over seeds of the results if there are any, otherwise the mean of the seeds. Methods are in the paper's
    order, each without calibrator first.
    """
    keys, numbers = ["model", "calibrator", "metric"], ["value", "low", "high", "noise_floor"]
    frame = results[results["test_set"] == test_set]
    frame = frame.assign(model=frame["method"].fillna(frame["model"]), calibrator=frame["calibrator"].fillna(""))
    single, pooled = frame[frame["seed"].notna()], frame[frame["seed"].isna()]
    groups = single.groupby(keys, sort=False)
    means = groups[numbers].mean().assign(deviation=groups["value"].std(), n_seeds=groups["value"].size().astype(float))
    means.loc[means["n_seeds"] > 1, ["low", "high"]] = np.nan
    found = pooled.set_index(keys)[numbers].combine_first(means)
    names = {name: i for i, name in enumerate(dict.fromkeys(frame["model"]))}
    order = sorted(
        dict.fromkeys(frame[keys].itertuples(index=False, name=None)),
        key=lambda key: (_method_rank(key[0]), names[key[0]], _calibrator_rank(key[1])),
    )
    found = found.reindex(order) if order else found
    return found.assign(n_rows=frame.groupby(keys)["n_rows"].max().astype(float))


def _method_rank(method: str) -> int:
    if method == FROZEN_PROBE:
        return len(METHOD_ORDER) + 1
    return METHOD_ORDER.index(method) if method in METHOD_ORDER else len(METHOD_ORDER)


def _calibrator_rank(calibrator: str) -> tuple[int, str]:
    """No calibrator, fitted on training rows, on calibration rows, cross-fitted, anything else."""
    endings = ("(train)", "(dev)", "(cross-fit)")
    rank = next((i for i, end in enumerate(endings) if calibrator.endswith(end)), len(endings))
    return (rank if calibrator else -1), calibrator


def summary_table(
    evaluation: "Evaluation", verbose: bool = False, *, test_set: str | None = None, recommended: Key | None = None
) -> Table:
    """Models × metrics on a test set (the first unless stated), the recommended model first, the best values marked.

    `verbose` adds intervals, calibrators fitted on the training rows, ensembles of the seeds, and the published results
    of a paper task.
    """
    test_set = test_set or next(iter(list_test_sets(evaluation)), "test")
    recommended = recommended or recommended_key(evaluation)
    found = over_seeds(evaluation.results, test_set)
    keys = list(dict.fromkeys(found.index.droplevel("metric")))
    shown = [k for k in keys if verbose or k == recommended or not (_is_ensemble(k) or k[1].endswith("(train)"))]
    keys = sorted(shown or keys, key=lambda key: key != recommended)
    found = found[found.index.droplevel("metric").isin(keys)] if keys else found
    available = list(dict.fromkeys(found.index.get_level_values("metric")))
    wanted = evaluation.meta.get("shown_metrics") or [task_metric(evaluation), *HEADLINE_METRICS]
    metrics = list(dict.fromkeys(wanted)) if set(wanted) <= set(available) else available
    table = metrics_table(found, keys, metrics, intervals=verbose)
    notes = _summary_notes(evaluation, found, metrics, test_set, verbose)
    theirs = published_set(evaluation.meta.get("task"), test_set) if verbose else None
    if theirs:
        # The paper applies calibrators to its baseline only and names the row after the calibrator.
        names = [key[1] if key[0] == "baseline" and key[1] else row_name(*key) for key in keys]
        pairs = [PUBLISHED.get(name, {}).get(theirs, (None, None)) for name in names]
        table.frame["Published"], table.frame["Published ECE"] = zip(*pairs, strict=True)
        notes.append(PUBLISHED_NOTE)
    chosen = next((i for i, key in enumerate(keys) if key == recommended), None)
    return Table(
        table.frame, notes=tuple(notes), better=table.better, extra=table.extra, recommended=chosen,
        sections=["recommended" if i == chosen else key[0] for i, key in enumerate(keys)],
    )  # fmt: skip


def task_metric(evaluation: "Evaluation") -> str:
    """The headline metric of the task: accuracy or matthews."""
    return str(evaluation.meta.get("task_metric") or "accuracy")


def metrics_table(
    found: "pd.DataFrame", keys: Sequence[Key], metrics: Sequence[str], *, intervals: bool = False
) -> Table:
    """Rows of `over_seeds` × metrics, with intervals (or standard deviations over seeds) if wanted."""
    import pandas as pd

    frame = pd.DataFrame({"Model": [row_name(*key) for key in keys]})
    seeds = found["n_seeds"].groupby(level=["model", "calibrator"]).max().reindex(keys) if keys else found["n_seeds"]
    n_seeds = [None if n != n else int(n) for n in seeds]
    if len({n for n, key in zip(n_seeds, keys, strict=True) if n and key[0] != FROZEN_PROBE}) > 1:
        frame["Seeds"] = pd.Series(n_seeds, dtype=object)
    extra = pd.DataFrame(index=frame.index)
    for metric in metrics:
        rows = found.xs(metric, level="metric").reindex(keys) if keys else found
        frame[metric_title(metric)] = rows["value"].to_numpy()
        extra[metric_title(metric)] = [
            f"[{low:.3f}, {high:.3f}]" if low == low and high == high else f"± {sd:.3f}" if sd == sd else ""
            for low, high, sd in zip(rows["low"], rows["high"], rows["deviation"], strict=True)
        ]
    return Table(frame, better=metric_directions(metrics), extra=extra if intervals else None)


def _summary_notes(
    evaluation: "Evaluation", found: "pd.DataFrame", metrics: Sequence[str], test_set: str, verbose: bool
) -> list[str]:
    n_rows, n_seeds = (0 if value != value else int(value) for value in found[["n_rows", "n_seeds"]].max())
    name = "test rows" if test_set == "test" else f"rows of {test_set}"
    notes = [f"All values: {n_rows:,} {name}{f', mean of {n_seeds} seeds' if n_seeds > 1 else ''}."]
    if verbose and found["low"].notna().any():
        notes.append("In brackets: 95% intervals.")
    binned, parts = [metric for metric in metrics if metric.startswith(("ece", "mce"))], []
    for metric in binned:
        floors = found.xs(metric, level="metric")["noise_floor"].dropna()
        ends = dict.fromkeys(f"{end:.3f}" for end in (floors.min(), floors.max()) if end == end)
        parts += [f"{' to '.join(ends)} ({metric_title(metric).removeprefix('ECE ')})"] if ends else []
    if binned:
        chance = f" A perfectly calibrated model would show by chance about {', '.join(parts)}." if parts else ""
        notes.append(f"ECE: {evaluation.meta.get('n_bins') or 20} bins.{chance}")
    return notes


def seed_table(evaluation: "Evaluation") -> Table:
    """Every trained model (method and seed) and calibrator with every metric and what the calibrator learned."""
    frame = evaluation.results
    frame = frame[(frame["test_set"] == next(iter(list_test_sets(evaluation)), "test")) & frame["n_seeds"].isna()]
    frame = frame.assign(
        Model=[row_name(m, c) for m, c in zip(frame["model"], frame["calibrator"], strict=True)],
        metric=frame["metric"].map(metric_title),
    )
    wide = frame.pivot(index="Model", columns="metric", values="value")
    wide = wide.loc[frame["Model"].unique(), frame["metric"].unique()]
    # The first note is what the calibrator learned, unless it says that the model is an ensemble.
    notes = frame[frame["calibrator"].notna()].groupby("Model")["note"].first()
    notes = notes.str.replace(r"^mean of [^;]*(; )?", "", regex=True).str.split("; ").str[0].replace("", None)
    if len(notes):
        wide["Fitted"] = notes.reindex(wide.index).astype(object)
    return Table(wide.reset_index().rename_axis(columns=None))


def comparison_table(evaluation: "Evaluation") -> Table:
    """Paired tests of models against their reference."""
    records = evaluation.comparisons.to_dict("records")
    sets = " and ".join(dict.fromkeys(str(record["test_set"]) for record in records))
    return comparison_rows_table(records, "Paired tests", (COMPARISON_NOTE.format(test_set=sets),))


def comparison_rows_table(records: Sequence[Mapping[Any, Any]], title: str, notes: tuple[str, ...]) -> Table:
    """Paired tests, given as records, as a table."""
    import pandas as pd

    columns = ["Model", "Reference", "Metric", "Tasks", "Difference", "p", "p (Holm)", "Needed"]
    rows = [
        [
            row_name(record["model"], record["calibrator"]), record["reference"], metric_title(record["metric"]),
            record.get("n_tasks"), record["difference"],
            *("< 0.001" if record[p] < 0.001 else record[p] for p in ("p_value", "p_adjusted")), _needed(record),
        ]
        for record in records
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    frame = frame[[c for c in columns if c not in ("Tasks", "Needed") or frame[c].notna().any()]]
    extra = pd.DataFrame({"Difference": [f"[{format_value(r['low'])}, {format_value(r['high'])}]" for r in records]})
    return Table(frame, title, notes if rows else (), extra=extra, sections=list(frame["Model"]))


def _needed(record: Mapping[Any, Any]) -> str | None:
    for unit in ("rows", "seeds"):
        count = record.get(f"{unit}_needed")
        if isinstance(count, int | float) and count == count:
            return f"{int(count):,} {unit}" if count <= 10**7 else f"> 10 million {unit}"
    return None


def detection_table(evaluation: "Evaluation") -> Table:
    """Other texts × models, a column per score, means over seeds. Names of texts start with "ood_", except "noise"."""
    import pandas as pd

    frame = evaluation.detection
    if not len(frame):
        return Table(pd.DataFrame(columns=["Texts", "Model"]), "OOD detection")
    frame = frame.assign(
        Model=frame["method"].fillna(frame["model"]),
        Texts=frame["texts"].str.removeprefix("ood_"),
        score=frame["score"].str.replace("_", " "),
    )
    means = frame.groupby(["Texts", "Model", "score"], sort=False)[["auroc", "fpr95"]].mean().unstack("score")
    extra = means["fpr95"].map(lambda value: f"FPR {value:.2f}" if value == value else "")
    table = means["auroc"][frame["score"].unique()].reset_index().rename_axis(columns=None)
    return Table(table, "OOD detection", (DETECTION_NOTE,), extra=extra, sections=list(table["Texts"]))


def paper_table(evaluations: Sequence["Evaluation"], *, ece: str = "ece_classwise", published: bool = True) -> Table:
    """Methods × test sets of one evaluation per task, with their average, in the layout of the paper's main table.

    `ece` is the metric in the ECE columns. Averages are over test sets and given only where a method has all of them.
    Standard deviations are over seeds. `published` adds the paper's rows for the same test sets. Calibrators on the
    baseline have rows under their own name; those fitted on the calibration split are listed last and are not marked
    best, as in the paper; the same holds for ensembles.
    """
    import pandas as pd

    values, deviations, known = dict[Column, Any](), dict[Column, Any](), list[str | None]()
    for evaluation in evaluations:
        for test_set in list_test_sets(evaluation):
            task, metric = str(evaluation.meta.get("task") or "results"), task_metric(evaluation)
            known.append(published_set(task, test_set))
            title = TEST_SETS.get(known[-1] or "", task if test_set == "test" else f"{task} {test_set}")
            found = over_seeds(evaluation.results, test_set)
            short = {"accuracy": "acc.", "matthews": "mcc.", "macro_f1": "F1"}.get(metric, metric_title(metric))
            for name, shown in ((metric, short), (ece, "ECE")):
                rows = found[found.index.get_level_values("metric") == name].droplevel("metric")
                values[title, shown], deviations[title, shown] = rows["value"], rows["deviation"]
    keys = sorted(
        dict.fromkeys(key for column in values.values() for key in column.index),
        key=lambda key: ("", "calibration split", "ensembles").index(_section(key)),
    )
    frames = [pd.DataFrame({c: v.reindex(keys) for c, v in part.items()}) for part in (values, deviations)]
    names = [key[1] if key[0] == "baseline" and key[1] else row_name(*key) for key in keys]
    sections = [_section(key) for key in keys]
    notes = [f"ECE: {metric_title(ece).removeprefix('ECE ')} ECE, 20 bins.", "± standard deviation over seeds."]
    if published and any(known):
        rows = [[x for name in known for x in PUBLISHED[m].get(name or "", (None, None))] for m in PUBLISHED]
        theirs = pd.DataFrame(rows, columns=frames[0].columns, dtype=float)
        pairs = zip(frames, (theirs, theirs * np.nan), strict=True)
        frames = [pd.concat([frame.reset_index(drop=True), more]) for frame, more in pairs]
        names, sections = names + [f"{m}, published" for m in PUBLISHED], sections + ["published"] * len(PUBLISHED)
        notes.append(PUBLISHED_NOTE)
    if len(known) > 1:
        for i, shown in enumerate(("perf.", "ECE")):
            # Averages over fewer sets are not comparable. Seeds of different tasks are independent.
            parts = [frame.iloc[:, i : 2 * len(known) : 2] for frame in frames]
            frames[0]["Average", shown] = parts[0].mean(axis=1, skipna=False)
            frames[1]["Average", shown] = np.sqrt((parts[1] ** 2).sum(axis=1, skipna=False)) / len(known)
    columns: list[Column] = ["Method", *frames[0].columns]
    index = pd.Index(columns, tupleize_cols=False)
    extra = [["", *("" if x != x else f"± {x:.3f}" for x in row)] for row in frames[1].to_numpy()]
    body = [[name, *row] for name, row in zip(names, frames[0].to_numpy(), strict=True)]
    return Table(
        pd.DataFrame(body, columns=index), "Test-set performance and calibration error", tuple(notes),
        {column: -1 if column[1] == "ECE" else 1 for column in columns[1:]},
        extra=pd.DataFrame(extra, columns=index), sections=sections,
        unranked=frozenset(i for i, section in enumerate(sections) if section),
    )  # fmt: skip


def _is_ensemble(key: Key) -> bool:
    """Whether a row is the ensemble of the seeds of a method: see `ebmcal.evaluation.evaluate_trials`."""
    return key[0].endswith(" ensemble")


def _section(key: Key) -> str:
    if _is_ensemble(key):
        return "ensembles"
    return "calibration split" if key[1].endswith(("(dev)", "(cross-fit)")) else ""
