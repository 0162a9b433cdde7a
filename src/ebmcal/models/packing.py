"""Forward passes without padding: the texts of a batch are concatenated, attention stays inside each text.

Texts are sorted by length, so that texts of one length lie side by side and attend in one batched call (CPU has no
varlen kernel; on CUDA flash-attn's is taken where it is installed). It goes through transformers' attention interface:
the model classes stay stock. Linear layers see real tokens only. Architectures missing from `PACKED_ENCODERS` are
padded to the longest text of the batch instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from ebmcal.errors import EbmcalError

ATTENTION = "ebmcal_packed"

#: (start, stop, length) of runs of texts of equal length in the packed sequence.
Groups = Sequence[tuple[int, int, int]]


@dataclass(frozen=True)
class Pack:
    """Texts of a batch, shortest first, end to end."""

    input_ids: Tensor  # [T]
    token_types: Tensor  # [T]
    lengths: np.ndarray  # [n], ascending

    @property
    def starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]])  # [n]

    @property
    def groups(self) -> Groups:
        sizes, counts = np.unique(self.lengths, return_counts=True)
        stops = np.cumsum(sizes * counts)
        return [(int(b - s * c), int(b), int(s)) for s, c, b in zip(sizes, counts, stops, strict=True)]

    def to(self, device: torch.device | str) -> "Pack":
        return Pack(self.input_ids.to(device), self.token_types.to(device), self.lengths)

    def positions(self, offset: int = 0) -> Tensor:
        """0, 1, … inside each text, plus `offset`: [T]."""
        flat = np.arange(int(self.lengths.sum())) - np.repeat(self.starts, self.lengths)
        return torch.as_tensor(flat + offset, device=self.input_ids.device)


def pack(texts: Sequence[np.ndarray], token_types: Sequence[np.ndarray] | None = None) -> Pack:
    """Put texts, already sorted by length, end to end.

    >>> pack([np.array([5]), np.array([6, 7])]).groups
    [(0, 1, 1), (1, 3, 2)]
    """
    lengths = np.array([len(t) for t in texts], dtype=np.int64)
    if np.any(np.diff(lengths) < 0):
        raise ValueError("pack() takes texts sorted by length, shortest first")
    ids = torch.from_numpy(np.concatenate(texts).astype(np.int64))
    types = (
        torch.zeros_like(ids) if token_types is None else torch.from_numpy(np.concatenate(token_types).astype(np.int64))
    )
    return Pack(ids, types, lengths)


def packed_attention(
    module: nn.Module,
    query: Tensor,  # [1, H, T, D]
    key: Tensor,  # [1, Hkv, T, D]
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    groups: Groups = (),
    position_bias: Tensor | None = None,  # [1, H, L, L], of the longest text
    **_: object,
) -> tuple[Tensor, None]:
    """Attention within each text of a packed sequence, one call for each group of equal length -> [1, T, H, D]."""
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    if not query.is_cuda and torch.is_autocast_enabled("cpu"):
        return _attend_in_float32(module, (query, key, value), scaling, dropout, causal, groups, position_bias), None
    if position_bias is None and (kernel := varlen_kernel(query)):
        return _attend_varlen(kernel, (query, key, value), groups, dropout, scaling, causal), None
    if len(groups) == 1 and groups[0][1] == groups[0][2]:  # one text: there is nothing to take apart
        bias = None if position_bias is None else position_bias[..., : groups[0][2], : groups[0][2]]
        grouped = query.shape[1] != key.shape[1]
        alone = F.scaled_dot_product_attention(
            query, key, value, bias, dropout_p=dropout, is_causal=causal, scale=scaling, enable_gqa=grouped
        )
        return alone.transpose(1, 2), None
    sizes = [stop - start for start, stop, _ in groups]
    # split, not slices: the gradient of n slices would be n tensors of the full size.
    parts = zip(*(x[0].split(sizes, dim=1) for x in (query, key, value)), strict=True)
    outputs = []
    for (_start, _stop, length), qkv in zip(groups, parts, strict=True):
        q, k, v = (x.unflatten(1, (-1, length)).transpose(0, 1) for x in qkv)  # [n, H, L, D]
        bias = None if position_bias is None else position_bias[..., :length, :length]
        mixed = F.scaled_dot_product_attention(
            q, k, v, bias, dropout_p=dropout, is_causal=causal, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
        )
        outputs.append(mixed.transpose(1, 2).flatten(0, 1))  # [n * L, H, D]
    return torch.cat(outputs)[None], None


def _attend_in_float32(
    module: nn.Module,
    states: tuple[Tensor, Tensor, Tensor],
    scaling: float | None,
    dropout: float,
    causal: bool,
    groups: Groups,
    position_bias: Tensor | None,
) -> Tensor:
    """On a CPU the gradient of torch's kernel takes much longer in bfloat16 than in float32."""
    bias = None if position_bias is None else position_bias.float()
    with torch.autocast("cpu", enabled=False):
        query, key, value = (x.float() for x in states)
        mixed, _ = packed_attention(module, query, key, value, None, scaling, dropout, causal, groups, bias)
    return mixed.to(states[2].dtype)


