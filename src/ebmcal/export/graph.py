"""A classifier as an ONNX graph: token ids in, logits divided by the temperature out, and optionally the energy.

    logits  f(x)[y] / T      their softmax is the calibrated P(y|x)
    energy  Ê(x) of the model as it was trained: of f(x), not of f(x) / T

The stock attention of transformers is exported, with padding; packing exists only in torch.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ebmcal.modeling.classifier import EnergyClassifier
from ebmcal.modeling.packing import encoder_config

#: Bytes of weights above which they are stored next to the graph: an ONNX file holds at most two gigabytes.
MAX_EMBEDDED = 1_500_000_000


class ExportedClassifier(nn.Module):
    """What is exported. `folded` is a temperature that the last layer was divided by before, 1 if none."""

    def __init__(self, classifier: EnergyClassifier, temperature: float, folded: float, energy: bool) -> None:
        super().__init__()
        self.classifier, self.temperature, self.folded, self.energy = classifier, temperature, folded, energy

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits = self.classifier.encoder(input_ids=input_ids, attention_mask=attention_mask, **types).logits  # [n, C]
        if not self.energy:
            return logits / self.temperature
        return logits / self.temperature, self.classifier.energies(logits * self.folded)


def write_graph(
    path: Path, classifier: EnergyClassifier, *, temperature: float, folded: float, energy: bool, max_length: int
) -> None:
    """Write the ONNX file. The attention of the classifier is changed: pass one that is not used afterwards."""
    encoder = classifier.encoder
    if classifier.is_packed:
        encoder.base_model.set_attn_implementation("sdpa")
    size = sum(p.numel() * p.element_size() for p in classifier.parameters())
    inputs = _example_inputs(encoder_config(encoder), max_length)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=max_length)
    with quiet():
        torch.onnx.export(
            ExportedClassifier(classifier.cpu(), temperature, folded, energy).eval(), (), path, kwargs=inputs,
            input_names=list(inputs), output_names=["logits", "energy"] if energy else ["logits"], dynamo=True,
            dynamic_shapes={name: {0: batch, 1: length} for name in inputs}, external_data=size > MAX_EMBEDDED,
            verbose=False,
        )  # fmt: skip


def _example_inputs(config: Any, max_length: int) -> dict[str, Tensor]:
    """Two texts of different length, with segment ids if the model has more than one segment."""
    ids = torch.arange(5, 5 + 2 * min(7, max_length - 1)).reshape(2, -1) % config.vocab_size
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0
    segments = {"token_type_ids": torch.zeros_like(ids)} if getattr(config, "type_vocab_size", 0) > 1 else {}
    return {"input_ids": ids, "attention_mask": mask, **segments}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress what exporters print about optional packages."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
