"""An exported model with onnxruntime, tokenizers and numpy only: no torch, no transformers, no ebmcal.

ebmcal export MODEL --onnx out/ --energy
python onnx_alone.py out/ "a text" "another"
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder, *texts = sys.argv[1:]
session = onnxruntime.InferenceSession(Path(folder) / "model.onnx")
tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))  # truncates and pads
names = json.loads((Path(folder) / "config.json").read_text())["id2label"]

rows = tokenizer.encode_batch(texts)
columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
inputs = {i.name: np.array([getattr(row, columns[i.name]) for row in rows]) for i in session.get_inputs()}
outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))

powers = np.exp(outputs["logits"])  # the temperature is part of the graph
for text, p, i in zip(texts, powers / powers.sum(axis=1, keepdims=True), range(len(texts)), strict=True):
    energy = f", energy {outputs['energy'][i]:.2f}" if "energy" in outputs else ""
    print(f"{names[str(p.argmax())]} {p.max():.3f}{energy}: {text}")
