"""The visible part of a report: the first screen, reliability, the comparison of models, errors and label issues.

The first screen is for readers who are not engineers: which model, how accurate, how confident, what to do.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ebmcal.advice import confidence_gap
from ebmcal.predictions import Predictions
from ebmcal.reports import plots
from ebmcal.reports.page import Block, Bullets, Commands, Fact, Facts, Note, Pictures, Section, draw
from ebmcal.reports.run_data import RunData, Subject
from ebmcal.reports.tables.errors import class_table, confident_errors, confusion_table, label_issue_table
from ebmcal.reports.tables.results import list_test_sets, recommended_key, row_name
from ebmcal.reports.tables.summary import summary_table

#: Levels of confidence for the first screen: the first one that at least a tenth of the texts reach.
LEVELS = (0.9, 0.8, 0.7, 0.6)

#: Labels of a confusion matrix at most; above that, the most frequent confusions are listed.
MOST_MATRIX_LABELS = 12

RELIABILITY = (
    "Bars: how often the model is right at each level of confidence, with 95% intervals. The bars of a calibrated "
    "model end on the dashed diagonal. The hatched part is the difference between confidence and accuracy: above the "
    "bar the model is overconfident. Below: how many texts have that confidence; dotted line: mean confidence, solid "
    "line: accuracy."
)
CONFUSION = "Rows: true label. Columns: predicted label. Blue: right. Orange: mistaken. Numbers are test texts."


@dataclass(frozen=True)
class Focus:
    """The model that the report is about: the recommended one, otherwise the first."""

    subject: Subject
    calibrator: str | None
    test_set: str
    before: Predictions  # labelled rows of the test set
    after: Predictions | None  # with the calibrator
    is_recommended: bool

    @property
    def name(self) -> str:
        return row_name(self.subject.method, self.calibrator if self.after is not None else None)

    @property
    def rows(self) -> Predictions:
        return self.before if self.after is None else self.after


def find_focus(data: RunData) -> Focus | None:
    """The recommended model with its labelled test rows; None if no model has any."""
    key = recommended_key(data.evaluation)
    candidates = [s for s in data.subjects if s.test_sets and key and s.method == key[0]]
    trial = data.part("recommended").get("trial")
    candidates.sort(key=lambda subject: subject.name != trial)
    for subject in [*candidates, *data.subjects]:
        for name in subject.test_sets[:1]:
            rows = subject.read(name)
            if rows is None or not (rows.labels >= 0).any():
                continue
            calibrator = key[1] if key and subject in candidates else next(iter(subject.versions), None)
            after = subject.calibrated(calibrator, name)
            after = after.labelled() if after is not None else None
            return Focus(subject, calibrator, name, rows.labelled(), after, subject in candidates)
    return None


def overview_sections(data: RunData, focus: Focus | None) -> list[Section]:
    """Everything above the collapsed sections."""
    first: list[Block] = [Bullets(data.missing, "Not finished", is_warning=True)] if data.missing else []
    if focus is None:
        first.append("There are no predictions for labelled test texts.")
        return [Section("", first), Section("Comparison of models", _comparison(data))]
    sections = [Section("", [*first, *_first_screen(data, focus)])]
    sections.append(Section("Can its confidence be trusted?", _reliability(focus)))
    sections.append(Section("Comparison of models", _comparison(data)))
    sections.append(Section("Errors", _errors(focus)))
    issues = data.document.get("label_issues")
    if isinstance(issues, list) and issues:
        table = label_issue_table([issue for issue in issues if isinstance(issue, Mapping)])
        sections.append(Section("Label issues", [table]))
    return sections


def lead(data: RunData, focus: Focus | None) -> str:
    """One sentence: the task, the labels, the rows."""
    if focus is None:
        return ""
    names = focus.before.label_names
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    texts = "pairs of texts" if focus.before.text_pairs is not None else "texts"
    n_train = _n_train(data)
    trained = f"Trained on {n_train:,} {texts}; the" if n_train else "The"
    n_test = focus.before.n_rows
    return (
        f"Assigns one of {len(names)} labels ({shown}) to {texts}. {trained} results are from {n_test:,} test {texts}."
    )


def _first_screen(data: RunData, focus: Focus) -> list[Block]:
    blocks: list[Block] = [Facts(_facts(focus))]
    sentences = [str(sentence) for sentence in data.part("advice").get("sentences") or data.evaluation.verdicts()]
    if sentences:
        blocks.append(Bullets(tuple(sentences), "What to do"))
    if focus.is_recommended and data.root is not None:
        blocks.append(Commands(_commands(data.root, focus.subject), "Commands"))
    if focus.is_recommended:
        blocks.append(_where_from(data, focus))
    return blocks


def _where_from(data: RunData, focus: Focus) -> str:
    """Which rows the numbers come from."""
    advice = data.part("advice")
    n_rows, kind = advice.get("n_rows"), str(advice.get("rows") or "calibration")
    chosen = f"{n_rows:,} {kind} rows" if isinstance(n_rows, int) else f"{kind} rows"
    n_seeds = len([subject for subject in data.subjects if subject.method == focus.subject.method])
    seeds = ""
    if n_seeds > 1:
        seeds = f" The boxes show the model of seed {focus.subject.seed}, the comparison the mean of {n_seeds} seeds."
    return (
        f"Which model to use was decided on {chosen}. The boxes above and everything below come from test rows, which "
        f"played no part in the decision, so the numbers differ.{seeds}"
    )


def _facts(focus: Focus) -> tuple[Fact, ...]:
    from scipy.stats import binomtest

    rows = focus.rows
    right = rows.predicted == rows.labels
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    level = next((level for level in LEVELS if (rows.confidence >= level).mean() >= 0.1), None)
    kind = "Recommended model" if focus.is_recommended else "Model"
    facts = [
        Fact(kind, focus.name, _model_detail(focus)),
        Fact(
            "Accuracy",
            f"{right.mean():.1%}",
            f"{right.sum():,} of {len(right):,} test texts right "
            f"(95% interval {interval.low:.1%} to {interval.high:.1%})",
        ),
        Fact("Average confidence", f"{rows.confidence.mean():.1%}", confidence_verdict(rows)),
    ]
    if level is not None:
        sure = rows.confidence >= level
        detail = f"of the {sure.sum():,} test texts ({sure.mean():.0%}) answered with confidence {level:.0%} or more"
        facts.append(Fact(f"When it is at least {level:.0%} sure", f"{right[sure].mean():.1%} right", detail))
    return tuple(facts)


def confidence_verdict(rows: Predictions) -> str:
    """Mean confidence against accuracy: over- or underconfident only if the difference is significant.

    >>> confidence_verdict(Predictions([0] * 90 + [1] * 10, ("no", "yes"), probs=[[0.9, 0.1]] * 100))
    'as high as its accuracy: no clear miscalibration on 100 texts'
    """
    gap = confidence_gap(rows.labels, rows.probs)
    points = abs(gap.difference) * 100
    size = f"{points:.1f} points {'above' if gap.difference > 0 else 'below'} its accuracy"
    if gap.verdict:
        return f"{size}: the model is {gap.verdict}"
    return f"{size if points >= 0.05 else 'as high as its accuracy'}: no clear miscalibration on {len(rows):,} texts"


def _model_detail(focus: Focus) -> str:
    seed = "" if focus.subject.seed is None else f", seed {focus.subject.seed}"
    if not focus.is_recommended:
        return "the first of those evaluated"
    source = {"(dev)": "calibration rows", "(cross-fit)": "out-of-fold rows", "(train)": "training rows"}
    fitted = next((rows for end, rows in source.items() if (focus.calibrator or "").endswith(end)), None)
    if focus.after is None or fitted is None:
        return f"as trained{seed}"
    return f"confidence calibrated on {fitted}{seed}"


def _commands(root: Path, subject: Subject) -> tuple[tuple[str, str], ...]:
    run, model = shlex.quote(str(root)), shlex.quote(str(root / "trials" / subject.name / "model"))
    return (
        ("Label the texts of a file", f"ebmcal predict {run} new.csv --output labelled.csv"),
        ("Try it in the browser", f"ebmcal serve {run} --ui"),
        ("Leave doubtful texts to people", f"ebmcal abstain {model} --data other_labelled.csv --max-error 0.05"),
    )


def _reliability(focus: Focus) -> list[Block]:
    shown = {"as trained": focus.before}
    if focus.after is not None:
        calibrator = (focus.calibrator or "").partition(" (")[0]
        shown = {"before calibration": focus.before, f"after {calibrator}": focus.after}
    about = (
        "A model can be trusted if, of the texts it answers with 80% confidence, 80% are right, and so on for every "
        f"level. {focus.subject.method} on {focus.before.n_rows:,} test rows"
        + (", before and after calibration:" if len(shown) > 1 else ":")
    )
    pictures = [
        draw(name, "", "", partial(plots.reliability_diagram, rows, name=name), size=(4.6, 4.2), below=0.95)
        for name, rows in shown.items()
    ]
    return [about, Pictures(tuple(pictures)), Note(RELIABILITY)]


def _comparison(data: RunData) -> list[Block]:
    blocks: list[Block] = []
    sets = list_test_sets(data.evaluation)
    for name in sets:
        table = summary_table(data.evaluation, test_set=name)
        if len(table):
            blocks += [f"Test set {name}:"] if len(sets) > 1 else []
            blocks.append(table)
    if recommended_key(data.evaluation):
        blocks.insert(0, "The recommended model is green. The best value of each column is bold.")
    return blocks or ["No model has been evaluated yet."]


def _errors(focus: Focus) -> list[Block]:
    rows, blocks = focus.rows, list[Block]()
    if rows.n_classes <= MOST_MATRIX_LABELS:
        side = 2.0 + 0.42 * rows.n_classes
        panel = partial(plots.confusion_matrix, rows)
        size = (side + 1.6, side + 0.5)
        matrix = draw("confusion", "Confusion matrix", CONFUSION, panel, size=size, below=0.55, left=1.5)
        blocks.append(Pictures((matrix,)))
    elif (rows.predicted != rows.labels).any():
        blocks.append(confusion_table(rows))
    blocks.append(class_table(rows))
    if (rows.predicted != rows.labels).any():
        blocks.append(confident_errors(rows))
    return blocks


def _n_train(data: RunData) -> int | None:
    """The number of training rows according to the data audit."""
    splits: Any = data.part("audit").get("splits")
    train = splits.get("train") if isinstance(splits, Mapping) else None
    count = train.get("rows") if isinstance(train, Mapping) else None
    return count if isinstance(count, int) else None
