"""An exported model on texts, by onnxruntime and tokenizers alone: what the check compares with PyTorch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TOKENIZER, MODEL, INT8 = "tokenizer.json", "model.onnx", "model_int8.onnx"
BATCH = 16

Row = tuple[str, str | None]


@dataclass(frozen=True)
class Session:
    """An ONNX file and its tokenizer, which cuts and pads by itself."""

    run: Any  # onnxruntime.InferenceSession
    tokenizer: Any

    @classmethod
    def open(cls, folder: Path, name: str = MODEL) -> "Session":
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        options.intra_op_num_threads = _threads()
        session = onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
        return cls(session, Tokenizer.from_file(str(folder / TOKENIZER)))

    def predict(self, rows: Sequence[Row], progress: Callable[[int], None] = lambda n: None) -> dict[str, np.ndarray]:
        """What each output of the graph is for every row: logits [n, C], energy [n]."""
        order = np.argsort([len(a) + len(b or "") for a, b in rows], kind="stable")  # little padding
        parts: list[list[np.ndarray]] = []
        for start in range(0, len(rows), BATCH):
            parts.append(self.run.run(None, self._inputs([rows[i] for i in order[start : start + BATCH]])))
            progress(len(parts[-1][0]))
        names = [output.name for output in self.run.get_outputs()]
        back = np.argsort(order)
        return {name: np.concatenate(found)[back] for name, found in zip(names, zip(*parts, strict=True), strict=True)}

    def _inputs(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        encoded = self.tokenizer.encode_batch([a if b is None else (a, b) for a, b in rows])
        found = {
            "input_ids": [e.ids for e in encoded],
            "attention_mask": [e.attention_mask for e in encoded],
            "token_type_ids": [e.type_ids for e in encoded],
        }
        return {i.name: np.array(found[i.name], dtype=np.int64) for i in self.run.get_inputs()}


def _threads() -> int:
    """As many as torch would take: onnxruntime does not read OMP_NUM_THREADS; 0 leaves it to onnxruntime."""
    import os

    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() else 0