def varlen_kernel(query: Tensor) -> Callable[..., Tensor] | None:
    """flash-attn's kernel for texts of any lengths, where it is installed and takes such tensors."""
    if not query.is_cuda or query.dtype not in (torch.bfloat16, torch.float16):
        return None
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        return None
    return flash_attn_varlen_func


def _attend_varlen(
    kernel: Callable[..., Tensor],
    states: tuple[Tensor, Tensor, Tensor],
    groups: Groups,
    dropout: float,
    scaling: float | None,
    causal: bool,
) -> Tensor:
    ends = np.concatenate([[0], *(np.arange(start, stop, length) + length for start, stop, length in groups)])
    ends = torch.as_tensor(ends, dtype=torch.int32, device=states[0].device)  # [n + 1]
    longest = groups[-1][2]
    q, k, v = (x[0].transpose(0, 1) for x in states)  # [T, H, D]
    return kernel(q, k, v, ends, ends, longest, longest, dropout_p=dropout, softmax_scale=scaling, causal=causal)[None]


AttentionInterface.register(ATTENTION, packed_attention)


def _bert_head(model: nn.Module, first: Tensor) -> Tensor:
    return model.classifier(model.dropout(model.bert.pooler(first)))


def _distilbert_head(model: nn.Module, first: Tensor) -> Tensor:
    return model.classifier(model.dropout(torch.relu(model.pre_classifier(first[:, 0]))))


def _classification_head(model: nn.Module, first: Tensor) -> Tensor:
    return model.classifier(first)


def _mpnet_states(model: nn.Module, batch: Pack, positions: Tensor) -> list[Tensor]:
    """MPNet's layers one by one: its attention has a bias by distance and does not go through the interface."""
    encoder = model.base_model.encoder
    states = model.base_model.embeddings(batch.input_ids[None], position_ids=positions)
    found = [states]
    # The bias depends on the distance alone: a shorter text has the first rows and columns of the longest one's.
    bias = encoder.compute_position_bias(states[:, : int(batch.lengths.max())])
    for layer in encoder.layer:
        attention = layer.attention.attn
        heads = (attention.num_attention_heads, attention.attention_head_size)
        q, k, v = (f(states).unflatten(-1, heads).transpose(1, 2) for f in (attention.q, attention.k, attention.v))
        dropout = attention.dropout.p if model.training else 0.0
        mixed, _ = packed_attention(
            attention, q, k, v, None, dropout=dropout, is_causal=False, groups=batch.groups, position_bias=bias
        )
        states = layer.attention.LayerNorm(layer.attention.dropout(attention.o(mixed.flatten(2))) + states)
        states = layer.output(layer.intermediate(states), states)
        found.append(states)
    return found


@dataclass(frozen=True)
class PackedEncoder:
    """How an architecture turns the first hidden state of each text ([n, 1, H]) into logits."""

    head: Callable[[nn.Module, Tensor], Tensor]
    after_padding: bool = False  # positions start behind the padding index
    token_types: bool = True
    states: Callable[[nn.Module, Pack, Tensor], list[Tensor]] | None = None  # where the attention interface is not used


PACKED_ENCODERS: dict[str, PackedEncoder] = {
    "bert": PackedEncoder(_bert_head),
    "electra": PackedEncoder(_classification_head),
    "distilbert": PackedEncoder(_distilbert_head, token_types=False),
    "roberta": PackedEncoder(_classification_head, after_padding=True),
    "xlm-roberta": PackedEncoder(_classification_head, after_padding=True),
    "camembert": PackedEncoder(_classification_head, after_padding=True),
    "mpnet": PackedEncoder(_classification_head, after_padding=True, token_types=False, states=_mpnet_states),
}


def longest_text(config: Any) -> int | None:
    """Tokens that an encoder takes at most, from its config; None where there is no limit."""
    limit = max(getattr(config, "max_position_embeddings", None) or 0, 0) or None  # XLNet has -1
    kind = PACKED_ENCODERS.get(config.model_type)
    return limit - (config.pad_token_id + 1) if limit and kind and kind.after_padding else limit


def last_layer(encoder: nn.Module, reader: str) -> nn.Linear:
    """The linear layer that makes the logits; where there is none, an error says who reads its features."""
    n_labels = encoder.config.num_labels
    layers = [m for m in encoder.modules() if isinstance(m, nn.Linear) and m.out_features == n_labels]
    if not layers:
        raise EbmcalError(
            f"{reader} reads the features that enter the last linear layer of the classifier, and "
            f"{type(encoder).__name__} has none with {n_labels} outputs. Use hidden or sharp-hidden."
        )
    return layers[-1]


def packs(model: nn.Module) -> bool:
    """Whether a sequence classifier can run without padding."""
    return model.config.model_type in PACKED_ENCODERS


def use_packing(model: nn.Module) -> None:
    """Switch a supported model to packed attention; from then on it takes packs only."""
    kind = PACKED_ENCODERS.get(model.config.model_type)  # None for language models
    if kind is None or kind.states is None:
        model.set_attn_implementation(ATTENTION)


