"""Names of the hub: what is fetched is said first, and a hub that is out of reach is an error within seconds.

The hub's own client tries again for more than a minute, silently, before it says so.
"""

from collections.abc import Callable

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, is_offline_mode, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError


def nothing(line: str) -> None:
    """For those who want to be told nothing."""


def ask_hub(name: str, say: Callable[[str], None] = nothing) -> None:
    """Say what comes from where, and ask the hub once; nothing of both offline, or for what this machine has.

    Raises `ConnectionError` where no answer comes; one that refuses is left to those who fetch.
    """
    if is_offline_mode() or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    say(f"fetching {name} from {constants.ENDPOINT} (once; kept in {constants.HF_HUB_CACHE})")
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"))
    except HfHubHTTPError:
        pass
    except Exception as error:  # each transport has its own kinds
        why = str(error) or type(error).__name__
        raise ConnectionError(f"{constants.ENDPOINT} cannot be reached ({why}).") from error
