"""Tables of a report: views of an `Evaluation` (models × metrics, paired tests, OOD detection, the paper's table), and
tables of texts and labels (errors, label issues, energies, noise).

Views of an evaluation start from `over_seeds`, one row per method, calibrator and metric. A row is known by its key:
(method, calibrator), where the calibrator is "" for a model as trained.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ebmcal.advice import FEW_ROWS
from ebmcal.data import row_places
from ebmcal.errors import plural
from ebmcal.metrics import HEADLINE_METRICS, METRICS, reliability_bins
from ebmcal.metrics.calibration import N_BINS
from ebmcal.predictions import Predictions
from ebmcal.reports.page import Table, format_value
from ebmcal.run_dir import FROZEN_PROBE

if TYPE_CHECKING:
    from ebmcal.evaluation import Evaluation

Key = tuple[str, str]

#: Methods of the paper, in its order; other methods follow in the order of the results.
METHOD_ORDER = ("baseline", "poscal", "scalar", "hidden", "sharp-hidden")

#: The ending of a calibrator's name → the rows it was fitted on.
FITTED_ON = {
    "(train)": "training rows",
    "(dev)": "calibration rows",
    "(cross-fit)": "out-of-fold predictions of the training rows",
}

#: Facts about a noise source in results.json → headings.
SOURCE_COLUMNS = {
    "words": "Words", "words_of_data": "Words of data", "unknown_words": "Unknown words",
    "unknown_words_of_data": "Unknown in data", "copies": "Copies",
}  # fmt: skip

#: Labels and examples shown at most.
MOST_LABELS, MOST_EXAMPLES = 20, 10

#: Noise with a held-out AUROC outside this range is too difficult or too easy to learn much from.
USEFUL_AUROC = (0.6, 0.97)

COMPARISON_NOTE = (
    "Difference: model minus reference on the same {test_set} rows, with 95% interval. p: how likely a difference of "
    "this size is if the models are equally good. p (Holm): adjusted for the number of tests in this table."
)
INTERVAL_NOTE = (
    "In brackets: 95% intervals of the true value. A calibration error on few rows is too large by chance, so it may "
    "lie above its interval."
)
BINNING_NOTE = (
    "scaling-binning: the paper's second calibrator, for comparison; it replaces probabilities by the means of bins, "
    "which needs many rows. It is never recommended."
)
DETECTION_NOTE = (
    "AUROC: how well a score separates test texts from other texts; 0.5 is guessing, higher is better. FPR: share of "
    "other texts accepted by a threshold that accepts 95% of the test texts; lower is better."
)
CLASS_NOTE = (
    "Recall: share of the texts with this label that are found. Precision: share of the predictions of this label that "
    "are right. Confidence: mean confidence of these predictions; if the model is calibrated, it equals the precision. "
    "ECE: calibration error of P(label | text), 20 bins."
)
SOURCE_NOTE = (
    "Unknown words: share of words that no training text has. Copies: share of noise texts that equal a training text."
)
AUROC_NOTE = (
    "How often a data text has a lower energy than a noise text: in the last tenth of training, and on texts that were "
    "not used in training. Clearly more in training means memorised noise; 0.5 is guessing."
)


def row_name(model: str, calibrator: str | None) -> str:
    """The name of a model with its calibrator.

    >>> row_name("hidden", "temperature (dev)"), row_name("hidden", None)
    ('hidden + temperature (dev)', 'hidden')
    """
    return f"{model} + {calibrator}" if calibrator and isinstance(calibrator, str) else model


def model_title(trial: str) -> str:
    """The name of a trial for people; the frozen probe has one seed only.

    >>> model_title("hidden-seed1"), model_title("frozen-probe-seed0"), model_title("theirs.csv")
    ('hidden (seed 1)', 'frozen-probe', 'theirs.csv')
    """
    method, _, seed = trial.rpartition("-seed")
    return trial if not method else method if method == FROZEN_PROBE else f"{method} (seed {seed})"


def metric_title(metric: str) -> str:
    """The title of a metric as a heading.

    >>> metric_title("ece_classwise"), metric_title("aurc_by_energy"), metric_title("my_score")
    ('ECE class-wise', 'AURC by energy', 'My score')
    """
    known = METRICS.get(metric.removesuffix("_by_energy"))
    title = known.title + " by energy" * metric.endswith("_by_energy") if known else metric.replace("_", " ")
    return title[:1].upper() + title[1:]


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


def over_seeds(results: pd.DataFrame, test_set: str) -> pd.DataFrame:
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


def _calibrator_rank(calibrator: str) -> tuple[int, bool, str]:
    """No calibrator first, then in the order of `FITTED_ON`, then anything else; temperature before others."""
    rank = next((i for i, end in enumerate(FITTED_ON) if calibrator.endswith(end)), len(FITTED_ON))
    return (rank if calibrator else -1), not calibrator.startswith("temperature"), calibrator


def summary_table(
    evaluation: "Evaluation", verbose: bool = False, *, test_set: str | None = None, recommended: Key | None = None
) -> Table:
    """Models × metrics on a test set (the first unless stated), the recommended model first.

    The best values are marked if all rows of the table were compared and a difference is significant.

    `verbose` adds intervals, calibrators fitted on the training rows, ensembles of the seeds, the published results of
    a paper task and, for runs, scaling-binning, which is never recommended.
    """
    test_set = test_set or next(iter(list_test_sets(evaluation)), "test")
    recommended = recommended or recommended_key(evaluation)
    found = over_seeds(evaluation.results, test_set)
    keys = list(dict.fromkeys(found.index.droplevel("metric")))
    shown = [key for key in keys if verbose or key == recommended or not _is_detail(key, recommended is not None)]
    keys = sorted(shown or keys, key=lambda key: key != recommended)
    found = found[found.index.droplevel("metric").isin(keys)] if keys else found
    available = list(dict.fromkeys(found.index.get_level_values("metric")))
    wanted = evaluation.meta.get("shown_metrics") or [task_metric(evaluation), *HEADLINE_METRICS]
    metrics = list(dict.fromkeys(wanted)) if set(wanted) <= set(available) else available
    table = metrics_table(found, keys, metrics, intervals=verbose)
    notes = _summary_notes(evaluation, found, keys, metrics, test_set, verbose)
    chosen = next((i for i, key in enumerate(keys) if key == recommended), None)
    return Table(
        table.frame, notes=tuple(notes), extra=table.extra, recommended=chosen, better=table.better,
        tied=frozenset(metric_title(metric) for metric in metrics if _is_tied(evaluation, metric, keys, test_set)),
        sections=["recommended" if i == chosen else key[0] for i, key in enumerate(keys)],
    )  # fmt: skip


def _is_tied(evaluation: "Evaluation", metric: str, keys: Sequence[Key], test_set: str) -> bool:
    """Whether no value of a metric is best: rows are too few, not all were tested, or no difference is significant."""
    results, frame = evaluation.results, evaluation.comparisons
    n_rows = results.loc[results["test_set"] == test_set, "n_rows"].max()
    if n_rows < (10 * N_BINS if "ece" in metric else FEW_ROWS):
        return True
    tests = frame[(frame["metric"] == metric) & (frame["test_set"] == test_set)]
    all_tested = len(tests) == len(keys) - 1  # all but the reference
    return not all_tested or bool((tests["p_adjusted"] >= 0.05).all())


def _is_detail(key: Key, is_run: bool) -> bool:
    """Whether a row is in verbose tables only."""
    return is_ensemble(key) or key[1].endswith("(train)") or (is_run and key[1].startswith("scaling-binning"))


def task_metric(evaluation: "Evaluation") -> str:
    """The headline metric of the task: accuracy or matthews."""
    return str(evaluation.meta.get("task_metric") or "accuracy")


def metrics_table(found: pd.DataFrame, keys: Sequence[Key], metrics: Sequence[str], *, intervals: bool) -> Table:
    """Rows of `over_seeds` × metrics, with intervals (or standard deviations over seeds) if wanted."""
    frame = pd.DataFrame({"Model": [row_name(*key) for key in keys]})
    seeds = found["n_seeds"].groupby(level=["model", "calibrator"]).max().reindex(keys) if keys else found["n_seeds"]
    n_seeds = [None if n != n else int(n) for n in seeds]
    if len({n for n, key in zip(n_seeds, keys, strict=True) if n and key[0] != FROZEN_PROBE}) > 1:
        frame["Seeds"] = pd.Series(n_seeds, dtype=object)
    extra, better = pd.DataFrame(index=frame.index), dict[str, int]()
    for metric in metrics:
        rows = found.xs(metric, level="metric").reindex(keys) if keys else found
        frame[metric_title(metric)] = rows["value"].to_numpy()
        extra[metric_title(metric)] = [
            f"[{low:.3f}, {high:.3f}]" if low == low and high == high else f"± {sd:.3f}" if sd == sd else ""
            for low, high, sd in zip(rows["low"], rows["high"], rows["deviation"], strict=True)
        ]
        known = METRICS.get(metric.removesuffix("_by_energy"))
        better |= {metric_title(metric): 1 if known.higher_is_better else -1} if known else {}
    return Table(frame, better=better, extra=extra if intervals else None)


def _summary_notes(
    evaluation: "Evaluation", found: pd.DataFrame, keys: Sequence[Key], metrics: Sequence[str], test_set: str,
    verbose: bool,
) -> list[str]:  # fmt: skip
    """What the rows, the names in brackets and ECE mean, and how large ECE is by chance."""
    n_rows, n_seeds = (0 if value != value else int(value) for value in found[["n_rows", "n_seeds"]].max())
    name = plural(n_rows, "test row") if test_set == "test" else f"{plural(n_rows, 'row')} of {test_set}"
    if (fewest := found["n_rows"].min()) < n_rows:
        name = f"{int(fewest):,} to {name}"
    notes = [f"Measured on {name}{f', mean of {n_seeds} seeds' if n_seeds > 1 else ''}."]
    advice = evaluation.meta.get("advice")
    if isinstance(advice, Mapping) and isinstance(advice.get("n_rows"), int) and advice["n_rows"]:
        chosen = plural(advice["n_rows"], f"{advice.get('rows')} row")
        notes[0] += f" The recommendation was made on {chosen}, so the numbers in its sentences differ."
    if verbose and found["low"].notna().any():
        notes.append(INTERVAL_NOTE)
    ends = [end for end in FITTED_ON if any(calibrator.endswith(end) for _, calibrator in keys)]
    if ends:
        notes.append("; ".join(f"{end}: calibrator fitted on {FITTED_ON[end]}" for end in ends) + ".")
    if any(calibrator.startswith("scaling-binning") for _, calibrator in keys):
        notes.append(BINNING_NOTE)
    binned, floors = [metric for metric in metrics if metric.startswith(("ece", "mce"))], []
    for metric in binned:
        floor = found.xs(metric, level="metric")["noise_floor"].dropna()
        both = dict.fromkeys(f"{end:.3f}" for end in (floor.min(), floor.max()) if end == end)
        floors += [f"{' to '.join(both)} ({metric_title(metric).removeprefix('ECE ')})"] if both else []
    if binned:
        n_bins = evaluation.meta.get("n_bins") or 20
        chance = f" A perfectly calibrated model would show by chance about {', '.join(floors)}." if floors else ""
        notes.append(
            f"ECE, calibration error: mean difference between probability and how often it is right ({n_bins} bins), "
            f"for every label (class-wise) or the predicted one (top-label).{chance}"
        )
    if scores := [metric_title(metric) for metric in metrics if metric in ("nll", "brier")]:
        notes.append(
            f"{' and '.join(scores)}: {'errors' if scores[1:] else 'error'} of the probabilities as a whole, accuracy "
            "and calibration together; lower is better."
        )
    if problem := evaluation.meta.get("not_compared"):
        notes.append(str(problem))
    return notes


def seed_table(evaluation: "Evaluation") -> Table:
    """Every trained model (method and seed) and calibrator with every metric and what the calibrator learned."""
    frame = evaluation.results
    frame = frame[(frame["test_set"] == next(iter(list_test_sets(evaluation)), "test")) & frame["n_seeds"].isna()]
    frame = frame.assign(
        Model=[row_name(model_title(m), c) for m, c in zip(frame["model"], frame["calibrator"], strict=True)],
        metric=frame["metric"].map(metric_title),
    )
    wide = frame.pivot(index="Model", columns="metric", values="value")
    wide = wide.loc[frame["Model"].unique(), frame["metric"].unique()]
    # The first note is what the calibrator learned, unless it says that the model is an ensemble.
    notes = frame[frame["calibrator"].notna()].groupby("Model")["note"].first()
    notes = notes.str.replace(r"^mean of [^;]*(; )?", "", regex=True).str.split("; ").str[0].replace("", None)
    if len(notes):
        notes = notes.str.replace(" = ", "\u00a0=\u00a0")  # on one line
        wide["Fitted"] = notes.reindex(wide.index).astype(object)
    found = evaluation.meta.get("recommended") if recommended_key(evaluation) else None
    chosen = row_name(model_title(str(found["trial"])), found.get("calibrator")) if found else None
    place = list(wide.index).index(chosen) if chosen in wide.index else None
    return Table(wide.reset_index().rename_axis(columns=None), recommended=place)


def comparison_table(evaluation: "Evaluation") -> Table:
    """Paired tests of models against their reference."""
    records = evaluation.comparisons.to_dict("records")
    sets = " and ".join(dict.fromkeys(str(record["test_set"]) for record in records))
    columns = ["Model", "Reference", "Metric", "Difference", "p", "p (Holm)"]
    rows = [
        [
            row_name(record["model"], record["calibrator"]), record["reference"], metric_title(record["metric"]),
            record["difference"],
            *("< 0.001" if record[p] < 0.001 else record[p] for p in ("p_value", "p_adjusted")),
        ]
        for record in records
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    extra = pd.DataFrame({"Difference": [f"[{format_value(r['low'])}, {format_value(r['high'])}]" for r in records]})
    notes = (COMPARISON_NOTE.format(test_set=sets), *_rows_needed(records)) if rows else ()
    return Table(frame, "Paired tests", notes, extra=extra, sections=list(frame["Model"]))


def _rows_needed(records: Iterable[Mapping[Any, Any]]) -> Iterator[str]:
    """A sentence about the rows or seeds that would show the differences that are not significant."""
    found: dict[str, list[str]] = {}
    units: dict[str, None] = {}
    for record in records:
        for unit in ("rows", "seeds"):
            needed = record.get(f"{unit}_needed")
            if isinstance(needed, int | float) and needed == needed:
                name = row_name(record["model"], record["calibrator"])
                units[unit] = None
                found.setdefault(name, []).append(f"{int(needed):,} {unit} ({metric_title(record['metric'])})")
    if found:
        shown = "; ".join(f"{name} {', '.join(needed)}" for name, needed in found.items())
        yield (
            f"Some differences are neither significant nor zero. About this many {' or '.join(units)} would show them "
            f"in four of five cases: {shown}."
        )


def detection_table(evaluation: "Evaluation") -> Table:
    """Other texts × models, a column per score, means over seeds. Names of texts start with "ood_", except "noise"."""
    frame = evaluation.detection
    if not len(frame):
        return Table(pd.DataFrame(columns=["Texts", "Model"]), "OOD detection")
    frame = frame.assign(
        Model=frame["method"].fillna(frame["model"]),
        Texts=frame["texts"].str.removeprefix("ood_"),
        score=frame["score"].replace("max_prob", "largest probability"),
    )
    means = frame.groupby(["Texts", "Model", "score"], sort=False)[["auroc", "fpr95"]].mean().unstack("score")
    extra = means["fpr95"].map(lambda value: f"FPR {value:.2f}" if value == value else "")
    table = means["auroc"][frame["score"].unique()].reset_index().rename_axis(columns=None)
    return Table(table, "OOD detection", (DETECTION_NOTE,), extra=extra, sections=list(table["Texts"]))


def is_ensemble(key: Key) -> bool:
    """Whether a row is the ensemble of the seeds of a method: see `ebmcal.evaluation.evaluate_trials`."""
    return key[0].endswith(" ensemble")


def class_table(predictions: Predictions) -> Table:
    """Recall, precision, confidence and calibration error of each label; of many labels those with lowest recall.

    >>> p = Predictions([0, 1, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> class_table(p).frame["Recall"].tolist()
    [1.0, 0.5]
    """
    rows = predictions.labelled()
    right, records = rows.predicted == rows.labels, []
    for index, label in enumerate(rows.label_names):
        true, predicted = rows.labels == index, rows.predicted == index
        bins = reliability_bins(rows.labels, probs=rows.probs, n_bins=20, class_index=index)
        ece = np.nansum(np.abs(bins.accuracy - bins.confidence) * bins.counts) / rows.n_rows
        means = [v.mean() if len(v) else None for v in (right[true], right[predicted], rows.confidence[predicted])]
        records.append([label, true.sum(), means[0], predicted.sum(), *means[1:], ece])
    columns = ["Label", "Texts", "Recall", "Predicted", "Precision", "Confidence", "ECE"]
    frame, notes = pd.DataFrame(records, columns=columns), [CLASS_NOTE]
    if len(frame) > MOST_LABELS:
        frame = frame.sort_values("Recall", kind="stable", ignore_index=True).head(MOST_LABELS)
        notes.insert(0, f"The {MOST_LABELS} labels with the lowest recall of {rows.n_classes}.")
    return Table(frame, "Accuracy and calibration per label", tuple(notes))


def confident_errors(predictions: Predictions, n: int = MOST_EXAMPLES) -> Table:
    """The wrong predictions with the highest confidence, most confident first.

    >>> p = Predictions([0, 1], ("no", "yes"), probs=[[0.1, 0.9], [0.2, 0.8]], texts=["good", "fine"])
    >>> confident_errors(p).frame["Text"].tolist()
    ['good']
    """
    errors = _errors(predictions).sort_values("Confidence", ascending=False, kind="stable", ignore_index=True)
    shown = "; these are the most confident" if len(errors) > n else ""
    verb = "is" if len(errors) == 1 else "are"
    note = f"{len(errors):,} of {plural(predictions.labelled().n_rows, 'prediction')} {verb} wrong{shown}."
    return Table(errors.head(n), "Most confident errors", (note,))


def confusion_table(predictions: Predictions) -> Table:
    """The most frequent confusions: true label, predicted label, number of texts and their mean confidence."""
    pairs = _errors(predictions).groupby(["True label", "Predicted label"])["Confidence"]
    found = pairs.agg(Texts="size", Confidence="mean").sort_values("Texts", ascending=False, kind="stable")
    return Table(found.head(MOST_EXAMPLES).reset_index(), "Most frequent confusions")


def _errors(predictions: Predictions) -> pd.DataFrame:
    rows = predictions.labelled()
    wrong = np.flatnonzero(rows.predicted != rows.labels)
    columns = {
        "Text": [_text(rows, i) for i in wrong],
        "True label": np.array(rows.label_names)[rows.labels[wrong]],
        "Predicted label": rows.predicted_labels[wrong],
        "Confidence": rows.confidence[wrong],
    }
    return pd.DataFrame(columns)


def _text(rows: Predictions, index: Any) -> str:
    """The text of a row (both texts of a pair), or its id if texts are unknown."""
    if rows.texts is None:
        return f"id {rows.ids[index]}"
    return rows.texts[index] if rows.text_pairs is None else f"{rows.texts[index]} ‖ {rows.text_pairs[index]}"


def label_issue_table(issues: Sequence[Mapping[str, Any]], audit: Any = None, n: int = MOST_EXAMPLES) -> Table:
    """Training rows with labels that contradict out-of-fold predictions: `label_issues` and `audit` of results.json."""
    places = row_places([issue.get("id", "") for issue in issues], audit)
    columns = ["Row", "Text", "Given label", "Suggested label", "Score"]
    values = [[i.get("text"), i.get("given"), i.get("suggested"), i.get("score")] for i in issues]
    records = [[place, str(text or ""), *rest] for place, (text, *rest) in zip(places, values, strict=True)]
    more = f" The first {n} of {len(issues):,}; run.label_issues (Python) and results.json have all." * (
        len(issues) > n
    )
    note = (
        "Training texts with a label that the models trained without them contradict. Many labels may be right: the "
        "model can be wrong, too. Change a label only if you disagree after reading. Row: the id of the row, or its "
        "place in the training file. Score: how much more probable the suggested label is for the model, from 0.5 "
        f"(equally) to 1.{more}"
    )
    return Table(pd.DataFrame(records[:n], columns=columns), "Possible label errors", (note,))


def energy_examples(predictions: Predictions, baseline: Predictions | None = None, n: int = 5) -> Table:
    """The n texts of lowest and of highest energy: text, label, Ê, baseline posterior → model posterior.

    Rows of the baseline are matched by id. No text appears twice. Empty without energies.
    """
    title, columns = "Texts of lowest and highest energy", ["Energy", "Ê(x)", "Text", "Label", "Posterior"]
    energies = predictions.energies
    if energies is None or predictions.texts is None:
        return Table(pd.DataFrame(columns=columns), title)
    order = np.argsort(np.asarray(energies, dtype=np.float64), kind="stable")
    n_low = min(n, (len(order) + 1) // 2)
    ends = [("lowest", i) for i in order[:n_low]] + [("highest", i) for i in order[max(n_low, len(order) - n) :]]
    before: dict[str, np.ndarray] = {}
    if baseline is not None and baseline.label_names == predictions.label_names:
        before = dict(zip(map(str, baseline.ids), baseline.probs, strict=True))
    names = (*predictions.label_names, None)  # −1: no label
    records = []
    for end, i in ends:
        posterior = _posterior(predictions, i, before.get(str(predictions.ids[i])))
        records.append([end, float(energies[i]), _text(predictions, i), names[predictions.labels[i]], posterior])
    note = "Low energy: looks like data."
    note += " Posterior: P(label | text) of the baseline → of this model." if before else ""
    frame = pd.DataFrame(records, columns=columns)
    return Table(frame, title, (note,), digits={"Ê(x)": 2}, sections=[end for end, _ in ends])


def _posterior(predictions: Predictions, row: int, before: np.ndarray | None) -> str:
    """A line for each of three labels: the true one, and those that a model prefers."""
    after, true = predictions.probs[row], predictions.labels[row]
    preferred = np.argsort(-(after if before is None else np.maximum(after, before)), kind="stable")
    shown = list(dict.fromkeys([*([true] if true >= 0 else []), *preferred]))[:3]
    return "\n".join(
        f"{predictions.label_names[c]} {'' if before is None else f'{before[c]:.3f} → '}{after[c]:.3f}" for c in shown
    )


def noise_examples(records: Iterable[Mapping[str, Any]], n: int = MOST_EXAMPLES) -> Table:
    """Masked input with the hidden words in brackets, and the generated text; from `noise_examples.json`.

    >>> noise_examples([{"masked": "so <M> ly", "hidden": ["fun"], "text": "so oddly"}]).frame.iloc[0].tolist()
    ['so <M> (fun) ly', 'so oddly']
    """
    chosen = [record for record in records if isinstance(record, Mapping)][:n]
    columns = {
        "Source": [str(record.get("source") or "") for record in chosen],
        "Made from (hidden words)": [_masked_text(record) for record in chosen],
        "Noise text": [" ‖ ".join(str(r[key]) for key in ("text", "text_pair") if r.get(key)) for r in chosen],
    }
    # Language models may write half of a surrogate pair, which is not UTF-8.
    clean = {name: [v.encode("utf-8", "replace").decode() for v in values] for name, values in columns.items()}
    return Table(pd.DataFrame({name: values for name, values in clean.items() if any(values)}), "Noise examples")


def _masked_text(record: Mapping[str, Any]) -> str:
    """The masked input with the hidden words after each mask; words that match no mask follow at the end."""
    masked = str(record.get("masked") or record.get("made_from") or "").replace("<SEP>", "‖")
    hidden = [f"({words})" for words in record.get("hidden") or []]
    parts = re.split(r"<M>|\[M\]|<mask>|\[MASK\]", masked)
    if len(hidden) != len(parts) - 1:
        return " ".join([masked, *hidden]).strip()
    return parts[0] + "".join(f"<M> {words}{part}" for words, part in zip(hidden, parts[1:], strict=True))


def noise_source_table(noise: Mapping[str, Any]) -> Table:
    """One row per noise source, from the part "noise" of results.json."""
    found = noise.get("sources")
    known = {str(k): v for k, v in found.items() if isinstance(v, Mapping)} if isinstance(found, Mapping) else {}
    frame = pd.DataFrame([{name: facts.get(key) for key, name in SOURCE_COLUMNS.items()} for facts in known.values()])
    frame = frame.dropna(axis=1, how="all")
    frame.insert(0, "Source", list(known))
    digits = {"Words": 1, "Words of data": 1}
    return Table(frame, "Noise sources", (SOURCE_NOTE,) if known else (), digits=digits)


def noise_auroc_table(
    histories: Iterable[tuple[str, Sequence[Mapping[str, Any]]]], detection: pd.DataFrame, reuse: Any = None
) -> Table:
    """Noise AUROC of each method, means over seeds; `histories` are (method, history) pairs.

    Sources of a mixture have columns of their own. Notes warn of noise that is too easy, too difficult or reused.
    """
    records = []
    for method, history in histories:
        steps = pd.DataFrame(list(history)).filter(regex="^noise_auroc").apply(pd.to_numeric, errors="coerce")
        names = {key: "Training" + key.removeprefix("noise_auroc").replace("_", ", ", 1) for key in steps}
        last = {name: steps[key].dropna().tail(max(1, steps[key].count() // 10)).mean() for key, name in names.items()}
        records += [{"Method": method, **last}] if last else []
    frame = pd.DataFrame(records)
    if not records:
        return Table(frame, "Noise AUROC")
    frame = frame.groupby("Method", sort=False).mean().reset_index()
    held_out = detection[(detection["texts"] == "noise") & (detection["score"] == "energy")]
    frame["Held-out"] = frame["Method"].map(held_out.groupby("method")["auroc"].mean())
    notes = [AUROC_NOTE]
    for method, auroc in zip(frame["Method"], frame["Held-out"], strict=True):
        if auroc > USEFUL_AUROC[1]:
            notes.append(f"{method}: the noise is too easy (held-out AUROC {auroc:.2f}) to learn much from.")
        elif auroc < USEFUL_AUROC[0]:
            notes.append(f"{method}: the noise is hardly separable from data (held-out AUROC {auroc:.2f}).")
    if isinstance(reuse, int | float) and reuse > 2:
        notes.append(f"Each noise text was used {reuse:.1f} times: it may be memorised.")
    return Table(frame.dropna(axis=1, how="all"), "Noise AUROC", tuple(notes))
