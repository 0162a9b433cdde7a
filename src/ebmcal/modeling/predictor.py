"""`Predictor`: texts in, logits and energies out. The only prediction loop.

It is used by `Model.predict`, file and stdin prediction, the server, the check of an ONNX export, Ray workers and the
evaluation during training. Texts are sorted by length and packed into batches under a token budget; results are
returned in the order of the texts, in float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ebmcal.modeling.classifier import EnergyClassifier
from ebmcal.modeling.packing import Tokens, micro_batches, pack, token_budget

#: A text, or a pair of texts.
Text = str | tuple[str, str]

#: Tokens per batch: larger batches do not fit the CPU's cache.
MAX_BATCH_TOKENS = 4096

#: Texts per tokeniser call, which bounds its memory.
TOKENIZE_BATCH = 2048

#: Characters of a text that are tokenised per token that is kept: longer texts are cut first. Words rarely exceed it.
CHARACTERS_PER_TOKEN = 20


@dataclass(frozen=True)
class Outputs:
    """What a model computes for n texts, in float32."""

    logits: np.ndarray  # [n, C]
    energies: np.ndarray  # [n]
    features: np.ndarray | None = None  # [n, H], mean hidden states of the middle layer


class Predictor:
    """An `EnergyClassifier` with its tokenizer. Not thread-safe: one caller at a time.

    predictor = Predictor(classifier, tokenizer, max_length=128)
    predictor(["a text", "another"]).logits  # [2, C]
    """

    def __init__(self, classifier: EnergyClassifier, tokenizer: Any, max_length: int) -> None:
        self.classifier, self.tokenizer, self.max_length = classifier, tokenizer, max_length

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes, in the order of the logits."""
        config = self.classifier.config
        return tuple(str(config.id2label[i]) for i in range(config.num_labels))

    def __call__(self, texts: Sequence[Text], **options: Any) -> Outputs:
        """Predict texts, or pairs of texts; the options are those of `predict_tokens`."""
        return self.predict_tokens(self.tokenize(texts), **options)

    def tokenize(self, texts: Sequence[Text]) -> list[Tokens]:
        """Token ids and segment ids of texts that are all single or all pairs, truncated to `max_length`."""
        return tokenize(texts, self.tokenizer, self.max_length)

    def predict_tokens(
        self,
        tokens: Sequence[Tokens],
        *,
        features: bool = False,
        dropout_seed: int | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> Outputs:
        """Logits and energies of tokenised texts.

        `features` adds the middle-layer features; `dropout_seed` keeps dropout on (one pass of Monte-Carlo dropout);
        `on_batch(n)` is called after every batch of n texts, for progress bars.
        """
        classifier = self.classifier
        device, budget = next(classifier.parameters()).device, min(MAX_BATCH_TOKENS, token_budget(classifier.config))
        lengths = np.array([len(text.ids) for text in tokens], dtype=np.int64)
        results: dict[str, np.ndarray] = {}
        was_training = classifier.training
        classifier.train(dropout_seed is not None)
        try:
            with torch.inference_mode(), torch.random.fork_rng(enabled=dropout_seed is not None):
                if dropout_seed is not None:
                    torch.manual_seed(dropout_seed)
                for batch in micro_batches(lengths, budget):
                    output = classifier(pack([tokens[i] for i in batch]).to(device), features=features)
                    for name, value in output.items():
                        array = value.cpu().numpy()
                        results.setdefault(name, np.empty((len(tokens), *array.shape[1:]), np.float32))[batch] = array
                    if on_batch:
                        on_batch(len(batch))
        finally:
            classifier.train(was_training)
        if not len(tokens):
            return Outputs(np.empty((0, classifier.config.num_labels), np.float32), np.empty(0, np.float32))
        return Outputs(results["logits"], results["energies"], results.get("features"))


def tokenize(texts: Sequence[Text], tokenizer: Any, max_length: int) -> list[Tokens]:
    """Token ids and segment ids of texts that are all single or all pairs, truncated to `max_length` tokens."""
    limit = max_length * CHARACTERS_PER_TOKEN
    tokens: list[Tokens] = []
    for start in range(0, len(texts), TOKENIZE_BATCH):
        part = texts[start : start + TOKENIZE_BATCH]
        is_pair = not isinstance(part[0], str)
        firsts = [text[0][:limit] if is_pair else text[:limit] for text in part]
        seconds = [text[1][:limit] for text in part] if is_pair else None
        encoded = tokenizer(
            firsts, seconds, truncation=True, max_length=max_length, return_token_type_ids=True,
            return_attention_mask=False,
        )  # fmt: skip
        tokens += [
            Tokens(np.asarray(ids, dtype=np.int32), np.asarray(types, dtype=np.uint8))
            for ids, types in zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)
        ]
    return tokens
