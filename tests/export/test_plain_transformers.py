"""A model with a folded temperature in a process without ebmcal: transformers gives the calibrated probabilities."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import ebmcal
from tiny_models import SENTENCES, save_encoder

NAMES = ("bad", "fair", "good")
SCRIPT = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ebmcal":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocker())
from transformers import pipeline
found = pipeline("text-classification", model=sys.argv[1], top_k=None)(sys.argv[2:])
assert not [name for name in sys.modules if name.split(".")[0] == "ebmcal"]
print(json.dumps([{s["label"]: s["score"] for s in scores} for scores in found]))
"""


@pytest.mark.slow
def test_the_pipeline_gives_the_folded_probabilities(tmp_path):
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)}}
    folder = save_encoder(tmp_path / "model", **names)
    found = ebmcal.load(folder).predict(SENTENCES)
    labels = [NAMES[i] for i in (found.predicted + [i % 3 == 0 for i in range(len(SENTENCES))]) % 3]
    model = ebmcal.load(folder).calibrate((SENTENCES, labels))
    model.save(tmp_path / "folded", fold=True)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path / "folded"), *SENTENCES[:3]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout.splitlines()[-1])
    for ours, raw, theirs in zip(model.predict_proba(SENTENCES[:3]), found.probs[:3], scores, strict=True):
        assert theirs == pytest.approx(dict(zip(NAMES, ours, strict=True)), abs=1e-5)
        assert theirs != pytest.approx(dict(zip(NAMES, raw, strict=True)), abs=1e-2)
