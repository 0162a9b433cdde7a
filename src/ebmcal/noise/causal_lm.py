"""The noise LM P_N(x | x^m): a causal language model with three added marker tokens. Any architecture, any tokenizer.

`NoiseLm` turns texts into layouts (`masking`) and token ids back into texts. `lm_training` finetunes it, `sampler`
draws from it. On disk it is a transformers checkpoint plus `noise_lm.json` with its settings and perplexity.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from ebmcal.errors import EbmcalError
from ebmcal.modeling.pretrained import load_language_model, quiet
from ebmcal.noise.masking import MARKERS, Ids, Layout, Markers, find_mode
from ebmcal.noise.texts import TextPair
from ebmcal.storage import read_json, write_json

CARD = "noise_lm.json"


@dataclass(frozen=True)
class NoiseLm:
    """A language model, its tokenizer and how it writes noise. `label_names`: of an LM that reads the label first."""

    model: nn.Module
    tokenizer: Any
    markers: Markers
    mode: str
    mask_ratio: float
    max_length: int = 128
    label_names: tuple[str, ...] = ()

    def encode(self, text: TextPair) -> np.ndarray:
        """Token ids of a text, at most `max_length`; the sentences of a pair are joined by the separator."""
        first, second = ([] if t is None else self.tokenizer(t, add_special_tokens=False)["input_ids"] for t in text)
        if text[1] is None:
            return np.array(first[: self.max_length], dtype=np.int64)
        room = self.max_length - 1
        if len(first) + len(second) > room:  # the longer sentence is truncated first
            first = first[: max(room - len(second), room // 2)]
            second = second[: room - len(first)]
        return np.array([*first, self.markers.separator, *second], dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False).strip()

    def draw_mask(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Which tokens to mask: bool [n]."""
        return find_mode(self.mode).draw_mask(ids, self.mask_ratio, rng, self.markers.separator)

    def lay_out(self, ids: np.ndarray, masked: np.ndarray, label: int = -1) -> Layout:
        """Prompt and target of a masked text. A prompt starts with end-of-text, then the label if the LM reads one."""
        has_label = bool(self.label_names) and label >= 0
        intro = [self.markers.end, *(self._label_ids[label] if has_label else [])]
        return find_mode(self.mode).lay_out(ids, masked, self.markers, intro)

    @property
    def n_positions(self) -> int:
        """The most tokens that the model can read."""
        config = self.model.config
        return getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 1 << 30

    @cached_property
    def _label_ids(self) -> list[Ids]:
        return [self.tokenizer(f"{name}:\n", add_special_tokens=False)["input_ids"] for name in self.label_names]

    def save(self, directory: Path, card: dict[str, Any]) -> None:
        """Write the checkpoint, its tokenizer and the card into a directory."""
        with quiet():
            self.model.save_pretrained(directory)
            self.tokenizer.save_pretrained(directory)
        write_json(directory / CARD, card)

    @classmethod
    def load(cls, directory: Path) -> "NoiseLm":
        """Load what `save` wrote."""
        card = read_json(directory / CARD)
        try:
            with quiet():
                model = AutoModelForCausalLM.from_pretrained(directory, use_safetensors=True, dtype=torch.float32)
                tokenizer = AutoTokenizer.from_pretrained(directory)
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise EbmcalError(f"{directory} is not a usable noise LM: {reason} Delete it to train it again.") from error
        settings = (card["mode"], card["mask_ratio"], card["max_length"], tuple(card["label_names"]))
        return cls(model, tokenizer, add_markers(model, tokenizer), *settings)

    @classmethod
    def from_pretrained(cls, name: str, trust_remote_code: bool = False, **settings: Any) -> "NoiseLm":
        """A language model that has not been finetuned: `settings` are mode, mask_ratio, max_length, label_names."""
        model, tokenizer = load_language_model(name, trust_remote_code)
        return cls(model, tokenizer, add_markers(model, tokenizer), **settings)


def add_markers(model: nn.Module, tokenizer: Any) -> Markers:
    """Add the marker tokens if they are missing; each starts from the embedding of a similar text."""
    if tokenizer.eos_token_id is None:
        raise EbmcalError(
            "The language model has no end-of-text token, so its texts would not end. Set eos_token in its "
            "tokenizer_config.json, or use another model such as gpt2 or smollm2."
        )
    similar = {name: tokenizer(text, add_special_tokens=False)["input_ids"] for name, text in MARKERS.items()}
    new = [name for name in MARKERS if name not in tokenizer.get_vocab()]
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKERS)})
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            for name in new:
                layer.weight[tokenizer.convert_tokens_to_ids(name)] = layer.weight[similar[name]].mean(dim=0)
    mask, separator, write = (tokenizer.convert_tokens_to_ids(name) for name in MARKERS)
    return Markers(mask, separator, write, end=tokenizer.eos_token_id)
