"""`EnergyClassifier`: a stock sequence classifier with an energy. It is what is trained, saved and loaded.

`hidden` and `sharp-hidden` compute the energy from the logits and leave a plain checkpoint. `scalar` adds one linear
layer on the features that enter the classifier's last layer; it is saved next to the checkpoint as
`energy_head.safetensors`. `ebmcal.json` in the same directory names the energy.
"""

from collections.abc import Callable
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
from ebmcal.modeling.energies import ENERGIES
from ebmcal.modeling.packing import (
    PackedBatch,
    is_packable,
    mean_states,
    packed_head,
    packed_layers,
    padded_inputs,
    use_packing,
)
from ebmcal.modeling.pretrained import quiet
from ebmcal.run_dir import read_card, update_card

HEAD_FILE = "energy_head.safetensors"


@dataclass
class EnergyOutput(ModelOutput):
    """Outputs of an `EnergyClassifier` for n texts, in float32."""

    logits: Tensor = None  # [n, C]; ModelOutput needs defaults
    energies: Tensor = None  # [n], low = looks like data
    features: Tensor | None = None  # [n, H], mean hidden states of the middle layer


class ScalarHead(nn.Linear):
    """The `scalar` energy (equation 3): a linear layer on the features that enter the last layer, [n, H] -> [n]."""

    def __init__(self, encoder: nn.Module) -> None:
        last = last_layer(encoder, "The scalar energy")
        super().__init__(last.in_features, 1)
        self._features: Any = None  # [n, H] of the last forward pass
        last.register_forward_pre_hook(self._keep_features)

    def energies(self, logits: Tensor) -> Tensor:
        """Energies [n] of the last forward pass, in float32; the logits [n, C] are not used."""
        features, self._features = self._features, None
        with torch.autocast(features.device.type, enabled=False):
            return self(features.float()).squeeze(-1)

    def _keep_features(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].dim() != 2:  # classifiers made from language models have logits at every position
            raise EbmcalError(
                "The scalar energy needs one feature vector per text, but this model has one per token. "
                "Use hidden or sharp-hidden."
            )
        self._features = inputs[0]


#: Energies with their own weights: name -> module with `energies(logits)`. Methods may add theirs (see `methods/sngp`).
HEADS: dict[str, Callable[[nn.Module], Any]] = {"scalar": ScalarHead}


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
            encoder.config.pad_token_id = np.ravel(encoder.config.eos_token_id or 0)[0].item()
        self.is_packed = is_packable(encoder)
        if self.is_packed:
            use_packing(encoder)
        self.energy_head = HEADS[energy](encoder) if energy in HEADS else None

    @property
    def config(self) -> Any:
        return self.encoder.config

    def forward(self, texts: PackedBatch, *, features: bool = False, **_: Any) -> EnergyOutput:
        """Logits, energies and, on request, middle-layer features of the texts, in their given order."""
        logits, middle = self._run_packed(texts, features) if self.is_packed else self._run_padded(texts, features)
        logits = logits.float()
        energies = self.energies(logits)
        return EnergyOutput(
            logits=texts.restore_order(logits),
            energies=texts.restore_order(energies),
            features=None if middle is None else texts.restore_order(mean_states(middle, texts)),
        )

    def energies(self, logits: Tensor) -> Tensor:
        """Energies [n] of the logits [n, C] of the last forward pass."""
        if self.energy_head is not None:
            return self.energy_head.energies(logits)
        return ENERGIES[self.energy](logits, self.centered)

    def _run_packed(self, texts: PackedBatch, features: bool) -> tuple[Tensor, Tensor | None]:
        layers = packed_layers(self.encoder, texts, every=features)
        return packed_head(self.encoder, texts, layers[-1]), layers[len(layers) // 2][0] if features else None

    def _run_padded(self, texts: PackedBatch, features: bool) -> tuple[Tensor, Tensor | None]:
        inputs = padded_inputs(self.encoder, texts)
        output = self.encoder(**inputs, output_hidden_states=features)
        if not features:
            return output.logits, None
        is_seq2seq = self.config.is_encoder_decoder
        layers = output.encoder_hidden_states if is_seq2seq else output.hidden_states
        return output.logits, layers[len(layers) // 2][inputs["attention_mask"].bool()]

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
            model.load_head(directory)
        except EbmcalError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise EbmcalError(f"{directory} is not a usable checkpoint: {reason}") from error
        return model

    def load_head(self, directory: Path) -> None:
        """Load the weights of the energy head, if there is one."""
        if self.energy_head is not None:
            self.energy_head.load_state_dict(load_file(Path(directory) / HEAD_FILE))


def last_layer(encoder: nn.Module, user: str) -> nn.Linear:
    """The linear layer that computes the logits; `user` is named in the error if there is none."""
    n_labels = encoder.config.num_labels
    layers = [m for m in encoder.modules() if isinstance(m, nn.Linear) and m.out_features == n_labels]
    if not layers:
        raise EbmcalError(
            f"{user} needs the features that enter the last linear layer of the classifier, but "
            f"{type(encoder).__name__} has no linear layer with {n_labels} outputs. Use hidden or sharp-hidden."
        )
    return layers[-1]


def _select(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v.contiguous() for k, v in weights.items() if k.startswith(prefix)}
