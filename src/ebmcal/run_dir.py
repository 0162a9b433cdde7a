"""The layout of a run directory and of the model directories in it. Paths only; no torch.

    config.yaml                            the resolved config
    fingerprints.json                      of the data and of the settings that cannot change
    results.json                           everything measured: see `ebmcal.evaluation.Evaluation`
    log.txt, report.html, noise_examples.json
    trials/<method>-seed<N>/model/         the finetuned model: a transformers checkpoint plus ebmcal.json
    trials/<method>-seed<N>/<split>.parquet     predictions
    trials/<method>-seed<N>/history.jsonl  one JSON object per logged step
    trials/<method>-seed<N>/checkpoint-*/  while training
    data/, cache/                          for runs from Python: in-memory data; the cache if none is shared

Splits are `train`, `calibration`, `test` (MNLI also `test_mismatched`), `out_of_fold` (cross-fitted predictions of the
training rows), `noise` (held-out noise texts) and `ood_<name>` (texts from elsewhere).
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError
from ebmcal.storage import PathLike, fingerprint, read_json, write_json

#: In a model directory: arrays of its abstention rule.
RULE_ARRAYS_FILE = "abstention.npz"
#: In a model directory: energy, method, seed, training data, calibrator, abstention rule, histograms.
CARD_FILE = "ebmcal.json"

#: The method of the trial that every run adds: logistic regression on the encoder as it is.
FROZEN_PROBE = "frozen-probe"


@dataclass(frozen=True, order=True)
class Trial:
    """One trained model of a run: a method and a seed.

    >>> Trial.parse("sharp-hidden-seed2")
    Trial(method='sharp-hidden', seed=2)
    """

    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"

    @classmethod
    def parse(cls, name: str) -> "Trial":
        method, _, seed = name.rpartition("-seed")
        return cls(method, int(seed))


class RunDir:
    """The paths of a run directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.yaml"
        self.fingerprints = root / "fingerprints.json"
        self.results = root / "results.json"
        self.log = root / "log.txt"
        self.report = root / "report.html"
        self.noise_examples = root / "noise_examples.json"

    def check(self) -> None:
        """Raise if the directory holds something other than a run."""
        allowed = {".lock", "log.txt", "data", "cache"}
        names = {path.name for path in self.root.iterdir()} if self.root.is_dir() else set()
        if any(name not in allowed and not name.endswith(".tmp") for name in names) and "config.yaml" not in names:
            raise EbmcalError(
                f"The output directory {str(self.root)!r} is not empty and is not a run directory (no config.yaml). "
                "Use another --output."
            )

    def trial(self, trial: Trial) -> Path:
        return self.root / "trials" / trial.name

    def model(self, trial: Trial) -> Path:
        return self.trial(trial) / "model"

    def predictions(self, trial: Trial, split: str) -> Path:
        return self.trial(trial) / f"{split}.parquet"

    def history(self, trial: Trial) -> Path:
        return self.trial(trial) / "history.jsonl"

    def trials(self) -> list[Trial]:
        """The trials that have predictions, in name order, the frozen probe last."""
        return self._find("*.parquet")

    def models(self) -> list[Trial]:
        """The trials that have a model, in the same order."""
        return self._find("model")

    def _find(self, pattern: str) -> list[Trial]:
        found = {Trial.parse(path.parent.name) for path in (self.root / "trials").glob(f"*-seed*/{pattern}")}
        return sorted(found, key=lambda trial: (trial.method == FROZEN_PROBE, trial.name))

    def splits(self, trial: Trial) -> list[str]:
        """The splits with predictions of a trial, in name order."""
        return sorted(path.stem for path in self.trial(trial).glob("*.parquet"))

    @classmethod
    def containing(cls, model: PathLike) -> "tuple[RunDir, Trial] | None":
        """The run and the trial that a model directory belongs to; None for a model elsewhere.

        >>> RunDir.containing("runs/a/trials/hidden-seed1/model")[1]
        Trial(method='hidden', seed=1)
        """
        found = re.search(r"(.*)/trials/([^/]+-seed\d+)/model/?$", Path(model).absolute().as_posix())
        return (cls(Path(found[1])), Trial.parse(found[2])) if found else None


def model_name(folder: Path) -> str:
    """A short name of a model directory: of its trial, or of the directory.

    >>> model_name(Path("runs/a/trials/hidden-seed1/model")), model_name(Path("mine"))
    ('hidden-seed1', 'mine')
    """
    place = RunDir.containing(folder)
    return place[1].name if place else folder.resolve().name


def recommended_model(run: PathLike) -> Path:
    """The directory of the recommended model of a run."""
    directory = RunDir(Path(run))
    document = read_json(directory.results) if directory.results.is_file() else None
    recommended = document.get("recommended") if isinstance(document, dict) else None
    if not isinstance(recommended, dict) or "trial" not in recommended:
        raise EbmcalError(f"The run {run} has no recommended model yet. Finish it, or name a model in {run}/trials.")
    return directory.model(Trial.parse(str(recommended["trial"])))


def predictions_of_model(model: PathLike, split: str) -> Path | None:
    """The predictions of a split in the run that a model directory belongs to; None if there are none."""
    place = RunDir.containing(model)
    path = place[0].predictions(place[1], split) if place else None
    return path if path and path.is_file() else None


def read_card(model: PathLike) -> dict[str, Any]:
    """`ebmcal.json` of a model directory; empty for a plain checkpoint."""
    path = Path(model) / CARD_FILE
    if not path.is_file():
        return {}
    card: dict[str, Any] = read_json(path)
    try:
        _card_schema().model_validate(card)
    except ValueError as error:
        first = error.errors()[0]  # type: ignore[attr-defined]  # a ValidationError
        name, problem = ".".join(map(str, first["loc"])) or "content", first["msg"].removeprefix("Input ")
        raise EbmcalError(f"{path}: {name} {problem}, got {first['input']!r:.60}. Restore or delete it.") from error
    return card


@functools.cache
def _card_schema() -> Any:
    """The entries that predictions depend on; others are checked where they are used. Loads pydantic only if needed."""
    from pydantic import ConfigDict, PositiveFloat, PositiveInt, create_model

    types: dict[str, Any] = {
        "energy": str, "centered": bool, "method": str, "max_length": PositiveInt, "text_column": str,
        "text_pair_column": str, "label_column": str, "id_column": str, "is_pair": bool,
        "folded_temperature": PositiveFloat,
    }  # fmt: skip
    fields: dict[str, Any] = {name: (kind | None, None) for name, kind in types.items()}
    return create_model("card", __config__=ConfigDict(extra="allow", strict=True, allow_inf_nan=False), **fields)


def update_card(model: PathLike, **entries: Any) -> None:
    """Set entries of `ebmcal.json` in a model directory; an entry that is None is removed."""
    card = read_card(model) | entries
    write_json(Path(model) / CARD_FILE, {k: v for k, v in card.items() if v is not None})


def weights_fingerprint(model: PathLike) -> str:
    """A cheap identity of the weights in a model directory: any retraining changes the sample of bytes it hashes."""
    files = sorted(Path(model).glob("*.safetensors"))
    if not files:
        raise EbmcalError(f"{model} has no *.safetensors weights. Expected a model directory.")
    return fingerprint([(path.name, path.stat().st_size, _sample(path)) for path in files])


def _sample(path: Path, n_blocks: int = 64, block: int = 4096) -> str:
    size = path.stat().st_size
    with open(path, "rb") as handle:
        starts = [size * i // n_blocks for i in range(n_blocks)]
        return fingerprint([(handle.seek(start), handle.read(block).hex()) for start in starts])
