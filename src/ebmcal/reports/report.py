"""The report of a run directory, or of an evaluation of prediction files, as a page or as text.

The first screen is for readers who are not engineers: which model, how accurate, how confident, what to do. Collapsed
sections follow: all results, every model, energies, training, noise, data and settings.
"""

import contextlib
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml

from ebmcal.advice import confidence_gap, is_action, label_issue_advice, shorten
from ebmcal.data import audit_messages
from ebmcal.errors import plural, unknown_name
from ebmcal.metrics.calibration import wilson
from ebmcal.predictions import Predictions
from ebmcal.reports import page, plots, tables
from ebmcal.reports.page import Block, Part, Picture, Section, Table
from ebmcal.reports.plots import CAPTIONS, draw
from ebmcal.reports.run_data import Focus, RunData, Subject, find_focus, read_run
from ebmcal.run_dir import FROZEN_PROBE, RunDir
from ebmcal.storage import PathLike, read_json

if TYPE_CHECKING:
    from ebmcal.evaluation import Evaluation

#: Levels of confidence for the first screen: the first one that at least a tenth and this many of the texts reach.
LEVELS, LEAST_SURE = (0.9, 0.8, 0.7, 0.6), 30

#: Labels of a confusion matrix at most (above that, the most frequent confusions are listed), and of the diagrams.
MOST_MATRIX_LABELS, MOST_DIAGRAMS = 12, 6

#: Words of the first screen (regular expressions) that need an explanation.
GLOSSARY = {
    "baseline": "finetuned in the usual way.",
    "sharp-hidden|hidden|scalar": "finetuned to tell your texts from generated ones as well, by an energy: a score "
    "that is low for texts like yours.",
    "poscal": "finetuned with a penalty on calibration errors.",
    "frozen-probe": "a logistic regression on the encoder as it is, not finetuned.",
    "temperature": "one number (T) that makes the probabilities less (above 1) or more (below 1) extreme; the labels "
    "stay the same.",
    "out-of-fold": "training rows, each predicted by a model that was not trained on it.",
    "cross-fit": "fitted on out-of-fold rows.",
    "dev": "fitted on calibration rows.",
    "NLL": "negative log-likelihood, how improbable the true labels are for the model; lower is better.",
    "ECE": "calibration error, the mean difference between confidence and accuracy; lower is better.",
    "Brier": "mean squared error of the probabilities; lower is better.",
}


def write_report(run_dir: PathLike, path: PathLike | None = None) -> Path:
    """Write the report of a finished run, to its `report.html` unless `path` is given; returns the path.

    ebmcal.write_report("runs/mine", "mine.html")
    """
    return page.write_page(path or RunDir(Path(run_dir)).report, build_page(read_run(run_dir)))


def write_evaluation_report(evaluation: "Evaluation", path: PathLike, title: str = "Evaluation") -> Path:
    """Write the report of an evaluation of predictions; returns the path.

    write_evaluation_report(ebmcal.evaluate({"ours": ours, "theirs": theirs}), "report.html")
    """
    keys = evaluation.results[["model", "calibrator"]].drop_duplicates().itertuples(index=False, name=None)
    found: dict[str, dict[Any, Predictions]] = {}
    for model, calibrator in keys:
        rows = evaluation.predictions.get(tables.row_name(model, calibrator))
        if rows is not None:
            found.setdefault(model, {})[calibrator] = rows
    subjects = [Subject(name, None, {"test": v.pop(None)}, v) for name, v in found.items() if None in v]
    return page.write_page(path, build_page(RunData(title, evaluation, subjects)))


