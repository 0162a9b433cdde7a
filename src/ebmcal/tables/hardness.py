"""How hard the noise of a run was: each source beside data, and how often each method told it from data."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ebmcal.tables.table import Column, Entry, Table, TableRow

#: Told apart on held-out texts more often than this is too easy to teach much, less often too hard.
TOO_EASY, TOO_HARD = 0.97, 0.6

COLUMNS = (
    Column("source", "Source"),
    Column("share", "Share", digits=2),
    Column("words", "Words (of data)"),
    Column("unknown", "Unknown words (of data)"),
    Column("identical", "Identical"),
    Column("kept", "Kept words"),
    Column("thrown_away", "Thrown away"),
    Column("method", "Method"),
    Column("probe", "Probe", digits=2),
    Column("training", "Told apart, training", digits=2),
    Column("held_out", "Told apart, held-out", digits=2),
    Column("used", "Used", digits=1),
)
NOTE = (
    "Told apart: how often a data text has a lower energy than a noise text, at the end of training and for texts that "
    "no training saw; the gap was memorised. Probe: the same by a linear probe of the untouched encoder. "
    "Kept words: how many of those that a language model read and was to keep it wrote again."
)


@dataclass(frozen=True)
class ToldApart:
    """How often a method told a source from data, averaged over seeds."""

    source: str
    method: str
    training: float | None
    held_out: float | None
    used: float


def told_apart(document: Mapping[str, Any]) -> list[ToldApart]:
    """Each source and method of a run."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell, facts in (document.get("training") or {}).items():
        for source in facts.get("told_apart_by_source") or ():
            found.setdefault((source, cell.rpartition("-seed")[0]), []).append(facts)
    return [
        ToldApart(
            source,
            method,
            _mean(facts["told_apart_by_source"].get(source) for facts in seeds),
            _mean((facts.get("told_apart_held_out") or {}).get(source) for facts in seeds),
            max(facts.get("noise_rounds") or 0 for facts in seeds),
        )
        for (source, method), seeds in found.items()
    ]


def hardness_table(document: Mapping[str, Any]) -> Table:
    """A row for each source and method; the facts of a source stand in its first row."""
    sources = document.get("noise")
    known = sources.items() if isinstance(sources, Mapping) else ()
    described = [(name, facts) for name, facts in known if isinstance(facts, Mapping) and "probe" in facts]
    if not described:  # no noise, or a document of before sources had names
        return Table("Noise", COLUMNS)
    rows = [row for name, facts in described for row in _rows(name, facts, told_apart(document))]
    return Table("Noise", COLUMNS, tuple(rows), (NOTE, *_verdicts(told_apart(document))))


def _rows(name: str, facts: Mapping[str, Any], found: list[ToldApart]) -> Iterator[TableRow]:
    about: tuple[Entry, ...] = (
        Entry(name),
        Entry(facts.get("share")),
        Entry(f"{facts.get('words')} ({facts.get('words_of_data')})"),
        Entry(f"{facts.get('unknown_words', 0):.1%} ({facts.get('unknown_words_of_data', 0):.1%})"),
        Entry(f"{facts.get('identical', 0):.1%}"),
        Entry("" if facts.get("kept") is None else f"{facts['kept']:.0%}"),
        Entry(_thrown_away(facts.get("thrown_away"))),
    )
    probe = Entry(facts.get("probe"))
    for told in [t for t in found if t.source == name] or [ToldApart(name, "", None, None, 0)]:
        figures = (Entry(told.method), probe, Entry(told.training), Entry(told.held_out), Entry(told.used))
        yield TableRow((*about, *figures), section=name)
        about, probe = (Entry(""),) * len(about), Entry("")


def _thrown_away(counts: Mapping[str, int] | None) -> str:
    return ", ".join(f"{n:,} {why}" for why, n in (counts or {}).items()) or "none"


def _verdicts(found: list[ToldApart]) -> Iterator[str]:
    for told in found:
        if told.held_out is not None and told.held_out > TOO_EASY:
            easy = f"{told.source} is too easy for {told.method} (told apart {told.held_out:.0%})"
            yield f"{easy}: {_teaches(told.source)}"
        if told.held_out is not None and told.held_out < TOO_HARD:
            learned = (
                f"; {told.training:.0%} in training, much of it by heart" if (told.training or 0) > TOO_HARD else ""
            )
            yield (
                f"{told.source} is hardly told from held-out data by {told.method} ({told.held_out:.0%}{learned}): "
                "too hard for its energy to know other texts by; it may calibrate all the same."
            )
        if told.used > 2:
            yield f"Each text of {told.source} was used {told.used:.1f} times by {told.method}: it may be memorised."


def _teaches(source: str) -> str:
    if source.startswith("far"):
        return "good for a share of the noise, so that other texts are known; alone it teaches little."
    return "it teaches little."


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
