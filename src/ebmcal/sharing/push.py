"""`push`: a model folder to the Hugging Face hub, with its calibrator, its rule and its card.

What `ebmcal push` does. It is the only part of ebmcal that sends anything anywhere, and only when it is called. A new
repository is private unless told otherwise: a model can be made public later, but not be taken back.
"""

import re
from pathlib import Path

from ebmcal.calibrators.in_model import model_folder
from ebmcal.errors import EbmcalError, require_extra
from ebmcal.report.model_card import CARD, CARD_FILES, may_write, write_card
from ebmcal.runfolder import CARD_FILE
from ebmcal.storage.atomic import read_json
from ebmcal.storage.sealing import require_whole

#: What makes a model folder; weights in formats that run code when they are read are left behind.
SENT = (".json", ".jsonl", ".safetensors", ".txt", ".model", ".vocab", ".jinja")

#: As the hub has it: letters, digits and . _ - in between; 96 characters at most.
NAME = re.compile(
    r"(?=.{3,96}$)(?!.*(--|\.\.))[A-Za-z0-9_]([\w.-]*[A-Za-z0-9_])?/[A-Za-z0-9_]([\w.-]*[A-Za-z0-9_])?", re.ASCII
)


def push(
    model: str | Path, name: str, *, private: bool = True, token: str | None = None, endpoint: str | None = None
) -> str:
    """Send a model folder to USER/NAME on the hub; returns its address.

    The token is that of `hf auth login` unless it is given. The card is written first, unless it was edited.

        ebmcal.push("runs/a/checkpoints/hidden-seed1/model", "me/film-reviews")
    """
    require_extra("train", "huggingface_hub")
    check_name(name)
    folder = Path(model).expanduser()
    sent_files(folder)  # refuses what cannot be sent, before a card is written
    write_card(folder)
    files = sent_files(folder)
    from huggingface_hub import HfApi

    hub = HfApi(endpoint=endpoint, token=token, library_name="ebmcal")
    try:
        place = hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=place.repo_id, folder_path=folder, allow_patterns=[path.name for path in files],
            commit_message="Model by ebmcal",
        )  # fmt: skip
    except Exception as error:  # of the network, of HTTP, of its own checks: it has no common one
        why = " ".join(str(error).split())[:300]
        raise EbmcalError(
            f"{name} could not be sent to the hub, which said: {why} Log in with `hf auth login` (or set HF_TOKEN) and "
            "give a name that you may write to."
        ) from error
    return str(place)


def check_name(name: str) -> None:
    """Refuse what is no name on the hub.

    >>> check_name("me/film-reviews")
    """
    if not NAME.fullmatch(name):
        raise EbmcalError(
            f"{name!r} is no name on the hub; USER/NAME is, as in me/film-reviews: letters, digits, . _ - in between."
        )


def cards_to_come(model: str | Path) -> list[str]:
    """The files of the model card that `push` would write first, or write anew."""
    folder = Path(model).expanduser()
    return [f"{CARD}, the model card, which is written first"] if may_write(folder) else []


def sent_files(model: str | Path) -> list[Path]:
    """The files of a model folder that are sent, by name; refuses what is damaged, no model, or no use there."""
    folder = model_folder(Path(model).expanduser())
    require_whole(folder)
    if (folder / CARD_FILE).exists() and read_json(folder / CARD_FILE).get("energy") == "sngp":
        raise EbmcalError(
            "The last layer of an sngp model is a Gaussian process, which transformers does not know: on the hub it "
            "would answer with wrong probabilities. Send a model of another method."
        )
    return [p for p in sorted(folder.iterdir()) if p.is_file() and (p.suffix in SENT or p.name in CARD_FILES)]
