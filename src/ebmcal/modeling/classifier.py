"""`EnergyClassifier`, a stock sequence classifier with an energy, and `Predictor`, the only prediction loop.

An `EnergyClassifier` is what is trained, saved and loaded: a plain checkpoint, `ebmcal.json` with the name of the
energy, and, for an energy with its own weights, `energy_head.safetensors`. A `Predictor` runs texts through it for
`Model.predict`, file and stdin prediction, the server, the check of an ONNX export, Ray workers and the evaluation
during training. It sorts texts by length and packs them into batches under a token budget.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.utils import ModelOutput

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.modeling.energies import ENERGIES, HEADS
from ebmcal.modeling.packing import (
    PackedBatch,
    Tokens,
    encoder_config,
    is_packable,
    mean_states,
    micro_batches,
    pack,
    packed_head,
    packed_layers,
    padded_inputs,
    token_budget,
    use_packing,
)
from ebmcal.modeling.precision import use_bf16
from ebmcal.modeling.pretrained import quiet
from ebmcal.modeling.threads import parallel_map
from ebmcal.run_dir import read_card, update_card

HEAD_FILE = "energy_head.safetensors"

#: A text, or a pair of texts.
Text = str | tuple[str, str]

#: Tokens per batch: larger ones do not fit the CPU's cache, and with few batches threads wait for the last one.
MAX_BATCH_TOKENS = 1024

#: Texts per tokeniser call, which bounds its memory.
TOKENIZE_BATCH = 2048

#: Characters of a text that are tokenised per token that is kept: longer texts are cut first. Words rarely exceed it.
CHARACTERS_PER_TOKEN = 20


@dataclass
class EnergyOutput(ModelOutput):
    """Outputs of an `EnergyClassifier` for n texts, in float32."""

    logits: Tensor = None  # [n, C]; ModelOutput needs defaults
    energies: Tensor = None  # [n], low = looks like data
    features: Tensor | None = None  # [n, H]


class EnergyClassifier(nn.Module):
    """Logits and energies of packed texts. `encoder` is any transformers sequence classifier.

    model = EnergyClassifier(AutoModelForSequenceClassification.from_pretrained(directory), "hidden")
    output = model(batch)  # output.logits [n, C], output.energies [n]
    """

    def __init__(self, encoder: nn.Module, energy: str = "hidden", centered: bool = True) -> None:
        super().__init__()
        if energy not in ENERGIES and energy not in HEADS:
            raise unknown_name("energy", energy, [*ENERGIES, *HEADS])
        self.encoder, self.energy, self.centered = encoder, energy, centered
        if encoder.config.pad_token_id is None:  # language models have none and then reject batches
            end = getattr(encoder_config(encoder), "eos_token_id", None)
            encoder.config.pad_token_id = np.ravel(end or 0)[0].item()
        self.is_packed = is_packable(encoder)
        if self.is_packed:
            use_packing(encoder)
        self.energy_head = HEADS[energy](encoder) if energy in HEADS else None

    @property
    def config(self) -> Any:
        return self.encoder.config

    def forward(self, texts: PackedBatch, *, features: bool | str = False, **_: Any) -> EnergyOutput:
        """Logits, energies and, on request, features of the texts, in their given order.

        `features`: the mean hidden states of the middle layer (True) or of the last one ("last").
        """
        logits, states = self._run_packed(texts, features) if self.is_packed else self._run_padded(texts, features)
        logits = logits.float()
        return EnergyOutput(
            logits=texts.restore_order(logits),
            energies=texts.restore_order(self.energies(logits)),
            features=texts.restore_order(mean_states(states, texts)) if features else None,
        )

    def energies(self, logits: Tensor) -> Tensor:
        """Energies [n] of the logits [n, C] of the last forward pass."""
        if self.energy_head is not None:
            return self.energy_head.energies(logits)
        return ENERGIES[self.energy](logits, self.centered)

    def _run_packed(self, texts: PackedBatch, features: bool | str) -> tuple[Tensor, Tensor]:
        layers = packed_layers(self.encoder, texts, every=features is True)
        chosen = layers[len(layers) // 2 if features is True else -1]
        return packed_head(self.encoder, texts, layers[-1]), chosen[0]

    def _run_padded(self, texts: PackedBatch, features: bool | str) -> tuple[Tensor, Tensor]:
        inputs = padded_inputs(self.encoder, texts)
        output = self.encoder(**inputs, output_hidden_states=bool(features))
        if not features:
            return output.logits, output.logits
        layers = output.encoder_hidden_states if self.config.is_encoder_decoder else output.hidden_states
        chosen = layers[len(layers) // 2 if features is True else -1]
        return output.logits, chosen[inputs["attention_mask"].bool()]

    def save_pretrained(
        self, directory: str | Path, card: dict[str, Any] | None = None, state_dict: dict[str, Tensor] | None = None
    ) -> None:
        """Write a plain checkpoint, the energy head if there is one, and `ebmcal.json`.

        `state_dict` is written instead of the model's own when this process holds only a part of the weights.
        """
        directory, weights = Path(directory), self.state_dict() if state_dict is None else state_dict
        self.encoder.save_pretrained(directory, state_dict=_select("encoder.", weights))
        if self.energy_head is not None:
            save_file(_select("energy_head.", weights), directory / HEAD_FILE)
        update_card(directory, energy=self.energy, centered=self.centered, **(card or {}))

    @classmethod
    def from_pretrained(cls, directory: str | Path, trust_remote_code: bool = False) -> "EnergyClassifier":
        """Load what `save_pretrained` wrote, or any sequence classifier (energy: hidden)."""
        directory = Path(directory)
        card = read_card(directory)
        try:
            with quiet():
                encoder = AutoModelForSequenceClassification.from_pretrained(
                    directory, use_safetensors=True, dtype=torch.float32, trust_remote_code=trust_remote_code
                )
            model = cls(encoder, str(card.get("energy", "hidden")), bool(card.get("centered", True)))
            if model.energy_head is not None:
                model.energy_head.load_state_dict(load_file(directory / HEAD_FILE))
        except EbmcalError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise EbmcalError(f"{directory} is not a usable checkpoint: {reason}") from error
        return model


def _select(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v.contiguous() for k, v in weights.items() if k.startswith(prefix)}


@dataclass(frozen=True)
class Outputs:
    """What a model computes for n texts, in float32."""

    logits: np.ndarray  # [n, C]
    energies: np.ndarray  # [n]
    features: np.ndarray | None = None  # [n, H]


class Predictor:
    """An `EnergyClassifier` with its tokenizer. Not thread-safe: one caller at a time.

    predictor = Predictor(classifier, tokenizer, max_length=128)
    predictor(["a text", "another"]).logits  # [2, C]
    """

    def __init__(self, classifier: EnergyClassifier, tokenizer: Any, max_length: int, precision: str = "fp32") -> None:
        self.classifier, self.tokenizer, self.max_length = classifier, tokenizer, max_length
        self.bf16 = use_bf16(precision)

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
        features: bool | str = False,
        dropout_seed: int | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> Outputs:
        """Logits and energies of tokenised texts.

        `features` as in `EnergyClassifier.forward`; `dropout_seed` keeps dropout on (one pass of Monte-Carlo dropout);
        `on_batch(n)` is called after every batch of n texts, for progress bars.
        """
        classifier = self.classifier
        device, budget = next(classifier.parameters()).device, min(MAX_BATCH_TOKENS, token_budget(classifier.config))
        batches = list(micro_batches(np.array([len(text.ids) for text in tokens], dtype=np.int64), budget))
        # Heads keep what passes through the model, and torch's generator is shared: one batch at a time.
        is_parallel = device.type == "cpu" and classifier.energy_head is None and dropout_seed is None

        def run(batch: np.ndarray) -> dict[str, np.ndarray]:
            with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
                output = classifier(pack([tokens[i] for i in batch]).to(device), features=features)
            return {name: value.float().cpu().numpy() for name, value in output.items()}

        results: dict[str, np.ndarray] = {}
        was_training = classifier.training
        classifier.train(dropout_seed is not None)
        try:
            with (
                torch.random.fork_rng(enabled=dropout_seed is not None),
                parallel_map(len(batches) if is_parallel else 1) as run_all,
            ):
                if dropout_seed is not None:
                    torch.manual_seed(dropout_seed)
                for batch, arrays in zip(batches, run_all(run, batches), strict=True):
                    for name, array in arrays.items():
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
