"""Sources → splits of texts with an audit; no torch.

`load_data` is the entry: `sources` says which files, `reading` and `columnar` read them, `store` keeps them as
memory-mapped Arrow, `labels` and `splits` make the splits, `audit` counts what was odd.
"""

from ebmcal.data.audit import audit_sentences
from ebmcal.data.load import TaskData, load_data, load_texts
from ebmcal.data.movie_reviews import imdb_reviews
from ebmcal.data.sources import DataSource
from ebmcal.data.texts import Texts

__all__ = ["DataSource", "TaskData", "Texts", "audit_sentences", "imdb_reviews", "load_data", "load_texts"]
