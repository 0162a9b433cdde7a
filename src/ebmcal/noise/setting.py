"""The `noise` setting: which sources the noise is drawn from and in which shares. No torch.

    splice 0.8, unrelated 0.2        infill:gpt2        splice, unrelated:"other texts.csv" 0.1

The part after the colon is the language model, masked LM or file that a source needs.
"""

import re
from dataclasses import dataclass

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.training import recipe

#: Modes of the causal noise LM, see `ebmcal.noise.causal_lm`. Its texts are generated first and stored.
LM_MODES = ("infill", "continue", "plain", "half")

#: Sources that write a new text for each draw.
ONLINE_SOURCES = ("splice", "unrelated", "mlm")

SOURCES = (*ONLINE_SOURCES, *LM_MODES)


@dataclass(frozen=True)
class NoisePart:
    """A source of noise, the model or file it uses ("" for none), and its share of the noise."""

    source: str
    argument: str
    share: float

    @property
    def name(self) -> str:
        return f"{self.source}:{self.argument}" if self.argument else self.source

    @property
    def is_online(self) -> bool:
        """Whether texts are written when they are drawn; other sources generate and store them first."""
        return self.source in ONLINE_SOURCES


@dataclass(frozen=True)
class NoiseConfig:
    """Everything the noise depends on besides the data; `RunConfig` checks the values.

    `lm_steps` None trains the noise LM until its held-out loss stops falling. `samples` limits the number of stored
    texts (None: as many as a training draws, so that none is used twice).
    """

    noise: str = recipe.NOISE
    noise_ratio: int = recipe.NOISE_RATIO
    mask_ratio: float = recipe.MASK_RATIO
    top_k: int = recipe.TOP_K
    lm_steps: int | None = None
    lm_batch_size: int = recipe.LM_BATCH_SIZE
    lm_learning_rate: float = recipe.LM_LEARNING_RATE
    samples: int | None = None
    samples_per_mask: int = 4
    condition: str = "none"  # what the LM reads before a text: nothing, its "own" label, or an "other" one
    seed: int = 0
    max_length: int = recipe.MAX_LENGTH
    precision: str = "auto"
    trust_remote_code: bool = False

    @property
    def parts(self) -> tuple[NoisePart, ...]:
        return parse_noise(self.noise)


def parse_noise(text: str) -> tuple[NoisePart, ...]:
    """The sources named in a `noise` setting. Shares that are not given divide the rest equally; the sum is 1.

    >>> [(part.name, part.share) for part in parse_noise("splice 0.8, infill:gpt2")]
    [('splice', 0.8), ('infill:gpt2', 0.2)]
    """
    if text.count('"') % 2:
        raise EbmcalError(f"noise {text!r} has an unclosed quote.")
    pieces = re.findall(r'(?:"[^"]*"|[^,"])+', text)  # split at commas outside quotes
    entries = [_parse_entry(piece.strip()) for piece in pieces if piece.strip()]
    if not entries:
        raise EbmcalError(f"noise names no source. Available: {', '.join(SOURCES)}.")
    given = sum(share for *_, share in entries if share)
    n_open = sum(share is None for *_, share in entries)
    if given > 1 + 1e-6 or (n_open and given >= 1) or (not n_open and given < 1 - 1e-6):
        raise EbmcalError(f"The shares of noise {text!r} must add up to 1, and every source needs a share above 0.")
    rest = (1 - given) / max(1, n_open)
    parts = tuple(NoisePart(source, of, round(rest if share is None else share, 9)) for source, of, share in entries)
    if len({part.name for part in parts}) < len(parts):
        raise EbmcalError(f"noise {text!r} names a source twice. Name each source once, with its total share.")
    return parts


def format_noise(parts: tuple[NoisePart, ...]) -> str:
    """The canonical `noise` setting for these sources; equal shares are left out.

    >>> format_noise(parse_noise("splice .80,unrelated")), format_noise(parse_noise("splice 0.5, unrelated"))
    ('splice 0.8, unrelated 0.2', 'splice, unrelated')
    """
    are_equal = len({part.share for part in parts}) == 1
    names = [f'{p.source}:"{p.argument}"' if re.search(r"[,\s]", p.argument) else p.name for p in parts]
    return ", ".join(n if are_equal else f"{n} {p.share:.9g}" for n, p in zip(names, parts, strict=True))


def _parse_entry(text: str) -> tuple[str, str, float | None]:
    name, space, last = text.rpartition(" ")
    try:
        share = float(last) if space and not text.endswith('"') else None
    except ValueError:
        share = None
    if share is not None and not 0 < share <= 1:
        raise EbmcalError(
            f"noise: expected a share above 0 and at most 1, got {text!r}. Quote a name that ends in a number."
        )
    source, _, argument = (text if share is None else name).strip().partition(":")
    argument = argument.strip('"')
    if source not in SOURCES:
        raise unknown_name("noise source", source, SOURCES)
    if source in LM_MODES and not argument:
        raise EbmcalError(f"The noise source {source} needs a language model, for example {source}:gpt2.")
    if source == "mlm" and not argument:
        raise EbmcalError("The noise source mlm needs an encoder with a masked-LM head, for example mlm:roberta-base.")
    if source == "splice" and argument:
        raise EbmcalError(f"The noise source splice takes no argument, got {argument!r}.")
    return source, argument, share
