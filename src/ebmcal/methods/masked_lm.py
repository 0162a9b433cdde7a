"""An auxiliary masked-LM loss during finetuning (He et al., ICLR 2023), for encoders that have their masked-LM head."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ebmcal.errors import EbmcalError
from ebmcal.methods.joint import Method, MicroBatch, Terms
from ebmcal.modeling.classifier import EnergyClassifier, EnergyOutput
from ebmcal.modeling.packing import PackedBatch, is_packable, packed_layers
from ebmcal.modeling.pretrained import load_masked_lm

#: Share of tokens that are masked, as in BERT's pretraining.
MASKED_SHARE = 0.15


def _electra(model: nn.Module, states: Tensor) -> Tensor:
    return model.generator_lm_head(model.generator_predictions(states))


def _distilbert(model: nn.Module, states: Tensor) -> Tensor:
    return model.vocab_projector(model.vocab_layer_norm(model.activation(model.vocab_transform(states))))


#: Model type -> hidden states [m, H] to logits [m, V].
LM_HEADS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "bert": lambda model, states: model.cls(states),
    "distilbert": _distilbert,
    "electra": _electra,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), lambda model, states: model.lm_head(states)),
}

_HEAD_MODULES = (
    "cls", "lm_head", "generator_predictions", "generator_lm_head",
    "vocab_transform", "activation", "vocab_layer_norm", "vocab_projector",
)  # fmt: skip


class AuxiliaryMaskedLm(Method):
    """Cross-entropy plus the loss of filling in masked tokens of the training texts."""

    is_thread_safe = False

    def prepare(self, model: EnergyClassifier, tokenizer: Any) -> None:
        model.masked_lm_head = MaskedLmHead(*load_masked_lm(model.config._name_or_path))

    def terms(self, model: nn.Module, batch: MicroBatch, progress: float) -> tuple[Terms, EnergyOutput]:
        classifier = model.module if hasattr(model, "module") else model
        terms, output = super().terms(model, batch, progress)
        losses = classifier.masked_lm_head.losses(classifier.encoder, batch.texts)
        return terms | {"masked_lm": (batch.texts.restore_order(losses), self.args.masked_lm_weight)}, output

    def finish(self, trainer: Any) -> None:
        del trainer.classifier.masked_lm_head  # used in training only; not saved


class MaskedLmHead(nn.Module):
    """A copy of an encoder's masked-LM head with its own weights."""

    special: Tensor

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.kind = model.config.model_type
        if self.kind not in LM_HEADS or not is_packable(model):
            raise EbmcalError(f"masked-lm supports the encoders {', '.join(LM_HEADS)}, got {self.kind!r}.")
        for name in _HEAD_MODULES:
            if hasattr(model, name):
                setattr(self, name, copy.deepcopy(getattr(model, name)))
        for module in self.modules():  # a second name of the decoder's bias
            if hasattr(module, "decoder") and getattr(module, "bias", None) is module.decoder.bias:
                module.bias = None
        self.mask_id = tokenizer.mask_token_id
        self.register_buffer("special", torch.tensor(sorted(tokenizer.all_special_ids)), persistent=False)

    def losses(self, encoder: nn.Module, texts: PackedBatch) -> Tensor:
        """Mean cross-entropy of the masked tokens of each text [n]; 0 for a text without any."""
        ids = texts.input_ids
        masked = (torch.rand(ids.shape, device=ids.device) < MASKED_SHARE) & ~torch.isin(ids, self.special)
        hidden = replace(texts, input_ids=torch.where(masked, self.mask_id, ids))
        states = packed_layers(encoder, hidden)[-1][0, masked]  # [m, H]
        values = F.cross_entropy(LM_HEADS[self.kind](self, states).float(), ids[masked], reduction="none")  # [m]
        text = texts.text_of_token()[masked]  # [m]
        sums, counts = (values.new_zeros(len(texts)).index_add(0, text, x) for x in (values, torch.ones_like(values)))
        return sums / counts.clamp(min=1)
