"""Untrained noise LMs, texts and a reporter that records messages, for the tests of noise."""

import torch
from datasets import Dataset

from ebmcal.data.splits import Texts
from ebmcal.noise.causal_lm import Markers, NoiseLm, add_markers
from ebmcal.progress import Reporter
from tiny_models import SENTENCES, make_language_model, train_tokenizer

#: Markers after a vocabulary of 100 tokens.
MARKERS = Markers(mask=100, separator=101, write=102, end=103)


class Messages(Reporter):
    """Records messages."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def info(self, text):
        self.lines.append(text)


def make_texts(texts=SENTENCES, labels=None):
    """`Texts` of strings or pairs."""
    is_pair = not isinstance(texts[0], str)
    columns = {"text": [t[0] if is_pair else t for t in texts]}
    columns |= {"text_pair": [t[1] for t in texts]} if is_pair else {}
    return Texts(Dataset.from_dict(columns | ({} if labels is None else {"label": list(labels)})))


def make_noise_lm(kind="llama", mode="infill", mask_ratio=0.4, **changes):
    """An untrained noise LM with a byte-level vocabulary of `SENTENCES`."""
    tokenizer = train_tokenizer()
    model = make_language_model(kind, vocab_size=len(tokenizer))
    torch.manual_seed(1)
    return NoiseLm(model, tokenizer, add_markers(model, tokenizer), mode, mask_ratio, **changes)


def ending_lm(mode="infill", end_logit="max", **changes):
    """A noise LM that often ends a text; `end_logit` -1e9: it never does. Untrained ones hardly ever do."""
    lm = make_noise_lm("llama", mode=mode, max_length=24, **changes)
    inner = lm.model.forward

    def forward(**kwargs):
        out = inner(**kwargs)
        last = out.logits[:, -1]
        last[:, lm.markers.end] = last.max(dim=-1).values if end_logit == "max" else end_logit
        return out

    lm.model.forward = forward
    return lm
