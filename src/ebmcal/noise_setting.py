"""The setting `noise`: which sources a run draws noise from, and in which shares. Read and spelt without torch.

    splice 0.8, far 0.2        infill:gpt2        splice, far:"other texts.csv" 0.1

A name stands before the colon, the language model, file or form behind it. `config` checks a run's setting with it;
`ebmcal.noise` makes the texts.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ebmcal.errors import EbmcalError, unknown_name

#: Choices whose tables need torch. A test keeps them equal to the tables.
MODE_NAMES = ("infill", "continue", "gaps", "plain", "half")
ONLINE_SOURCES = ("splice", "far", "mlm")
SPLICE_FORMS = ("same-label", "other-label", "middle", "halves", "several")


@dataclass(frozen=True)
class NoisePart:
    """A source of noise, the language model or file it takes ("" for none), and its share of the noise."""

    source: str
    of: str
    share: float

    @property
    def name(self) -> str:
        return f"{self.source}:{self.of}" if self.of else self.source

    @property
    def is_online(self) -> bool:
        """Whether its texts are written as they are needed; the others are made first and kept in a store."""
        return self.source in ONLINE_SOURCES


def parse_noise(text: str) -> tuple[NoisePart, ...]:
    """The sources that a `noise` setting names; shares that are not given divide what is left, all add up to 1.

    >>> [(part.name, part.share) for part in parse_noise("splice 0.8, infill:gpt2")]
    [('splice', 0.8), ('infill:gpt2', 0.2)]
    """
    entries = [_noise_entry(entry) for entry in _noise_entries(text)]
    if not entries:
        raise EbmcalError(f"noise names no source; it takes {', '.join((*ONLINE_SOURCES, *MODE_NAMES))}.")
    given = sum(share for _, _, share in entries if share)
    open_ = sum(share is None for _, _, share in entries)
    if given > 1 + 1e-6 or (open_ and given >= 1) or (not open_ and given < 1 - 1e-6):
        raise EbmcalError(f"The shares of noise {text!r} must add up to 1 and leave every source something.")
    rest = (1 - given) / max(1, open_)
    parts = tuple(NoisePart(source, of, round(rest if share is None else share, 9)) for source, of, share in entries)
    if len({part.name for part in parts}) < len(parts):
        raise EbmcalError(f"noise {text!r} names a source twice; give each once, with its share.")
    return parts


def spell_noise(parts: tuple[NoisePart, ...]) -> str:
    """The `noise` setting that names these sources: shares are left out where all are equal.

    >>> spell_noise(parse_noise("splice .80,far")), spell_noise(parse_noise("splice 0.5, far"))
    ('splice 0.8, far 0.2', 'splice, far')
    """
    equal = len({part.share for part in parts}) == 1
    names = [f'{part.source}:"{part.of}"' if re.search(r"[,\s]", part.of) else part.name for part in parts]
    return ", ".join(name if equal else f"{name} {part.share:.9g}" for name, part in zip(names, parts, strict=True))


def _noise_entries(text: str) -> list[str]:
    """The setting cut at its commas, but not inside quotes, nor where a file or folder of that name is there."""
    if text.count('"') % 2:
        raise EbmcalError(f"noise {text!r} has a quote that is not closed.")
    pieces = re.findall(r'(?:"[^"]*"|[^,"])+', text)
    entries: list[str] = []
    while pieces:
        length = next((n for n in range(len(pieces), 1, -1) if _names_a_file(",".join(pieces[:n]))), 1)
        entries.append(",".join(pieces[:length]))
        pieces = pieces[length:]
    return [entry.strip() for entry in entries if entry.strip()]


def _names_a_file(entry: str) -> bool:
    of = entry.strip().partition(":")[2]
    return any("," in name and Path(name).expanduser().exists() for name in (of, of.rpartition(" ")[0]))


def _noise_entry(text: str) -> tuple[str, str, float | None]:
    name, space, last = text.rpartition(" ")
    of = text.partition(":")[2]
    is_name = text.endswith('"') or (of and Path(of).expanduser().exists())  # a folder may be called "lm 2"
    try:
        share = float(last) if space and not is_name else None
    except ValueError:
        share = None
    if share is None:
        name = text
    if share is not None and not 0 < share <= 1:
        raise EbmcalError(
            f"A share of the noise is above 0 and at most 1; {text!r} came. A name that ends in a number goes in "
            "quotes."
        )
    source, _, of = name.strip().partition(":")
    of = of.strip('"')
    known = (*ONLINE_SOURCES, *MODE_NAMES)
    if source not in known:
        raise unknown_name("noise source", source, known)
    if source in MODE_NAMES and not of:
        raise EbmcalError(f"The noise source {source} needs a language model: {source}:gpt2, for example.")
    if source == "mlm" and not of:
        raise EbmcalError(
            "The noise source mlm needs an encoder with its masked-LM head: mlm:roberta-base, for example."
        )
    if source == "splice" and of and of not in SPLICE_FORMS:
        raise unknown_name("form of splice", of, SPLICE_FORMS)
    return source, of, share