def report_text(run_dir: PathLike, format: str) -> str:
    """The tables of a run directory: "markdown" to paste, "json" for scripts."""
    if format not in ("markdown", "json"):
        raise unknown_name("report format", format, ("markdown", "json"))
    data = read_run(run_dir)
    if format == "json":
        return json.dumps(data.evaluation.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    sets = tables.list_test_sets(data.evaluation)
    shown = [tables.summary_table(data.evaluation, verbose=True, test_set=name) for name in sets]
    shown += [tables.comparison_table(data.evaluation), tables.detection_table(data.evaluation)]
    for subject in data.subjects:
        examples = data.energy_examples(subject, n=3)
        shown.append(replace(examples, title=f"{subject.name}: lowest and highest energy"))
    return "\n\n".join([f"# {data.title}", *(table.to_markdown() for table in shown if len(table))]) + "\n"


def build_page(data: RunData) -> page.Page:
    """The page of a report: what everyone needs first, collapsed sections after it."""
    focus = find_focus(data)
    issues = data.label_issues
    visible: dict[str, Iterator[Part]] = {
        "": _first_screen(data, focus),
        "Can its confidence be trusted?": _reliability(data, focus),
        "Comparison of models": _comparison(data),
        "Errors": _errors(focus),
        "Label issues": iter([tables.label_issue_table(issues, data.part("audit"))] if issues else []),
    }
    collapsed: dict[str, Iterator[Part]] = {
        "All results with intervals": _results(data),
        "Every model and metric": _models(data),
        "Differences between models": iter([tables.comparison_table(data.evaluation)]),
        "OOD detection": iter([replace(tables.detection_table(data.evaluation), title="")]),
        "Reliability of every model": _every_reliability(data, focus),
        "Energies": _energies(data, focus),
        "Training": _training(data),
        "Noise": _noise(data),
        "Data": _data(data),
        "Settings": _settings(data),
    }
    sections = [
        Section(title, found, title in collapsed)
        for title, blocks in (visible | collapsed).items()
        if (found := [block for block in blocks if not isinstance(block, Table) or len(block)])
    ]
    return page.Page(data.title, _lead(data, focus), sections)


def _lead(data: RunData, focus: Focus | None) -> str:
    """One sentence: the task, the labels, the rows."""
    if focus is None:
        return ""
    names = focus.before.label_names
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    is_pair = focus.before.text_pairs is not None
    task = f"Assigns one of {len(names)} labels ({shown}) to {'pairs of texts' if is_pair else 'texts'}."
    with contextlib.suppress(KeyError, TypeError, ValueError):  # no run, or an edited results.json
        task += f" Trained on {_count(data.part('audit')['splits']['train']['rows'], is_pair)}."
    return f"{task} Tested on {_count(focus.before.n_rows, is_pair)}."


def _count(n: int, is_pair: bool) -> str:
    return plural(n, "pair" if is_pair else "text")


def _first_screen(data: RunData, focus: Focus | None) -> Iterator[Part]:
    if focus is None:
        yield "There are no predictions for labelled test texts."
        return
    sentences = [str(sentence) for sentence in data.part("advice").get("sentences") or ()]
    is_useful = focus.is_recommended and any(sentence.startswith("Use ") for sentence in sentences)
    yield Block("facts", list(_facts(data, focus, is_useful)), style="chosen" if is_useful else "")
    if focus.is_recommended:
        yield Block("note", _where_from(data, focus))
    sentences = sentences or list(shorten(data.evaluation.verdicts()))
    todo: list[Any] = [sentence for sentence in sentences if is_action(sentence)]
    if n := len(data.label_issues):
        todo.append((label_issue_advice(n), "label-issues"))
    found = [sentence for sentence in sentences if not is_action(sentence)]
    for title, items in {"What to do": todo, "What was found": found}.items():
        if items:
            yield Block("bullets", items, title)
    if focus.is_recommended and data.root is not None:
        run = shlex.quote(str(data.root))
        error = _reachable_error(focus.rows)
        commands = [
            ("Label the texts of a file", f"ebmcal predict {run} new.csv --output labelled.csv"),
            ("Try it in the browser", f"ebmcal serve {run} --ui"),
            (
                f"Leave doubtful texts to people, so that at most {error:.0%} of the answers are wrong (needs labelled "
                "texts that were not used for training)",
                f"ebmcal abstain {run} --data other_labelled.csv --max-error {error:g}",
            ),
        ]
        yield Block("commands", commands, "Commands")
    methods = [subject.method for subject in data.subjects] if data.root else []
    words = " ".join([focus.name, *methods, *sentences])
    if explained := list(_explanations(words)):
        yield Block("bullets", explained, "Words", style="small")


def _explanations(text: str) -> Iterator[str]:
    """The words of a text that are in the glossary, explained."""
    for pattern, explanation in GLOSSARY.items():
        if words := dict.fromkeys(re.findall(rf"(?<![\w-])(?:{pattern})(?![\w-])", text)):
            yield f"{', '.join(words)}: {explanation}"


def _facts(data: RunData, focus: Focus, is_useful: bool) -> Iterator[tuple[str, str, str]]:
    rows = focus.rows
    right = rows.predicted == rows.labels
    if focus.is_recommended:
        name = "Recommended model" if is_useful else "First choice, but see below"
        yield name, focus.subject.method + ", corrected" * (focus.after is not None), _model_detail(focus)
    else:
        fitted = data.evaluation.meta.get("fitted_on", {}).get(focus.subject.name)
        calibrator = rows.meta.get("calibrator")
        as_given = f"calibrated: {calibrator}" if calibrator else "probabilities as given"
        detail = f"calibrated on {fitted}" if focus.after is not None else as_given
        more = f"; the first of {len(data.subjects)} evaluated" if len(data.subjects) > 1 else ""
        yield "Model", focus.name, detail + more
    largest = np.bincount(rows.labels).max() / len(rows)
    constant = f"always answering the most frequent label: {largest:.1%}"
    detail = f"{_share(right)} test texts right ({_interval(right)}); {constant}"
    yield "Accuracy", f"{right.mean():.1%}", detail
    yield "Average confidence", f"{rows.confidence.mean():.1%}", confidence_verdict(rows)
    least = max(LEAST_SURE, 0.1 * len(rows))
    level = next((level for level in LEVELS if (rows.confidence >= level).sum() >= least), None)
    if level is not None:
        sure = rows.confidence >= level
        size = f"{sure.mean():.0%} of all texts"
        detail = f"{_share(right[sure])} texts with this confidence ({_interval(right[sure])}); {size}"
        yield f"When it is at least {level:.0%} sure", f"{right[sure].mean():.1%} right", detail


def _reachable_error(rows: Predictions) -> float:
    """An error rate, in steps of 5 points, that a rule can guarantee with some hundred rows: that of the texts of which
    the model is most sure, but not more than that of all texts.

    >>> rows = Predictions([0] * 95 + [1] * 5, ("no", "yes"), probs=[[0.9, 0.1]] * 100)
    >>> _reachable_error(rows), _reachable_error(rows.rows(range(60, 100)))
    (0.05, 0.15)
    """
    right = rows.predicted == rows.labels
    surest = right[np.argsort(-rows.confidence, kind="stable")][: max(LEAST_SURE, len(rows) // 4)]
    low, _ = wilson(surest.sum(), np.array(len(surest)))
    reachable = min(1 - float(low), float(1 - right.mean()))
    return min(0.5, max(1, math.ceil(round(20 * reachable, 6))) / 20)


def _share(right: np.ndarray) -> str:
    return f"{right.sum():,} of {len(right):,}"


def _interval(right: np.ndarray) -> str:
    low, high = wilson(right.sum(), np.array(len(right)))
    return f"95% interval {low:.1%} to {high:.1%}"


def _model_detail(focus: Focus) -> str:
    kind = next((text for words, text in GLOSSARY.items() if re.fullmatch(words, focus.subject.method)), "").rstrip(".")
    confidence = "its confidence was corrected after training" if focus.after is not None else "as trained"
    return f"{kind}; {confidence}" if kind else confidence


def confidence_verdict(rows: Predictions) -> str:
    """Mean confidence against accuracy: over- or underconfident only if the difference is significant.

    >>> confidence_verdict(Predictions([0] * 90 + [1] * 10, ("no", "yes"), probs=[[0.9, 0.1]] * 100))
    'as high as its accuracy: no clear miscalibration on 100 texts'
    """
    gap = confidence_gap(rows.labels, rows.probs)
    points = abs(gap.difference) * 100
    size = f"{points:.1f} points {'above' if gap.difference > 0 else 'below'} its accuracy"
    if gap.verdict:
        return f"{size}: the model is {'slightly ' if points < 2 else ''}{gap.verdict}"
    size = size if points >= 0.05 else "as high as its accuracy"
    return f"{size}: no clear miscalibration on {plural(len(rows), 'text')}"


def _where_from(data: RunData, focus: Focus) -> str:
    """Which rows the numbers come from."""
    n_rows, kind = (data.part("advice").get(name) for name in ("n_rows", "rows"))
    chosen = plural(n_rows, f"{kind} row") if isinstance(n_rows, int) else f"{kind or 'calibration'} rows"
    seed = "" if focus.subject.seed is None else f", seed {focus.subject.seed}"
    text = (
        f"The model is {focus.name}{seed}. It was chosen on {chosen}, which the findings below describe. The boxes "
        "above, the plots and the tables come from test rows, which played no part in the choice, so numbers differ."
    )
    n_seeds = len([subject for subject in data.subjects if subject.method == focus.subject.method])
    if n_seeds > 1:
        text += f" The boxes show the model of seed {focus.subject.seed}, the comparison the mean of {n_seeds} seeds."
    return text


def _reliability(data: RunData, focus: Focus | None) -> Iterator[Part]:
    if focus is None:
        return
    shown = {"as trained" if focus.is_recommended else focus.subject.name: focus.before}
    reason, scaled = _not_chosen(data, focus), focus.subject.first_calibrated("temperature")
    if focus.after is None and reason and scaled is not None:
        shown["with temperature"] = scaled.labelled()
    if focus.after is not None:
        calibrator = (focus.calibrator or "").partition(" (")[0]
        shown = {"before calibration": focus.before, f"after {calibrator}": focus.after}
    yield (
        "A model can be trusted if, of the texts it answers with 80% confidence, 80% are right, and so on for every "
        f"level.{reason} {focus.subject.method} on {plural(focus.before.n_rows, 'test row')}"
        + (", before and after calibration:" if focus.after is not None else ":")
    )
    panels = {name: partial(plots.reliability_diagram, rows, name=name) for name, rows in shown.items()}
    yield Block("pictures", [draw(name, "", "", panel, size=(4.6, 4.2), below=0.95) for name, panel in panels.items()])
    yield Block("note", CAPTIONS["reliability"])


def _not_chosen(data: RunData, focus: Focus) -> str:
    """Why the recommended model has no temperature, after a space; empty if it has, or if none could be fitted."""
    advice = data.part("advice")
    found = [
        e for e in advice.get("evidence") or () if isinstance(e, Mapping) and e.get("model") == focus.subject.method
    ]
    nll = {e.get("calibrator"): e.get("nll") for e in found}
    if focus.calibrator or len(nll) != 2 or None not in nll:
        return ""
    with_it = next(value for calibrator, value in nll.items() if calibrator)
    rows = f"{advice.get('rows')} rows"
    return f" A temperature is not recommended: the NLL on the {rows} is {with_it} with it, {nll[None]} without."


def _comparison(data: RunData) -> Iterator[Part]:
    sets = tables.list_test_sets(data.evaluation)
    if not sets:
        yield "No model has been evaluated yet."
    elif len(data.evaluation.results[["model", "calibrator", "test_set"]].drop_duplicates()) == 1:
        return  # the table is among all results
    found = {name: tables.summary_table(data.evaluation, test_set=name) for name in sets}
    chosen = ["The recommended model is green."] if tables.recommended_key(data.evaluation) else []
    has_best = any(cell.is_best for table in found.values() for row in table.cells() for cell in row)
    best = "The best value of a column is bold and shaded; see below which differences are significant."
    if notes := chosen + [best] * has_best:
        yield " ".join(notes)
    for name, table in found.items():
        if len(sets) > 1:
            yield f"Test set {name}:"
        yield table


def _errors(focus: Focus | None) -> Iterator[Part]:
    if focus is None:
        return
    rows = focus.rows
    if rows.n_classes <= MOST_MATRIX_LABELS:
        side, longest = 2.0 + 0.42 * rows.n_classes, max(map(len, plots.matrix_names(rows.label_names)))
        left = max(1.0, 0.4 + 0.066 * (longest + 3))
        size, panel = (side + left, side), partial(plots.confusion_matrix, rows)
        matrix = draw("confusion", "Confusion matrix", CAPTIONS["confusion"], panel, size=size, left=left)
        yield Block("pictures", [matrix], style="scrolled" if rows.n_classes > MOST_DIAGRAMS else "")
    if rows.n_classes > MOST_DIAGRAMS:  # a large matrix does not fit on narrow screens, and is slow to read
        yield tables.confusion_table(rows)
    yield tables.class_table(rows)
    yield tables.confident_errors(rows)


def _results(data: RunData) -> Iterator[Part]:
    for name in tables.list_test_sets(data.evaluation):
        where = "" if name == "test" else f" on {name}"
        table = tables.summary_table(data.evaluation, verbose=True, test_set=name)
        if table.frame["Model"].str.endswith("(train)").any():
            where += ", also with calibrators fitted on the training rows, which are too optimistic there"
        yield f"Every model{where}."
        yield table


def _models(data: RunData) -> Iterator[Part]:
    """Every trained model with every metric, six metrics to a table."""
    table = tables.seed_table(data.evaluation)
    model, *metrics = table.columns
    for start in range(0, len(metrics), 6):
        yield table.select([model, *metrics[start : start + 6]])


def _every_reliability(data: RunData, focus: Focus | None) -> Iterator[Part]:
    """All methods side by side, each label of the focus, out-of-fold rows, risk over coverage."""
    pictures: list[Picture] = []
    for split in tables.list_test_sets(data.evaluation):
        named = {s.method: s.splits[split] for s in data.first_seeds if split in s.splits}
        title = "Every method, before calibration" + ("" if split == "test" else f", {split}")
        pictures += _diagrams(f"reliability-{split}", title, named, size=(3.8, 3.9), below=0.85)
    if focus is not None:
        before = focus.subject.splits.get("out_of_fold")
        versions = {"out of fold": before, "calibrated": before and focus.subject.calibrated(focus.calibrator, before)}
        named = {name: rows for name, rows in versions.items() if rows is not None}
        title = f"{focus.subject.title}: training rows, predicted by models trained without them"
        caption = "The calibrator was fitted on these rows: its calibration here is too optimistic." * (len(named) > 1)
        pictures += [*_diagrams("out-of-fold", title, named, caption, size=(4.4, 4.2), below=0.95), _labels(focus)]
        curves = {s.method: s.test for s in data.first_seeds if s.test is not None}
        panels = [partial(plots.risk_coverage_curves, curves)]
        if any(rows.energies is not None for rows in curves.values()):
            panels.append(partial(plots.risk_coverage_curves, curves, by_energy=True))
        pictures.append(draw("risk", "Risk and coverage", CAPTIONS["risk"], *panels))
    if pictures:
        yield Block("pictures", pictures)


def _diagrams(
    key: str, title: str, named: Mapping[str, Predictions], caption: str = "", **size: Any
) -> Iterator[Picture]:
    """Reliability diagrams side by side; the first screen explains how to read them."""
    panels = [partial(plots.reliability_diagram, rows, name=name) for name, rows in named.items()]
    if panels:
        yield draw(key, title, caption, *panels, **size)


def _labels(focus: Focus) -> Picture:
    counts = {name: int((focus.rows.labels == i).sum()) for i, name in enumerate(focus.rows.label_names)}
    shown = sorted(counts, key=lambda name: -counts[name])[:MOST_DIAGRAMS]
    panels = [partial(plots.reliability_diagram, focus.rows, label=name, histogram=False) for name in shown]
    more = f": the {len(shown)} most frequent of {len(counts)}" if len(counts) > len(shown) else ""
    return draw("labels", f"Each label, {focus.name}{more}", CAPTIONS["labels"], *panels, size=(3.3, 2.95))


def _energies(data: RunData, focus: Focus | None) -> Iterator[Part]:
    """Histogram and scatter of each method with energies, and example texts of one."""
    pictures, found = list[Picture](), dict[str, Subject]()
    for subject in data.first_seeds:
        test, shown = subject.test, [s for s in subject.splits if s.startswith(("test", "noise", "ood_"))]
        if test is not None and test.energies is not None and subject.method != FROZEN_PROBE:
            named = {split.replace("ood_", "OOD: "): subject.splits[split] for split in shown}
            panels = [partial(plots.energy_histograms, named), partial(plots.entropy_against_energy, test)]
            caption = "" if pictures else CAPTIONS["energy"]
            pictures.append(draw(f"energy-{len(pictures)}", subject.title, caption, *panels))
            found[subject.method] = subject
    if found:
        yield Block("pictures", pictures)
        best = focus.subject.method if focus is not None else ""
        method = min(found, key=lambda method: (method == "baseline", method != best))
        yield f"Examples of {found[method].title}:"
        yield data.energy_examples(found[method])


def _training(data: RunData) -> Iterator[Part]:
    curves = {key: (f"{name} over training steps", name, "over_steps") for key, name in plots.ECES.items()}
    curves["noise_auroc"] = ("Noise AUROC over training steps", "noise AUROC", "noise_auroc")
    pictures: list[Picture] = []
    for key, (title, y, caption) in curves.items():
        if series := plots.history_series(data.histories, key):
            panel = partial(plots.line_plot, series, x="step", y=y, markers=key != "noise_auroc")
            pictures.append(draw(key, title, CAPTIONS[caption], panel))
    if plots.history_series(data.histories, "eval_ece_classwise", "eval_accuracy"):
        panel = partial(plots.accuracy_against_ece, data.histories)
        pictures.append(draw("tradeoff", "Accuracy against ECE", CAPTIONS["tradeoff"], panel))
    for number, subject in enumerate(data.first_seeds):
        terms = {"terms of the loss": plots.loss_terms(subject.history), "mean energies": plots.ENERGIES}
        panels = [
            partial(plots.history_terms, subject.history, names, title=title, y=title.split()[-1])
            for title, names in terms.items()
            if any(plots.history_series([("", subject.history)], key) for key in names)
        ]
        if panels:
            caption = CAPTIONS["loss"] if not number else ""
            pictures.append(draw(f"loss-{number}", f"Loss of {subject.title}", caption, *panels))
    if pictures:
        yield Block("pictures", pictures)
    records = {name: record for name, record in data.part("training").items() if isinstance(record, Mapping)}
    frame = pd.DataFrame(records.values()).dropna(axis="columns", how="all")
    frame = frame.rename(columns=lambda name: str(name).capitalize().replace("_auroc", " AUROC").replace("_", " "))
    frame.insert(0, "Model", [tables.model_title(str(name)) for name in records])
    yield Table(frame, "Trainings", digits=dict.fromkeys(frame, None))


def _noise(data: RunData) -> Iterator[Part]:
    yield tables.noise_auroc_table(data.histories, data.evaluation.detection, data.part("noise").get("reuse"))
    yield tables.noise_source_table(data.part("noise"))
    path = RunDir(data.root).noise_examples if data.root else None
    yield tables.noise_examples(read_json(path) if path and path.exists() else [])
    yield from _listing(data, "noise", "Noise settings")


def _data(data: RunData) -> Iterator[Part]:
    with contextlib.suppress(KeyError, TypeError, AttributeError):  # an edited results.json
        messages = audit_messages(dict(data.part("audit")))
        if messages:
            yield Block("bullets", messages, "Found in the data, and what was done about it")
    yield from _listing(data, "audit", "Data audit")


def _settings(data: RunData) -> Iterator[Part]:
    yield from _listing(data, "versions", "Versions")
    if data.config:
        yield Block("code", data.config, "config.yaml")


def _listing(data: RunData, part: str, title: str) -> Iterator[Part]:
    """A part of `results.json` as YAML."""
    if data.part(part):
        yield Block("code", yaml.safe_dump(dict(data.part(part)), sort_keys=False, allow_unicode=True), title)