def packed_states(model: nn.Module, batch: Pack) -> Tensor:
    """Last hidden states [1, T, H] of packed texts by a stock classifier that `use_packing` was called on."""
    return _packed_layers(model, batch)[-1]


def _packed_layers(model: nn.Module, batch: Pack, *, every: bool = False) -> Sequence[Tensor]:
    """Hidden states [1, T, H] behind the last layer; with `every`, of the embeddings and behind every layer."""
    kind = PACKED_ENCODERS[model.config.model_type]
    offset = model.config.pad_token_id + 1 if kind.after_padding else 0
    positions = batch.positions(offset)[None]
    if kind.states:
        return kind.states(model, batch, positions)
    types = {"token_type_ids": batch.token_types[None]} if kind.token_types else {}
    inputs = {"input_ids": batch.input_ids[None], "position_ids": positions, **types}
    if not every:
        return [model.base_model(**inputs, groups=batch.groups).last_hidden_state]
    return model.base_model(**inputs, groups=batch.groups, output_hidden_states=True).hidden_states


def classify_packed(model: nn.Module, batch: Pack) -> Tensor:
    """Logits [n, C] of packed texts by a stock sequence classifier that `use_packing` was called on."""
    return _logits(model, batch, packed_states(model, batch))


def _logits(model: nn.Module, batch: Pack, states: Tensor) -> Tensor:
    kind = PACKED_ENCODERS[model.config.model_type]
    first = states[0, torch.from_numpy(batch.starts).to(states.device)][:, None]  # [n, 1, H]
    # The head costs nothing, and logits rounded to bfloat16 would have two digits: it stays in float32.
    with torch.autocast(states.device.type, enabled=False):
        return kind.head(model, first.float())


def classify_with_features(model: nn.Module, batch: Pack, *, middle: bool = True) -> tuple[Tensor, Tensor]:
    """Logits [n, C] and mean middle (or last) states [n, H] of one forward pass, packed where the model can be."""
    choose = middle_of if middle else _last_of
    if packs(model):
        layers = _packed_layers(model, batch, every=middle)
        return _logits(model, batch, layers[-1]), _mean(choose(layers)[0], batch)
    inputs = _padded_inputs(model, batch)
    found = model(**inputs, output_hidden_states=True)
    layers = found.encoder_hidden_states if model.config.is_encoder_decoder else found.hidden_states
    return found.logits, _mean(choose(layers)[inputs["attention_mask"].bool()], batch)


def middle_of(layers: Sequence[Tensor]) -> Tensor:
    """The states half-way up, of the embeddings' and those behind every layer.

    The last layers are where finetuning leaves only what tells the classes apart; half-way, a text from elsewhere is
    still unlike the training texts (measured in `results/study/layers.csv`).
    """
    return layers[len(layers) // 2]


def _last_of(layers: Sequence[Tensor]) -> Tensor:
    return layers[-1]


def classify_padded(model: nn.Module, batch: Pack) -> Tensor:
    """Logits [n, C] by padding to the longest text: for architectures that cannot be packed."""
    return model(**_padded_inputs(model, batch)).logits


def _padded_inputs(model: nn.Module, batch: Pack) -> dict[str, Tensor]:
    ids, mask, types = pad(batch, model.config.pad_token_id or 0)
    inputs = {"input_ids": ids, "attention_mask": mask}
    return inputs | ({"token_type_ids": types} if getattr(model.config, "type_vocab_size", 0) > 1 else {})


def mean_states(model: nn.Module, batch: Pack, *, middle: bool = False) -> Tensor:
    """The mean of the last hidden states of each text, or of those half-way up: [n, H]."""
    choose = middle_of if middle else _last_of
    if packs(model):
        return _mean(choose(_packed_layers(model, batch, every=middle))[0], batch)
    inputs = _padded_inputs(model, batch)
    reads = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
    found = reads(**inputs, output_hidden_states=True)
    return _mean(choose(found.hidden_states)[inputs["attention_mask"].bool()], batch)


def _mean(states: Tensor, batch: Pack) -> Tensor:  # [T, H] -> [n, H]
    text = torch.from_numpy(np.repeat(np.arange(len(batch.lengths)), batch.lengths)).to(states.device)
    sums = torch.zeros(len(batch.lengths), states.shape[1], device=states.device).index_add(0, text, states.float())
    return sums / torch.from_numpy(batch.lengths).to(sums)[:, None]


def pad(batch: Pack, pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded ids, attention mask and token types, each [n, L]."""
    longest = int(batch.lengths.max())
    mask = torch.from_numpy(np.arange(longest)[None] < batch.lengths[:, None]).to(batch.input_ids.device)
    ids = torch.full(mask.shape, pad_id, dtype=torch.int64, device=mask.device)
    types = torch.zeros_like(ids)
    ids[mask], types[mask] = batch.input_ids, batch.token_types
    return ids, mask.long(), types
