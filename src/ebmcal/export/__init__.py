"""A model for use elsewhere: `push_to_hub` to the Hugging Face hub, `export_onnx` to a file that runs without torch.

Nothing else in ebmcal sends data anywhere. A new repository is private unless requested otherwise: a model can be made
public later, but publication cannot be undone.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebmcal.errors import EbmcalError, require_extra
from ebmcal.run_dir import read_card, recommended_model
from ebmcal.storage import PathLike, read_json

if TYPE_CHECKING:
    from ebmcal.export.onnx import Export, export_onnx

__all__ = ["Export", "export_onnx", "files_to_push", "push_to_hub"]

MODEL_CARD = "README.md"

#: Files of a model directory that are sent; weights in formats that can run code when loaded are not.
SUFFIXES = (".json", ".jsonl", ".safetensors", ".npz", ".txt", ".model", ".vocab", ".jinja", ".svg", ".png")


def __getattr__(name: str) -> Any:  # torch is imported on first use
    if name not in ("Export", "export_onnx"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("ebmcal.export.onnx"), name)


def push_to_hub(
    model: PathLike, name: str, *, private: bool = True, token: str | None = None, endpoint: str | None = None
) -> str:
    """Send a model directory, or the recommended model of a run, to USER/NAME on the hub; returns its address.

    The token of `hf auth login` is used unless one is given. The model card is written first, unless it was edited.

        ebmcal.push_to_hub("runs/a", "me/film-reviews")
    """
    from ebmcal.reports.model_card import write_model_card

    check_name(name)
    directory = files_to_push(model)[0].parent  # raises before a card is written
    write_model_card(directory)
    files = [path.name for path in files_to_push(directory)]
    from huggingface_hub import HfApi

    hub = HfApi(endpoint=endpoint, token=token, library_name="ebmcal")
    try:
        place = hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=place.repo_id, folder_path=directory, allow_patterns=files, commit_message="Model by ebmcal"
        )
    except Exception as error:  # of the network, of HTTP, of its own checks: they have no common class
        reason = " ".join(str(error).split())[:300]
        raise EbmcalError(
            f"{name} could not be pushed to the hub: {reason} Log in with `hf auth login` (or set HF_TOKEN) and use a "
            "name that you may write to."
        ) from error
    return str(place)


def check_name(name: str) -> None:
    """Raise unless this is a valid repository name."""
    require_extra("train", "huggingface_hub")
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
        is_valid = name.count("/") == 1
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise EbmcalError(f"{name!r} is not a repository name. Expected USER/NAME, for example me/film-reviews.")


def files_to_push(model: PathLike) -> list[Path]:
    """The files of a model directory, or of the recommended model of a run, that `push_to_hub` sends, by name."""
    directory = Path(model).expanduser()
    if (directory / "config.yaml").is_file():
        directory = recommended_model(directory)
    if not (directory / "config.json").is_file() or not list(directory.glob("*.safetensors")):
        raise EbmcalError(f"{directory} has no config.json with *.safetensors weights. Expected a model directory.")
    if (energy := read_card(directory).get("energy")) in ("sngp", "laplace"):
        raise EbmcalError(
            f"A model of {energy} corrects its logits with more than the weights of the checkpoint: on the hub, "
            "transformers would give other probabilities. Push a model of another method."
        )
    # Python files that the checkpoint needs, as its config lists them: {"AutoConfig": "module.Class"}.
    code = (read_json(directory / "config.json").get("auto_map") or {}).values()
    named = {MODEL_CARD, *(f"{name.split('.')[0]}.py" for name in code if isinstance(name, str))}
    return [p for p in sorted(directory.iterdir()) if p.is_file() and (p.suffix in SUFFIXES or p.name in named)]
