"""Where things that runs share are kept."""

import os
from pathlib import Path


def cache_dir(given: Path | None = None) -> Path:
    """The folder that runs share: given, $EBMCAL_CACHE, or ebmcal in the user's cache."""
    if given:
        return Path(given).expanduser()
    if os.environ.get("EBMCAL_CACHE"):
        return Path(os.environ["EBMCAL_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "ebmcal"
