"""Forward passes without padding: the texts of a batch are concatenated and attention stays within each text.

Texts are sorted by length, so that texts of equal length attend in one batched call (there is no varlen kernel on CPU;
on CUDA flash-attn's is used if it is installed). This goes through transformers' attention interface, so the model
classes stay stock. Architectures that are not in `PACKED_ENCODERS` are padded to the longest text of the batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from ebmcal.modeling.mean_pooling import MeanPoolingForSequenceClassification

ATTENTION = "ebmcal_packed"

#: Fewer tokens are not divided between threads: starting the operations takes longer than computing them.
MIN_DIVIDED_TOKENS = 128

#: (start, stop, length) of runs of texts of equal length in the packed sequence.
Groups = Sequence[tuple[int, int, int]]


class Tokens(NamedTuple):
    """Token ids and segment ids of one text, int arrays [L]."""

    ids: np.ndarray
    types: np.ndarray


class TokenTable(Sequence[Tokens]):
    """Tokens of many texts in two flat arrays, which take a tenth of the memory of a list.

    >>> TokenTable([Tokens(np.array([5, 6]), np.zeros(2))])[0].ids.tolist()
    [5, 6]
    """

    def __init__(self, texts: Sequence[Tokens]) -> None:
        self.lengths = np.array([len(text.ids) for text in texts], dtype=np.int64)  # [n]
        self._ends = np.cumsum(self.lengths)
        self._ids = np.concatenate([text.ids for text in texts]) if len(texts) else np.empty(0, np.int32)
        self._types = np.concatenate([text.types for text in texts]) if len(texts) else np.empty(0, np.uint8)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: Any) -> Any:
        span = slice(self._ends[i] - self.lengths[i], self._ends[i])
        return Tokens(self._ids[span], self._types[span])


@dataclass(frozen=True)
class PackedBatch:
    """The texts of a batch end to end, shortest first; `order` restores the order they were given in."""

    input_ids: Tensor  # [T]
    token_types: Tensor  # [T]
    lengths: np.ndarray  # [n], ascending
    order: Tensor | None = None  # [n], None if the texts were given shortest first

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def groups(self) -> Groups:
        sizes, counts = np.unique(self.lengths, return_counts=True)
        stops = np.cumsum(sizes * counts)
        return [(int(b - s * c), int(b), int(s)) for s, c, b in zip(sizes, counts, stops, strict=True)]

    def to(self, device: torch.device | str, **_: Any) -> "PackedBatch":
        return self._map(lambda x: x.to(device))

    def pin_memory(self) -> "PackedBatch":
        return self._map(lambda x: x.pin_memory())

    def _map(self, function: Callable[[Tensor], Tensor]) -> "PackedBatch":
        order = None if self.order is None else function(self.order)
        return replace(self, input_ids=function(self.input_ids), token_types=function(self.token_types), order=order)

    def positions(self, offset: int = 0) -> Tensor:
        """0, 1, … within each text, plus `offset`: [T]."""
        starts = np.cumsum(self.lengths) - self.lengths
        flat = np.arange(int(self.lengths.sum())) - np.repeat(starts, self.lengths)
        return torch.as_tensor(flat + offset, device=self.input_ids.device)

    def first_tokens(self) -> Tensor:
        """The position of the first token of each text: [n]."""
        return torch.from_numpy(np.cumsum(self.lengths) - self.lengths).to(self.input_ids.device)

    def text_of_token(self) -> Tensor:
        """The number of the text that each token belongs to: [T]."""
        return torch.from_numpy(np.repeat(np.arange(len(self)), self.lengths)).to(self.input_ids.device)

    def restore_order(self, outputs: Tensor) -> Tensor:
        """Outputs [n, …] of the packed texts in the order that the texts were given in."""
        return outputs if self.order is None else outputs[self.order]


def pack(texts: Sequence[Tokens]) -> PackedBatch:
    """Put texts end to end, sorted by length.

    >>> pack([Tokens(np.array([6, 7]), np.zeros(2)), Tokens(np.array([5]), np.zeros(1))]).input_ids
    tensor([5, 6, 7])
    """
    lengths = np.array([len(text.ids) for text in texts], dtype=np.int64)
    order = np.argsort(lengths, kind="stable")
    is_sorted = bool((order == np.arange(len(order))).all())
    ids, types = (torch.from_numpy(np.concatenate([texts[i][part] for i in order]).astype(np.int64)) for part in (0, 1))
    return PackedBatch(ids, types, lengths[order], None if is_sorted else torch.from_numpy(np.argsort(order)))


def micro_batches(lengths: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Indices of texts, shortest first, in batches of at most `budget` tokens (but at least one text).

    >>> [b.tolist() for b in micro_batches(np.array([3, 1, 2]), budget=3)]
    [[1, 2], [0]]
    """
    order = np.argsort(lengths, kind="stable")
    start, total = 0, 0
    for i, length in enumerate(lengths[order]):
        if i > start and total + length > budget:
            yield order[start:i]
            start, total = i, 0
        total += length
    if len(order):
        yield order[start:]


