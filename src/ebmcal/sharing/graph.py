"""A classifier as an ONNX graph: token ids in, logits divided by the temperature out, and the energy on request.

    logits  f(x)[y] / T      their softmax is the calibrated P(y|x)
    energy  E(x) of the model as it was trained: of f(x), not of f(x) / T

The stock attention of transformers is exported, with padding: packing is a matter of torch.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ebmcal.models.classifier import EnergyClassifier
from ebmcal.models.energies import ENERGIES

#: Bytes of weights from which they lie beside the graph: an ONNX file holds two gigabytes at most.
LARGE = 1_500_000_000


class Graph(nn.Module):
    """What is exported: a stock classifier with its temperature, and its energy where it is wanted."""

    def __init__(self, classifier: EnergyClassifier, temperature: float, folded: float, energy: bool) -> None:
        super().__init__()
        self.classifier, self.temperature, self.folded, self.energy = classifier, temperature, folded, energy

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        model = self.classifier
        logits = model.encoder(input_ids=input_ids, attention_mask=attention_mask, **types).logits  # [n, C]
        if not self.energy:
            return logits / self.temperature
        if model.energy_head is not None:
            return logits / self.temperature, model.energy_head.energies(logits * self.folded)
        return logits / self.temperature, ENERGIES[model.energy](logits * self.folded)


def write_graph(
    path: Path, classifier: EnergyClassifier, *, temperature: float, folded: float, energy: bool, max_length: int
) -> None:
    """Write the ONNX file; `folded` is a temperature that the weights were divided by before, 1 if none."""
    encoder = classifier.encoder
    if classifier.packed:
        encoder.set_attn_implementation("sdpa")
    size = sum(p.numel() * p.element_size() for p in classifier.parameters())
    inputs = _example(encoder.config, max_length)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=max_length)
    with quietly():
        torch.onnx.export(
            Graph(classifier.cpu(), temperature, folded, energy).eval(), (), path, kwargs=inputs,
            input_names=list(inputs), output_names=["logits", "energy"] if energy else ["logits"], dynamo=True,
            dynamic_shapes={name: {0: batch, 1: length} for name in inputs}, external_data=size > LARGE, verbose=False,
        )  # fmt: skip


def _example(config: Any, max_length: int) -> dict[str, Tensor]:
    """Two texts of other lengths; segment numbers where the model knows more than one segment."""
    ids = torch.arange(5, 5 + 2 * min(7, max_length - 1)).reshape(2, -1) % config.vocab_size
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0
    segments = {"token_type_ids": torch.zeros_like(ids)} if getattr(config, "type_vocab_size", 0) > 1 else {}
    return {"input_ids": ids, "attention_mask": mask, **segments}


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without what exporters tell about packages that are not needed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
