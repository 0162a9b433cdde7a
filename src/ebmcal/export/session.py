"""An exported model on texts, with onnxruntime and tokenizers alone."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TOKENIZER, MODEL, INT8 = "tokenizer.json", "model.onnx", "model_int8.onnx"
BATCH_SIZE = 16

Text = str | tuple[str, str]


@dataclass(frozen=True)
class OnnxSession:
    """An ONNX file with its tokenizer, which truncates and pads."""

    session: Any  # onnxruntime.InferenceSession
    tokenizer: Any

    @classmethod
    def open(cls, directory: Path, name: str = MODEL) -> "OnnxSession":
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        threads = os.environ.get("OMP_NUM_THREADS", "")  # onnxruntime does not read it; 0 means all cores
        options.intra_op_num_threads = int(threads) if threads.isdigit() else 0
        session = onnxruntime.InferenceSession(directory / name, options, providers=["CPUExecutionProvider"])
        return cls(session, Tokenizer.from_file(str(directory / TOKENIZER)))

    def predict(self, texts: Sequence[Text], on_batch: Callable[[int], None] = lambda n: None) -> dict[str, np.ndarray]:
        """The outputs of the graph: logits [n, C] and, if exported, energy [n]."""
        order = np.argsort(
            [len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts], kind="stable"
        )
        parts: list[list[np.ndarray]] = []
        for start in range(0, len(texts), BATCH_SIZE):
            parts.append(self.session.run(None, self._inputs([texts[i] for i in order[start : start + BATCH_SIZE]])))
            on_batch(len(parts[-1][0]))
        names = [output.name for output in self.session.get_outputs()]
        back = np.argsort(order)
        return {name: np.concatenate(found)[back] for name, found in zip(names, zip(*parts, strict=True), strict=True)}

    def _inputs(self, texts: Sequence[Text]) -> dict[str, np.ndarray]:
        encoded = self.tokenizer.encode_batch(list(texts))
        found = {
            "input_ids": [e.ids for e in encoded],
            "attention_mask": [e.attention_mask for e in encoded],
            "token_type_ids": [e.type_ids for e in encoded],
        }
        return {i.name: np.array(found[i.name], dtype=np.int64) for i in self.session.get_inputs()}