def divide(lengths: np.ndarray, budget: int) -> list[np.ndarray]:
    """As `micro_batches`, but texts that fit in one batch are divided into two of about as many tokens.

    >>> [part.tolist() for part in divide(np.array([300, 100, 200]), budget=1000)]
    [[1, 2], [0]]
    """
    parts = list(micro_batches(lengths, budget))
    if len(parts) > 1 or len(lengths) < 2 or lengths.sum() < MIN_DIVIDED_TOKENS:
        return parts
    ends = np.cumsum(lengths[parts[0]])
    return np.split(parts[0], [int(np.abs(ends[:-1] - ends[-1] / 2).argmin()) + 1])


def token_budget(config: Any, memory: float = 4e9) -> int:
    """The number of tokens whose activations fit in `memory` bytes: about 34 floats per layer and hidden unit."""
    hidden = getattr(config, "hidden_size", 768)
    layers = getattr(config, "num_hidden_layers", 12)
    return max(512, int(memory / (34 * 4 * hidden * max(layers, 1))))


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
    position_bias: Tensor | None = None,  # [1, H, L, L] for the longest text
    **_: object,
) -> tuple[Tensor, None]:
    """Attention within each text of a packed sequence, one call per group of equal length -> [1, T, H, D]."""
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    if not query.is_cuda and torch.is_autocast_enabled("cpu"):
        # On CPU the backward pass of torch's attention is much slower in bfloat16 than in float32.
        bias = None if position_bias is None else position_bias.float()
        with torch.autocast("cpu", enabled=False):
            q, k, v = (x.float() for x in (query, key, value))
            mixed, _none = packed_attention(module, q, k, v, None, scaling, dropout, causal, groups, bias)
        return mixed.to(value.dtype), None
    if position_bias is None and (kernel := varlen_kernel(query)):
        return _attend_varlen(kernel, (query, key, value), groups, dropout, scaling, causal), None
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
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs))[None], None


AttentionInterface.register(ATTENTION, packed_attention)


def varlen_kernel(query: Tensor) -> Callable[..., Tensor] | None:
    """flash-attn's kernel for texts of any length, if it is installed and supports these tensors."""
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


def _mpnet_states(model: nn.Module, batch: PackedBatch, positions: Tensor) -> list[Tensor]:
    """MPNet's layers one by one: its attention has a bias by distance and does not use the attention interface."""
    encoder = model.base_model.encoder
    states = model.base_model.embeddings(batch.input_ids[None], position_ids=positions)
    layers = [states]
    # The bias depends on the distance only: a shorter text has the first rows and columns of the longest one's.
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
        layers.append(states)
    return layers


@dataclass(frozen=True)
class PackedEncoder:
    """How an architecture turns the first hidden state of each text ([n, 1, H]) into logits."""

    head: Callable[[nn.Module, Tensor], Tensor] = lambda model, first: model.classifier(first)
    after_padding: bool = False  # positions start after the padding index
    token_types: bool = True
    layers: Callable[[nn.Module, PackedBatch, Tensor], list[Tensor]] | None = None  # without the attention interface


