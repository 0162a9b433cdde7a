"""`push_to_hub`: a model directory with its calibrator, abstention rule and card on the Hugging Face hub.

Nothing else in ebmcal sends data anywhere. A new repository is private unless requested otherwise: a model can be made
public later, but publication cannot be undone.
"""

import re
from pathlib import Path

from ebmcal.errors import EbmcalError, require_extra
from ebmcal.run_dir import read_card, recommended_model
from ebmcal.storage import PathLike, read_json

CARD = "README.md"

#: Files of a model directory that are sent; weights in formats that can run code when loaded are not.
SUFFIXES = (".json", ".jsonl", ".safetensors", ".npz", ".txt", ".model", ".vocab", ".jinja", ".svg", ".png")

#: The hub's rule: letters, digits and . _ - in between, at most 96 characters.
NAME = re.compile(
    r"(?=.{3,96}$)(?!.*(--|\.\.))[A-Za-z0-9_]([\w.-]*[A-Za-z0-9_])?/[A-Za-z0-9_]([\w.-]*[A-Za-z0-9_])?", re.ASCII
)


def push_to_hub(
    model: PathLike, name: str, *, private: bool = True, token: str | None = None, endpoint: str | None = None
) -> str:
    """Send a model directory, or the recommended model of a run, to USER/NAME on the hub; returns its address.

    The token of `hf auth login` is used unless one is given. The model card is written first, unless it was edited.

        ebmcal.push_to_hub("runs/a", "me/film-reviews")
    """
    require_extra("train", "huggingface_hub")
    from ebmcal.reports.model_card import write_model_card

    check_name(name)
    directory = files_to_push(model)[0].parent  # raises before a card is written
    write_model_card(directory)
    files = files_to_push(directory)
    from huggingface_hub import HfApi

    hub = HfApi(endpoint=endpoint, token=token, library_name="ebmcal")
    try:
        place = hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=place.repo_id, folder_path=directory, allow_patterns=[path.name for path in files],
            commit_message="Model by ebmcal",
        )  # fmt: skip
    except Exception as error:  # of the network, of HTTP, of its own checks: they have no common class
        reason = " ".join(str(error).split())[:300]
        raise EbmcalError(
            f"{name} could not be pushed to the hub: {reason} Log in with `hf auth login` (or set HF_TOKEN) and use a "
            "name that you may write to."
        ) from error
    return str(place)


def check_name(name: str) -> None:
    """Raise unless this is a valid repository name.

    >>> check_name("me/film-reviews")
    """
    if not NAME.fullmatch(name):
        raise EbmcalError(
            f"{name!r} is not a repository name. Expected USER/NAME, for example me/film-reviews: letters, digits and "
            ". _ - in between."
        )


def files_to_push(model: PathLike) -> list[Path]:
    """The files of a model directory, or of the recommended model of a run, that `push_to_hub` sends, by name."""
    directory = Path(model).expanduser()
    if (directory / "config.yaml").is_file():
        directory = recommended_model(directory)
    if not (directory / "config.json").is_file() or not list(directory.glob("*.safetensors")):
        raise EbmcalError(f"{directory} has no config.json with *.safetensors weights. Expected a model directory.")
    if read_card(directory).get("energy") == "sngp":
        raise EbmcalError(
            "The last layer of an sngp model is a Gaussian process, which transformers does not know: on the hub it "
            "would give wrong probabilities. Push a model of another method."
        )
    named = {CARD, *_model_code(directory)}
    return [p for p in sorted(directory.iterdir()) if p.is_file() and (p.suffix in SUFFIXES or p.name in named)]


def _model_code(directory: Path) -> set[str]:
    """Python files that the checkpoint needs, as its config lists them: {"AutoConfig": "module.Class"}."""
    listed = read_json(directory / "config.json").get("auto_map") or {}
    return {f"{name.split('.')[0]}.py" for name in listed.values() if isinstance(name, str)}
