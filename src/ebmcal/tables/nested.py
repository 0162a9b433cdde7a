"""Nested dictionaries of counts and settings as tables: what `metrics.json` holds in free form."""

from collections.abc import Mapping
from typing import Any

from ebmcal.tables.table import Column, Entry, Row, Table


def nested_tables(data: Mapping[str, Any], title: str = "") -> list[Table]:
    """One table of the plain entries, then one for each inner dictionary.

    A dictionary of dictionaries (counts of each split) becomes a matrix, its inner keys down and its outer across.

    >>> [t.title for t in nested_tables({"rows": 3, "splits": {"train": {"rows": 2}, "test": {"rows": 1}}}, "Data")]
    ['Data', 'Splits']
    """
    inner = {key: value for key, value in data.items() if isinstance(value, Mapping) and value}
    plain = {key: value for key, value in data.items() if key not in inner}
    tables = [_facts(plain, title)] if plain else []
    for key, value in inner.items():
        is_matrix = len(value) > 1 and all(isinstance(part, Mapping) for part in value.values())
        tables.append((_matrix if is_matrix else _facts)(value, readable(key).capitalize()))
    return tables


def record_table(records: Mapping[str, Mapping[str, Any]], title: str, first: str) -> Table:
    """A row for each record, a column for each key; `first` heads the names.

    >>> [c.title for c in record_table({"a-seed1": {"noise_rounds": 2}}, "Training", "Model").columns]
    ['Model', 'noise rounds']
    """
    flat = {name: flatten(record) for name, record in records.items()}
    keys = list(dict.fromkeys(key for record in flat.values() for key in record))
    columns = (Column("name", first), *(Column(key, key, digits=None) for key in keys))
    rows = tuple(Row((Entry(name), *(_entry(record.get(key)) for key in keys))) for name, record in flat.items())
    return Table(title, columns, rows)


def readable(key: str) -> str:
    """A key as words.

    >>> readable("also_in_train")
    'also in train'
    """
    return str(key).replace("_", " ")


def flatten(data: Mapping[str, Any], before: str = "", as_words: bool = True) -> dict[str, Any]:
    """Inner keys joined to outer ones; keys under "…_counts" are names of the user's and stay as they are.

    >>> flatten({"a_b": {"c": 1}, "label_counts": {"not_so": 2}, "d": [1, 2]})
    {'a b: c': 1, 'label counts: not_so': 2, 'd': [1, 2]}
    """
    flat: dict[str, Any] = {}
    for key, value in data.items():
        shown = readable(key) if as_words else str(key)
        name = f"{before}: {shown}" if before else shown
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, name, as_words=not str(key).endswith("counts"))
        else:
            flat[name] = value
    return flat


def _facts(data: Mapping[str, Any], title: str) -> Table:
    rows = [Row((Entry(name), _entry(value))) for name, value in flatten(data).items()]
    return Table(title, (Column("what", "What"), Column("value", "Value", digits=None)), _known(rows))


def _matrix(data: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    flat = {name: flatten(part) for name, part in data.items()}
    names = list(dict.fromkeys(key for part in flat.values() for key in part))
    columns = (Column("what", "What"), *(Column(str(name), readable(name), digits=None) for name in flat))
    rows = [Row((Entry(key), *(_entry(part.get(key)) for part in flat.values()))) for key in names]
    return Table(title, columns, _known(rows))


def _known(rows: list[Row]) -> tuple[Row, ...]:
    """Without the rows that hold nothing but their name."""
    return tuple(row for row in rows if any(entry.value is not None for entry in row.entries[1:]))


def _entry(value: Any) -> Entry:
    is_plain = isinstance(value, (int, float, str)) and not isinstance(value, bool)
    return Entry(value if is_plain else words(value))


def words(value: Any) -> str | None:
    """Anything JSON holds, as a phrase; None for what is empty.

    >>> words([{"file": "a.csv", "rows": 3}, True]), words([])
    ('file a.csv, rows 3; yes', None)
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{readable(key)} {words(part)}" for key, part in value.items()) or None
    if isinstance(value, (list, tuple)):
        between = "; " if any(isinstance(part, Mapping) for part in value) else ", "
        return between.join(str(words(part)) for part in value) or None
    return None if value is None else str(value)
