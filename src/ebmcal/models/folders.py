"""The folder of a classifier: where it is, here or on the hub, whether it is one, and how long its texts may be."""

from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError
from ebmcal.models.classifier import CARD_FILE, EnergyClassifier
from ebmcal.models.hub import ask_hub
from ebmcal.models.loading import quiet
from ebmcal.models.packing import longest_text
from ebmcal.progress import Reporter
from ebmcal.storage.atomic import read_json

#: What a classifier folder is made of; other files, such as weights in formats that are not read, are left behind.
KEPT = (".json", ".jsonl", ".safetensors", ".txt", ".model", ".vocab", ".jinja")

#: Tokens of a text where neither the model's card nor its tokenizer says less.
MAX_LENGTH = 512


def folder_of(name: str | Path, reporter: Reporter) -> Path:
    """The folder of a model: given, or where the hub's files are on this machine."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if isinstance(name, Path) or str(name).startswith((".", "/", "~")) or str(name).count("/") > 1 or folder.exists():
        raise EbmcalError(
            f"{folder} is not a model folder. A run keeps its models in RUN/checkpoints/METHOD-seedN/model."
        )
    from huggingface_hub import snapshot_download

    try:
        ask_hub(str(name), reporter.say)
        with quiet():
            return Path(snapshot_download(str(name), allow_patterns=[f"*{suffix}" for suffix in KEPT]))
    except Exception as error:
        why = " ".join(str(error).split())[:300]
        raise EbmcalError(
            f"{name!r} is no local folder and did not come from the hub, which said: {why} A run keeps its models in "
            "RUN/checkpoints/METHOD-seedN/model."
        ) from error


def require_classifier(folder: Path) -> None:
    """Refuse what would load with a random head, or whose outputs are no probabilities of classes."""
    config = read_json(folder / "config.json")
    kinds = config.get("architectures") or []
    if kinds and not any("SequenceClassification" in kind for kind in kinds):
        raise EbmcalError(
            f"{folder} holds a {kinds[0]}, which has no classes yet. Finetune it first: "
            f"ebmcal.run(encoder={str(folder)!r}, …)"
        )
    if config.get("problem_type") in ("regression", "multi_label_classification"):
        raise EbmcalError(
            f"{folder} is a model for {config['problem_type']}; one label of several is what ebmcal judges."
        )


def longest_read(folder: Path, tokenizer: Any, classifier: EnergyClassifier) -> int:
    """Tokens of a text that a model reads: as it was trained, else what its tokenizer and positions allow."""
    card = read_json(folder / CARD_FILE) if (folder / CARD_FILE).exists() else {}
    limits = (tokenizer.model_max_length, longest_text(classifier.config) or MAX_LENGTH, MAX_LENGTH)
    return card.get("max_length", min(limits))
