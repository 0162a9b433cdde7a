"""A stock sequence classifier with an energy: what is trained, saved and loaded.

hidden and sharp-hidden read the energy off the logits and leave a plain checkpoint. scalar adds one linear layer on the
features that enter the classifier's last layer, scaled-hidden a scale and a constant; these are saved beside the
checkpoint as `energy_head.safetensors`. So is the Gaussian process of sngp, without which its checkpoint is no model.
`ebmcal.json` in the folder says which energy the model was trained with.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.models.energies import ENERGIES, hidden
from ebmcal.models.loading import quiet
from ebmcal.models.manifold import Around, classify_around
from ebmcal.models.masked import MaskedHead
from ebmcal.models.packing import (
    Pack,
    classify_packed,
    classify_padded,
    classify_with_features,
    last_layer,
    packs,
    use_packing,
)
from ebmcal.models.sngp import GaussianProcess
from ebmcal.runfolder import CARD_FILE as CARD_FILE
from ebmcal.storage.atomic import read_json, write_json

HEAD_FILE = "energy_head.safetensors"


class EnergyHead(nn.Linear):
    """The scalar energy: a linear layer on the features that enter the last layer of a classifier, [n, H] -> [n].

    It keeps the features of each forward pass of the classifier until `energies` takes them.
    """

    def __init__(self, encoder: nn.Module) -> None:
        last = last_layer(encoder, "The scalar energy")
        super().__init__(last.in_features, 1)
        self._name = type(encoder).__name__
        self._features: Any = None  # [n, H]
        last.register_forward_pre_hook(self._keep_features)

    def energies(self, logits: Tensor) -> Tensor:
        """Energies [n] of the texts of the last forward pass, in float32; the logits [n, C] do not enter."""
        features, self._features = self._features, None
        with torch.autocast(features.device.type, enabled=False):
            return self(features.float()).squeeze(-1)

    def _keep_features(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].dim() != 2:  # classifiers made of language models have logits at every position
            raise EbmcalError(
                f"The scalar energy needs one feature vector a text, and {self._name} has one a token. "
                "Use hidden or sharp-hidden."
            )
        self._features = inputs[0]  # [n, H]


class EnergyScale(nn.Module):
    """The scaled hidden energy, [n, C] -> [n]: exp(c a) hidden(logits) + c b, with a and b learned.

    Telling noise from data then need not change the size of the logits, and c b stands for log Z. The factor c lets
    two numbers keep pace at the learning rate of an encoder.
    """

    PACE = 100.0

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.log_scale, self.constant = (nn.Parameter(torch.zeros(())) for _ in range(2))

    def energies(self, logits: Tensor) -> Tensor:
        """Energies [n] of logits [n, C], in float32."""
        return (self.PACE * self.log_scale).exp() * hidden(logits.float()) + self.PACE * self.constant


#: Energies with weights of their own; sngp changes the logits as well.
HEADS: dict[str, type[EnergyHead] | type[EnergyScale] | type[GaussianProcess]] = {
    "scalar": EnergyHead,
    "scaled-hidden": EnergyScale,
    "sngp": GaussianProcess,
}


class EnergyClassifier(nn.Module):
    """Logits and energies of packed texts.

    `encoder` is the stock transformers model; `energy_head` has the weights of scalar or scaled-hidden, or is None.

        model = EnergyClassifier(AutoModelForSequenceClassification.from_pretrained(folder), "hidden")
        logits, energies = model(batch)  # [n, C] and [n], of packed texts
    """

    def __init__(self, encoder: nn.Module, energy: str = "hidden", masked_head: MaskedHead | None = None) -> None:
        super().__init__()
        if energy not in ENERGIES and energy not in HEADS:
            raise unknown_name("energy", energy, [*ENERGIES, *HEADS])
        self.encoder, self.energy = encoder, energy
        if encoder.config.pad_token_id is None:  # language models have none, and then refuse batches
            encoder.config.pad_token_id = np.ravel(encoder.config.eos_token_id or 0)[0].item()
        self.packed = packs(encoder)
        if self.packed:
            use_packing(encoder)
        self.energy_head = HEADS[energy](encoder) if energy in HEADS else None
        self.masked_head = masked_head  # for training only: it is not saved with the model

    @property
    def config(self) -> Any:
        return self.encoder.config

    def forward(self, batch: Pack, around: Around | None = None) -> tuple[Tensor, ...]:
        """Logits [n, C] and energies [n], in float32; in training with a masked head also its losses [n].

        With `around`, also what `classify_around` says of samples beside the texts.
        """
        if around is not None:
            logits, *samples = classify_around(self.encoder, batch, around)
            return logits, self._energies(logits), *samples
        logits = (classify_packed if self.packed else classify_padded)(self.encoder, batch).float()
        if self.masked_head is None or not self.training:
            return logits, self._energies(logits)
        return logits, self._energies(logits), self.masked_head.losses(self.encoder, batch)

    def with_features(self, batch: Pack) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [n, C], energies [n] and mean middle states [n, H] of one forward pass, in float32."""
        logits, features = classify_with_features(self.encoder, batch)
        return logits.float(), self._energies(logits.float()), features

    def _energies(self, logits: Tensor) -> Tensor:
        if self.energy_head is None:
            return ENERGIES[self.energy](logits)
        return self.energy_head.energies(logits)

    def save_pretrained(
        self, folder: str | Path, card: dict[str, Any] | None = None, weights: dict[str, Tensor] | None = None
    ) -> None:
        """Write a plain checkpoint, the energy head when there is one, and `ebmcal.json`.

        `weights` are written in place of the model's own, when this process holds only a part of them.
        """
        folder, weights = Path(folder), self.state_dict() if weights is None else weights
        self.encoder.save_pretrained(folder, state_dict=_below("encoder.", weights))
        if self.energy_head is not None:
            save_file(_below("energy_head.", weights), folder / HEAD_FILE)
        write_json(folder / CARD_FILE, {"energy": self.energy, **(card or {})})

    @classmethod
    def from_pretrained(cls, folder: str | Path, trust_remote_code: bool = False) -> "EnergyClassifier":
        """Load what `save_pretrained` wrote, or any sequence classifier (energy: hidden)."""
        folder = Path(folder)
        card = read_json(folder / CARD_FILE) if (folder / CARD_FILE).exists() else {}
        try:
            with quiet():
                encoder = AutoModelForSequenceClassification.from_pretrained(
                    folder, use_safetensors=True, dtype=torch.float32, trust_remote_code=trust_remote_code
                )
            model = cls(encoder, card.get("energy", "hidden"))
            model.load_head(folder)
        except EbmcalError:
            raise
        except Exception as error:
            raise EbmcalError(f"{folder} is not a usable checkpoint: {' '.join(str(error).split())[:300]}") from error
        return model

    def load_head(self, folder: Path) -> None:
        if self.energy_head is not None:
            self.energy_head.load_state_dict(load_file(Path(folder) / HEAD_FILE))


def _below(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v.contiguous() for k, v in weights.items() if k.startswith(prefix)}
