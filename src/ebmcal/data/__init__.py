"""Sources → splits of texts with an audit; no torch.

`load_data` is the entry: `sources` says which files (`folders`, `hub`, `builtin`), `delimited` and `columnar` read them
value by value (`values`), `store` keeps them as memory-mapped Arrow, `labels` and `splits` make the splits, `audit`
counts what was odd. `in_memory` turns objects into files.
"""

from ebmcal.data.audit import audit_sentences, label_sentence
from ebmcal.data.builtin import imdb_reviews
from ebmcal.data.load import TaskData, load_data, load_other_texts, load_texts
from ebmcal.data.sources import DataSource
from ebmcal.data.texts import Texts

__all__ = [
    "DataSource",
    "TaskData",
    "Texts",
    "audit_sentences",
    "imdb_reviews",
    "label_sentence",
    "load_data",
    "load_other_texts",
    "load_texts",
]
