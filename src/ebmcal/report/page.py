"""What stands on the page: the material of a report as tables, pictures and examples, ready for the template."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebmcal.judging import Measures, judge
from ebmcal.metrics import HEADLINE_METRICS, FewRowsWarning
from ebmcal.plots.reliability import labelled_rows
from ebmcal.report.material import Material, Subject
from ebmcal.report.pictures import Picture, hardness_picture, model_pictures, overview_pictures
from ebmcal.tables import (
    Table,
    detection_table,
    hardness_table,
    list_test_sets,
    paired_table,
    seed_table,
    summary_table,
)
from ebmcal.tables.examples import EnergyExample, energy_examples, noise_examples
from ebmcal.tables.nested import nested_tables, record_table

#: For rows that nobody has judged yet.
MEASURES = Measures(HEADLINE_METRICS, n_resamples=200)


@dataclass(frozen=True)
class ModelSection:
    """One trained model on the page; `name` is empty where the method has no seeds to tell apart."""

    name: str
    pictures: list[Picture]
    examples: list[EnergyExample]
    baseline: str | None  # whose posteriors stand before the arrow


@dataclass(frozen=True)
class MethodSection:
    """A method on the page: its models, one a seed."""

    name: str
    anchor: str
    models: list[ModelSection]


def build_page(material: Material) -> dict[str, Any]:
    """Everything the template shows, by the names it uses."""
    document = with_rows(material)
    sets = list_test_sets(document)
    noise = document.get("noise")
    return {
        "title": material.title,
        "facts": _facts(document, material.subjects),
        "missing": material.missing,
        "summaries": [summary_table(document, test_set=name) for name in sets],
        "seeds": [seed_table(document, test_set=name) for name in sets],
        "paired": [
            paired_table(document),
            *([paired_table(document, each_seed=True)] if document.get("paired_over_seeds") else []),
        ],
        "detection": detection_table(document),
        "overview": overview_pictures(material.subjects),
        "methods": _methods(material.subjects),
        "advice": _advice(document),
        "hardness": hardness_table(document),
        "hardness_picture": hardness_picture(document),
        "noise_tables": nested_tables(noise, "Noise") if isinstance(noise, Mapping) else [],
        "noise_examples": noise_examples(material.noise_records),
        "data_tables": _nested(document, "data", "Data"),
        "training": _training(document),
        "versions": _nested(document, "versions", "Versions")
        + _nested(document, "fingerprints", "Fingerprints of the data"),
        "config": material.config,
    }


def _advice(document: Mapping[str, Any]) -> list[str]:
    advice = document.get("advice")
    return [str(line) for line in advice.get("sentences") or []] if isinstance(advice, Mapping) else []


def with_rows(material: Material) -> Mapping[str, Any]:
    """The document, or one made here from the predictions where it has no rows yet."""
    if material.document.get("rows"):
        return material.document
    rows = [_measured(subject, split) for subject in material.subjects for split in subject.test_sets()]
    return {**material.document, "rows": [row for row in rows if row]}


def _measured(subject: Subject, split: str) -> dict[str, Any] | None:
    rows = labelled_rows(subject.splits[split])
    if rows is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)  # it stands in the notes
        return judge(rows, MEASURES, method=subject.method, seed=subject.seed, test_set=split)


def _facts(document: Mapping[str, Any], subjects: Sequence[Subject]) -> list[tuple[str, str]]:
    """Name and value of what identifies the run, unknown ones left out."""
    labels = document.get("label_names") or next((r.label_names for s in subjects for r in s.splits.values()), ())
    names = ", ".join(dict.fromkeys(subject.method for subject in subjects))
    facts = {
        "Encoder": " = ".join(filter(None, (document.get("encoder"), document.get("encoder_about")))),
        "Noise": document.get("noise_source", document.get("noise_lm")),
        "Methods" if _seeds(subjects) else "Models": names,
        "Seeds": ", ".join(str(seed) for seed in document.get("seeds") or _seeds(subjects)),
        "Labels": ", ".join(map(str, labels)),
        "Test texts": _n_texts(subjects),
    }
    return [(name, str(value)) for name, value in facts.items() if value]


def _n_texts(subjects: Sequence[Subject]) -> str:
    """How many texts each test set has; models that saw different numbers are all counted."""
    counts: dict[str, dict[int, None]] = {}
    for split, rows in (item for subject in subjects for item in subject.test_sets().items()):
        counts.setdefault(split, {})[rows.n_rows] = None
    named = {split: " or ".join(f"{n:,}" for n in found) for split, found in counts.items()}
    return ", ".join(named.values() if len(named) == 1 else (f"{n} ({split})" for split, n in named.items()))


def _seeds(subjects: Sequence[Subject]) -> list[int]:
    return sorted({subject.seed for subject in subjects if subject.seed is not None})


def _methods(subjects: Sequence[Subject]) -> list[MethodSection]:
    names = list(dict.fromkeys(subject.method for subject in subjects))
    return [
        MethodSection(
            name, f"method-{i}", [_model(s, subjects, f"m{i}s{j}") for j, s in enumerate(subjects) if s.method == name]
        )
        for i, name in enumerate(names)
    ]


def _model(subject: Subject, subjects: Sequence[Subject], key: str) -> ModelSection:
    baseline = find_baseline(subject, subjects)
    main = next(iter(subject.test_sets()), None)
    examples: list[EnergyExample] = []
    if main is not None:
        examples = energy_examples(subject.splits[main], baseline.splits.get(main) if baseline else None)
    compared = any(shift.before is not None for example in examples for shift in example.shifts)
    label = "" if subject.seed is None else f"Seed {subject.seed}"
    return ModelSection(
        label, model_pictures(subject, baseline, key), examples, baseline.method if baseline and compared else None
    )


def find_baseline(subject: Subject, subjects: Sequence[Subject]) -> Subject | None:
    """The baseline of the same seed; among prediction files without one of that name, the first."""
    named = [s for s in subjects if s.method == "baseline" and s.seed == subject.seed]
    found = named or ([subjects[0]] if subject.seed is None else [])
    return found[0] if found and found[0] is not subject else None


def _nested(document: Mapping[str, Any], part: str, title: str) -> list[Table]:
    value = document.get(part)
    return nested_tables(value, title) if isinstance(value, Mapping) and value else []


def _training(document: Mapping[str, Any]) -> Table | None:
    cells = document.get("training")
    known = (
        {name: cell for name, cell in cells.items() if isinstance(cell, Mapping)} if isinstance(cells, Mapping) else {}
    )
    return record_table(known, "Training", "Model") if known else None