PACKED_ENCODERS: dict[str, PackedEncoder] = {
    "bert": PackedEncoder(lambda model, first: model.classifier(model.dropout(model.bert.pooler(first)))),
    "electra": PackedEncoder(),
    "distilbert": PackedEncoder(
        lambda model, first: model.classifier(model.dropout(torch.relu(model.pre_classifier(first[:, 0])))),
        token_types=False,
    ),
    "roberta": PackedEncoder(after_padding=True),
    "xlm-roberta": PackedEncoder(after_padding=True),
    "camembert": PackedEncoder(after_padding=True),
    "mpnet": PackedEncoder(after_padding=True, token_types=False, layers=_mpnet_states),
}


def encoder_config(model: nn.Module) -> Any:
    """The config of the encoder itself: that of the model, or the inner one of a mean-pooling classifier."""
    return getattr(model.config, "encoder_config", None) or model.config


def is_packable(model: nn.Module) -> bool:
    """Whether a sequence classifier can run without padding."""
    return encoder_config(model).model_type in PACKED_ENCODERS


def use_packing(model: nn.Module) -> None:
    """Switch a model to packed attention; from then on it takes packed batches only."""
    kind = PACKED_ENCODERS.get(encoder_config(model).model_type)  # None for language models
    if kind is None or kind.layers is None:
        model.base_model.set_attn_implementation(ATTENTION)


def max_positions(config: Any) -> int | None:
    """The most tokens an encoder can read, from its config; None if there is no limit."""
    config = getattr(config, "encoder_config", None) or config
    limit = max(getattr(config, "max_position_embeddings", None) or 0, 0) or None  # XLNet has -1
    kind = PACKED_ENCODERS.get(config.model_type)
    return limit - (config.pad_token_id + 1) if limit and kind and kind.after_padding else limit


def packed_layers(model: nn.Module, batch: PackedBatch, *, every: bool = False) -> Sequence[Tensor]:
    """Hidden states [1, T, H] of the last layer; with `every`, of the embeddings and of each layer."""
    config = encoder_config(model)
    kind = PACKED_ENCODERS[config.model_type]
    offset = config.pad_token_id + 1 if kind.after_padding else 0
    positions = batch.positions(offset)[None]
    if kind.layers:
        return kind.layers(model, batch, positions)
    types = {"token_type_ids": batch.token_types[None]} if kind.token_types else {}
    inputs = {"input_ids": batch.input_ids[None], "position_ids": positions, **types}
    if not every:
        return [model.base_model(**inputs, groups=batch.groups).last_hidden_state]
    return model.base_model(**inputs, groups=batch.groups, output_hidden_states=True).hidden_states


def packed_head(model: nn.Module, batch: PackedBatch, states: Tensor) -> Tensor:
    """Logits [n, C] from the last hidden states [1, T, H] of packed texts."""
    if isinstance(model, MeanPoolingForSequenceClassification):
        return model.head(mean_states(states[0], batch))
    return PACKED_ENCODERS[model.config.model_type].head(model, states[0, batch.first_tokens()][:, None])


def padded_inputs(model: nn.Module, batch: PackedBatch) -> dict[str, Tensor]:
    """The inputs of a stock model, right-padded: for architectures that cannot be packed."""
    longest = int(batch.lengths.max())
    mask = torch.from_numpy(np.arange(longest)[None] < batch.lengths[:, None]).to(batch.input_ids.device)
    ids = torch.full(mask.shape, model.config.pad_token_id or 0, dtype=torch.int64, device=mask.device)
    types = torch.zeros_like(ids)
    ids[mask], types[mask] = batch.input_ids, batch.token_types
    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    return inputs | ({"token_type_ids": types} if getattr(model.config, "type_vocab_size", 0) > 1 else {})


def mean_states(states: Tensor, batch: PackedBatch) -> Tensor:
    """The mean over the tokens of each text, in float32: [T, H] -> [n, H]."""
    sums = torch.zeros(len(batch), states.shape[1], device=states.device)
    sums = sums.index_add(0, batch.text_of_token(), states.float())
    return sums / torch.from_numpy(batch.lengths).to(sums)[:, None]
