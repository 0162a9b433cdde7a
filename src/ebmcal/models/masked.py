"""Encoders with their masked-LM head: which words could stand here?

The head sees hidden states of masked tokens only, for it is as large as the vocabulary. `MaskedHead` keeps one beside a
classifier while that is finetuned, so that the encoder does not forget how to fill in words (He et al. 2023).
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from ebmcal.errors import EbmcalError
from ebmcal.models.loading import ENCODERS, check_encoder, quiet
from ebmcal.models.packing import Pack, packed_states, packs

#: Tokens that are masked while finetuning, as in BERT's own training.
MASKED_SHARE = 0.15


def _electra(model: nn.Module, states: Tensor) -> Tensor:
    return model.generator_lm_head(model.generator_predictions(states))


def _distilbert(model: nn.Module, states: Tensor) -> Tensor:
    return model.vocab_projector(model.vocab_layer_norm(model.activation(model.vocab_transform(states))))


#: Architecture -> hidden states [m, H] to logits [m, V]. Others compute the logits of all tokens.
HEADS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "bert": lambda model, states: model.cls(states),
    "distilbert": _distilbert,
    "electra": _electra,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), lambda model, states: model.lm_head(states)),
}

#: What such heads are made of.
_PARTS = (
    "cls", "lm_head", "generator_predictions", "generator_lm_head",
    "vocab_transform", "activation", "vocab_layer_norm", "vocab_projector",
)  # fmt: skip


class MaskedHead(nn.Module):
    """A copy of an encoder's masked-LM head, with weights of its own."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.kind = model.config.model_type
        if self.kind not in HEADS or not packs(model):
            raise EbmcalError(
                f"mlm-aux knows the masked-LM heads of {', '.join(HEADS)}; this encoder is of type {self.kind!r}."
            )
        for name in _PARTS:
            if hasattr(model, name):
                setattr(self, name, copy.deepcopy(getattr(model, name)))
        for module in self.modules():  # a second name of the decoder's bias, which it alone uses
            if hasattr(module, "decoder") and getattr(module, "bias", None) is module.decoder.bias:
                module.bias = None
        self.mask_id = tokenizer.mask_token_id
        self.register_buffer("special", torch.tensor(sorted(tokenizer.all_special_ids)), persistent=False)

    def losses(self, encoder: nn.Module, batch: Pack) -> Tensor:
        """The mean cross-entropy of the masked tokens of each text, by the states of `encoder`: [n].

        Which are masked is drawn from torch's generator; zero for a text without a masked one.
        """
        ids = batch.input_ids
        masked = (torch.rand(ids.shape, device=ids.device) < MASKED_SHARE) & ~torch.isin(ids, self.special)
        hidden = Pack(torch.where(masked, self.mask_id, ids), batch.token_types, batch.lengths)
        states = packed_states(encoder, hidden)[0, masked]  # [m, H]
        values = F.cross_entropy(HEADS[self.kind](self, states).float(), ids[masked], reduction="none")  # [m]
        lengths = torch.from_numpy(batch.lengths).to(ids.device)
        text = torch.repeat_interleave(torch.arange(len(lengths), device=ids.device), lengths)[masked]  # [m]
        sums, counts = (values.new_zeros(len(lengths)).index_add(0, text, x) for x in (values, torch.ones_like(values)))
        return sums / counts.clamp(min=1)


def load_masked_lm(name: str, trust_remote_code: bool = False) -> tuple[nn.Module, Any]:
    """An encoder that comes with its masked-LM head, and its tokenizer, by hub name or folder; else it is refused."""
    if name in ENCODERS:
        raise EbmcalError(
            f"The encoder {name} was made for sentence embeddings and comes without its masked-LM head, so it cannot "
            "fill in words. Name one that has it, such as roberta-base or bert-base-uncased, or a folder."
        )
    check_encoder(name, trust_remote_code)
    options = {"trust_remote_code": trust_remote_code}
    kind = AutoConfig.from_pretrained(name, **options).model_type
    if kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not trust_remote_code:
        raise EbmcalError(f"The model {name} is of type {kind!r}, which fills in no masked words. Use an encoder.")
    with quiet():
        model, facts = AutoModelForMaskedLM.from_pretrained(
            name, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **options
        )
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    if facts["missing_keys"]:
        raise EbmcalError(
            f"The encoder {name} comes without its masked-LM head ({', '.join(sorted(facts['missing_keys'])[:3])} are "
            "missing), so it cannot fill in words. Name one that has it, such as roberta-base."
        )
    if tokenizer.mask_token_id is None or not tokenizer.is_fast:
        raise EbmcalError(f"The tokenizer of {name} has no mask token, or is no fast one: it cannot hide words.")
    return model, tokenizer
