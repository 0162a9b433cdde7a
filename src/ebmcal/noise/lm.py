"""The noise language model: any causal LM finetuned to write texts from their masked versions.

    loss = -log P_N(x | x^m), on the text only, re-masked every time a text comes round

`ebmcal.noise.fitting` trains it over a plan of (text, mask) that is a pure function of the seed, and leaves a folder
with weights, tokenizer and `noise_lm.json`: settings, perplexity on held-out texts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.activations import NewGELUActivation

from ebmcal.errors import EbmcalError
from ebmcal.models.loading import quiet
from ebmcal.models.packing import ATTENTION, pack, pad, use_packing
from ebmcal.models.scoring import micro_batches
from ebmcal.noise.masking import Ids, Markers, Piece, draw_words, find_mode, to_sequence
from ebmcal.storage.atomic import read_json
from ebmcal.training.microbatch import Batch, MicroBatchTrainer
from ebmcal.training.plan import Shuffled

CARD = "noise_lm.json"
FORMAT = 3  # 1 had an end mark of its own, 2 no end of text before every text

#: Held-out texts, at most, that say when the LM has learned enough.
HELD_OUT = 64

#: Causal architectures whose attention goes through the interface that `packing` plugs into.
PACKED_LANGUAGE_MODELS = {"gpt2", "llama", "qwen2", "mistral", "gpt_neox"}

Row = tuple[str, str | None]


@dataclass(frozen=True)
class NoiseLm:
    """A language model with the marks it was taught."""

    model: nn.Module
    tokenizer: Any
    markers: Markers
    mode: str
    mask_ratio: float
    max_length: int = 128
    label_names: tuple[str, ...] = ()  # of an LM that reads the label before the text

    def __post_init__(self) -> None:
        fuse_activations(self.model)

    def encode(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Token ids of texts, a pair joined by the separator, cut to the length limit."""
        return [self._encode(row) for row in rows]

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False).strip()

    def draw_mask(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        mode = find_mode(self.mode)
        if mode.whole_words and len(ids):
            return draw_words(mode, ids, self._begins_word[ids], self.mask_ratio, rng, self.markers)
        return mode.draw(ids, self.mask_ratio, rng, self.markers)

    def lay_out(self, ids: np.ndarray, masked: np.ndarray, label: int = -1) -> list[Piece]:
        """The layout of a masked text, behind an end of text, as texts stood in what the LM learned from.

        With a label, an LM that reads labels reads its name first.
        """
        mode = find_mode(self.mode)
        first, *others = mode.lay_out(ids, masked, self.markers, mode.lookahead)
        told = self._label_ids[label] if self.label_names and label >= 0 else []
        return [replace(first, before=[self.markers.end, *told]), *others]

    @property
    def positions(self) -> int:
        """Tokens the model can read at most, of which a text with its masked version may need more."""
        config = self.model.config
        return getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 1 << 30

    @cached_property
    def _label_ids(self) -> list[Ids]:
        return [self.tokenizer(f"{name}:\n", add_special_tokens=False)["input_ids"] for name in self.label_names]

    @cached_property
    def _begins_word(self) -> np.ndarray:
        """Which tokens of the vocabulary begin a word: [V] bool."""
        tokens = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        spaced = any(t.startswith(("Ġ", "▁")) for t in tokens)  # byte-level BPE and sentencepiece mark the space
        return np.array([t.startswith(("Ġ", "▁")) if spaced else not t.startswith("##") for t in tokens])

    def _encode(self, row: Row) -> np.ndarray:
        first, second = ([] if t is None else self.tokenizer(t, add_special_tokens=False)["input_ids"] for t in row)
        if row[1] is None:
            return np.array(first[: self.max_length], dtype=np.int64)
        room = self.max_length - 1
        if len(first) + len(second) > room:  # the longer sentence gives way first
            keep = max(room - len(second), room // 2)
            first = first[:keep]
            second = second[: room - len(first)]
        return np.array([*first, self.markers.separator, *second], dtype=np.int64)

    @classmethod
    def load(cls, folder: Path) -> "NoiseLm":
        """What `ebmcal.noise.fitting` wrote."""
        card = read_json(folder / CARD)
        if card.get("format") != FORMAT:
            raise EbmcalError(
                f"The noise LM {folder} was made by another version (format {card.get('format', 1)}; this one reads "
                f"{FORMAT}), in which texts had other marks around them. Make it again with: ebmcal noise fit"
            )
        try:
            with quiet():
                model = AutoModelForCausalLM.from_pretrained(
                    folder, use_safetensors=True, dtype=torch.float32, trust_remote_code=False
                )
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:
            raise EbmcalError(f"{folder} is not a usable noise LM: {' '.join(str(error).split())[:300]}") from error
        markers, names = add_markers(model, tokenizer), tuple(card["label_names"])
        return cls(model, tokenizer, markers, card["mode"], card["mask_ratio"], card["max_length"], names)


def fuse_activations(model: nn.Module) -> None:
    """Put torch's GELU in the place of GPT-2's, which is the same function written out in eight operations."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))


def add_markers(model: nn.Module, tokenizer: Any) -> Markers:
    """Add the marks to the vocabulary where they are missing, each beginning as what it is nearest to.

    A text ends with the LM's own end of text, which it knows how to write.
    """
    if tokenizer.eos_token_id is None:
        raise EbmcalError(
            "The language model has no end-of-text token, so it cannot say where a text ends. Set eos_token in its "
            "tokenizer_config.json, or use another model, such as gpt2 or smollm2."
        )
    near = {name: tokenizer(text, add_special_tokens=False)["input_ids"] for name, text in Markers.NEAR.items()}
    new = [name for name in near if name not in tokenizer.get_vocab()]
    tokenizer.add_special_tokens({"additional_special_tokens": list(near)})
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            for name in new:
                layer.weight[tokenizer.convert_tokens_to_ids(name)] = layer.weight[near[name]].mean(dim=0)
    mask, separator, write = (tokenizer.convert_tokens_to_ids(name) for name in near)
    return Markers(mask, separator, write, end=tokenizer.eos_token_id)


class MaskedTexts(Dataset):
    """Item p: the sequence and loss mask of the text and the mask that stand at position p of the training."""

    def __init__(
        self, lm: NoiseLm, texts: Sequence[np.ndarray], n_positions: int, seed: int, labels: np.ndarray | None = None
    ) -> None:
        self.lm, self.texts, self.n_positions, self.seed = lm, texts, n_positions, seed
        self.labels = np.full(len(texts), -1) if labels is None else labels  # [n], told to an LM that reads them
        self._order = Shuffled(len(texts), seed)

    def __len__(self) -> int:
        return self.n_positions

    def __getitem__(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        row = self._order[position]
        masked = self.lm.draw_mask(self.texts[row], np.random.default_rng([self.seed, 7, position]))
        pieces = self.lm.lay_out(self.texts[row], masked, int(self.labels[row]))
        sequence, learn = to_sequence(pieces, self.lm.markers)
        return sequence[: self.lm.positions], learn[: self.lm.positions]


def collate(items: list[tuple[np.ndarray, np.ndarray]]) -> Batch:
    ids, learn = zip(*items, strict=True)
    return {"ids": list(ids), "learn": list(learn)}


def token_losses(model: nn.Module, ids: Sequence[np.ndarray], learn: Sequence[np.ndarray]) -> Tensor:
    """-log P of every token in `learn` (all but the first of a text), texts sorted by length: [m].

    `model` may be wrapped for several processes. Without padding, logits are computed only where there is a loss.
    """
    batch, device = pack(ids), next(model.parameters()).device
    wanted = np.concatenate(learn)
    wanted[batch.starts] = False  # nothing stands before the first token
    where = torch.from_numpy(np.flatnonzero(wanted))
    if _packs(model):
        inputs = {
            "input_ids": batch.input_ids[None],
            "position_ids": batch.positions()[None],
            "logits_to_keep": where - 1,
        }
        out = model(**{k: v.to(device) for k, v in inputs.items()}, groups=batch.groups, use_cache=False)
        logits = out.logits[0]  # [m, V]
    else:
        padded, mask, _ = pad(batch, 0)
        out = model(input_ids=padded.to(device), attention_mask=mask.to(device), use_cache=False)
        logits = out.logits[mask.bool().to(device)][(where - 1).to(device)]
    return F.cross_entropy(logits.float(), batch.input_ids[where].to(device), reduction="none")


def _packs(model: nn.Module) -> bool:
    config = getattr(model, "module", model).config
    return config._attn_implementation == ATTENTION


class NoiseLmTrainer(MicroBatchTrainer):
    """Mean loss over the learned tokens of a step."""

    def micro_loss(self, model: nn.Module, inputs: Batch, chosen: np.ndarray) -> Tensor:
        n_tokens = sum(int(m[1:].sum()) for m in inputs["learn"])
        losses = token_losses(model, [inputs["ids"][i] for i in chosen], [inputs["learn"][i] for i in chosen])
        part = losses.sum() / max(1, n_tokens)
        if not torch.isfinite(part):
            self.diverged("language model loss", part.item())
        return part


@torch.no_grad()
def held_out_loss(
    lm: NoiseLm, texts: Sequence[np.ndarray], labels: np.ndarray | None = None, *, bf16: bool = False
) -> float:
    """Mean loss on at most `HELD_OUT` of the texts, always the same with the same masks: how they surprise the LM."""
    lm.model.eval()
    chosen = MaskedTexts(lm, texts, min(HELD_OUT, len(texts)), 0, labels)
    items = [chosen[p] for p in range(len(chosen))]
    total, n_tokens = 0.0, 0
    with torch.autocast(lm.model.device.type, torch.bfloat16, enabled=bf16):
        for batch in micro_batches(np.array([len(ids) for ids, _ in items]), budget=2048):
            losses = token_losses(lm.model, [items[i][0] for i in batch], [items[i][1] for i in batch])
            total, n_tokens = total + losses.sum().item(), n_tokens + len(losses)
    return total / max(1, n_tokens)


def perplexity(loss: float) -> float:
    """exp of a mean loss, bounded.

    >>> perplexity(0.0)
    1.0
    """
    return math.exp(min(loss, 50.0))


def prepare_training(model: nn.Module) -> None:
    """Packed attention where the architecture allows it, and no second gradient of the size of the vocabulary."""
    if model.config.model_type in PACKED_LANGUAGE_MODELS:
        use_packing(model)
    embeddings = model.get_input_embeddings()
    if embeddings.weight is model.get_output_embeddings().weight and not torch.cuda.is_available():
        embeddings.sparse = True  # the rows that were read are added to the head's gradient, which is dense
