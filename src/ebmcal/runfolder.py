"""The layout of a run folder: what the training half writes and the evaluation half reads.

    config.yaml                            the config as resolved
    fingerprints.json                      of the contents of each split, and of the settings
    checksums.json                         of the files above and below that a finished run has
    metrics.json                           see `metrics_document`
    log.txt
    report.html
    noise_examples.json                    list of {"source", "source_pair", "masked", "hidden", "noise", "noise_pair"}
    predictions/<method>-seed<N>/<split>.parquet
    history/<method>-seed<N>.jsonl         a JSON object a line: {"step": .., "loss": ..} or {"step": .., "eval_..": ..}
    checkpoints/<method>-seed<N>/model/    the finetuned model; checkpoint-<step>/ while training
    data/, cache/                          of runs from Python: data that was in memory; a cache where none is shared

Splits are `train`, `calibration`, `test` (MNLI also `test_mismatched`), `noise` (generated texts, no labels)
and `ood_<name>` (other text, labels optional).
"""

import re
from dataclasses import dataclass
from pathlib import Path

#: In a model folder: what the model is (energy, and of a run's models task, method and seed).
CARD_FILE = "ebmcal.json"


@dataclass(frozen=True)
class Cell:
    """One trained model of a run: a method and a seed.

    >>> Cell.parse("sharp-hidden-seed2")
    Cell(method='sharp-hidden', seed=2)
    """

    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"

    @classmethod
    def parse(cls, name: str) -> "Cell":
        method, _, seed = name.rpartition("-seed")
        return cls(method, int(seed))


@dataclass(frozen=True)
class RunFolder:
    """Paths inside a run folder; reads nothing and writes nothing by itself."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def fingerprints(self) -> Path:
        return self.root / "fingerprints.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.json"

    @property
    def log(self) -> Path:
        return self.root / "log.txt"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def noise_examples(self) -> Path:
        return self.root / "noise_examples.json"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def documents(self) -> list[Path]:
        """What a finished run has beside predictions and models; `checksums.json` vouches for it."""
        alone = [self.config, self.fingerprints, self.metrics, self.report, self.noise_examples]
        return [*alone, *(self.root / "history").glob("*.jsonl")]

    def predictions(self, cell: Cell, split: str) -> Path:
        return self.root / "predictions" / cell.name / f"{split}.parquet"

    def history(self, cell: Cell) -> Path:
        return self.root / "history" / f"{cell.name}.jsonl"

    def checkpoints(self, cell: Cell) -> Path:
        return self.root / "checkpoints" / cell.name

    def model(self, cell: Cell) -> Path:
        return self.checkpoints(cell) / "model"

    def cells(self) -> list[Cell]:
        """The cells that have predictions, in name order."""
        folder = self.root / "predictions"
        return [Cell.parse(p.name) for p in sorted(folder.glob("*-seed*")) if p.is_dir()]

    def splits(self, cell: Cell) -> list[str]:
        """The splits of a cell that have predictions, in name order."""
        return sorted(p.stem for p in (self.root / "predictions" / cell.name).glob("*.parquet"))


def cell_of_model(model: Path) -> tuple[RunFolder, Cell] | None:
    """The run and the cell that a model folder belongs to; None for a model that lies elsewhere.

    >>> cell_of_model(Path("runs/a/checkpoints/hidden-seed1/model"))[1]
    Cell(method='hidden', seed=1)
    """
    found = re.search(r"(.*)/checkpoints/([^/]+-seed\d+)/model$", model.absolute().as_posix())
    return (RunFolder(Path(found[1])), Cell.parse(found[2])) if found else None


def predictions_of_model(model: Path, split: str) -> Path | None:
    """The file of a split that the run of a model folder predicted; None where there is none."""
    place = cell_of_model(model)
    path = place[0].predictions(place[1], split) if place else None
    return path if path and path.is_file() else None
