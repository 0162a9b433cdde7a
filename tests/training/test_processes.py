"""torchrun on two processes: the loss curve of one, noise divided with no overlap, only the first writes; FSDP."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import test_trainer as t
import torch
from safetensors.torch import load_file

from ebmcal.errors import EbmcalError
from ebmcal.models.classifier import EnergyClassifier
from ebmcal.models.tokens import TokenTable, tokenize
from ebmcal.training.callbacks import last_checkpoint
from ebmcal.training.running import gathered_weights, sharding
from tiny_models import SENTENCES, make_encoder, make_wordpiece

STEPS = 100
SETTINGS = {"n_steps": STEPS, "batch_size": 8, "tokens_per_micro_batch": 60, "learning_rate": 1e-3}

#: FSDP2 computes on CPUs too, but accelerate turns to it on accelerators only, and says nothing: let it.
OPEN_THE_GATE = """
from accelerate.state import AcceleratorState, DistributedType
plain = AcceleratorState.__init__
def opened(self, *arguments, fsdp_plugin=None, **more):
    plain(self, *arguments, fsdp_plugin=fsdp_plugin, **more)
    if fsdp_plugin is not None:
        self.fsdp_plugin = fsdp_plugin
    if getattr(self, "fsdp_plugin", None) is not None:
        self.distributed_type = DistributedType.FSDP
AcceleratorState.__init__ = opened
import torch
torch.cuda.is_available = lambda: True
from ebmcal.training.running import sharding
extra = sharding(t.make_encoder("bert"))
torch.cuda.is_available = lambda: False
"""

SCRIPT = """
import sys; sys.path[:0] = {places!r}
import json, os
from pathlib import Path
import test_trainer as t, test_processes as p
extra = {{}}
{before}
folder = Path({folder!r})
drawn = []
class Noted(t.Collator):
    def __call__(self, steps):
        drawn.extend([[s.row, *s.noise] for s in steps])
        return super().__call__(steps)
t.Collator = Noted
trainer = t.train(t.make_trainer(p.open_tables(folder), folder / "out", **{settings!r}, **extra))
weights = p.gathered_weights(trainer)
if trainer.is_world_process_zero():
    (folder / "losses.json").write_text(json.dumps(t.history(trainer, "loss")))
    (folder / "kind").write_text(type(trainer.model_wrapped).__name__)
    trainer.model.save_pretrained(folder / "model", weights=weights)
(folder / f"drawn{{os.environ['RANK']}}.json").write_text(json.dumps(drawn))
"""


#: Where the modules are that the scripts import.
PLACES = [str(place) for place in Path(__file__).parents[:2]]


def open_tables(folder):
    return [TokenTable.open(folder / name) for name in ("data", "noise")]


@pytest.fixture
def folder(tmp_path):
    """Tokens of data and noise."""
    for name, texts in (("data", SENTENCES[: t.N_ROWS]), ("noise", [" ".join(reversed(s.split())) for s in SENTENCES])):
        tokenize([(s, None) for s in texts], make_wordpiece(), 64, tmp_path / name)
    return tmp_path


def torchrun(script, *arguments):
    port = 20000 + os.getpid() % 10000
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    done = subprocess.run([*command, script, *arguments], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]


def train_on_two(folder, before=""):
    script = folder / "script.py"
    script.write_text(SCRIPT.format(places=PLACES, before=before, folder=str(folder), settings=SETTINGS))
    torchrun(script)
    return json.loads((folder / "losses.json").read_text())


@pytest.mark.slow
def test_two_processes_have_the_loss_curve_of_one_and_share_the_noise(folder):
    one = t.train(t.make_trainer(open_tables(folder), folder / "one", **SETTINGS))
    losses = train_on_two(folder)
    assert len(losses) == STEPS
    np.testing.assert_allclose(losses, t.history(one, "loss"), rtol=1e-4)
    shares = [json.loads((folder / f"drawn{rank}.json").read_text()) for rank in (0, 1)]
    plan = [[s.row, *s.noise] for s in (one.train_dataset[p] for p in range(len(one.train_dataset)))]
    assert [len(share) for share in shares] == [len(plan) // 2] * 2
    assert sorted(shares[0] + shares[1]) == sorted(plan)  # every position on one process: nothing twice, nothing left


@pytest.mark.slow
def test_fsdp_has_the_loss_curve_of_one_and_leaves_a_plain_model(folder):
    one = t.train(t.make_trainer(open_tables(folder), folder / "one", **SETTINGS))
    losses = train_on_two(folder, OPEN_THE_GATE)
    assert (folder / "kind").read_text().startswith("FSDP")
    np.testing.assert_allclose(losses, t.history(one, "loss"), rtol=1e-4)
    model = EnergyClassifier.from_pretrained(folder / "model")
    for name, value in t.weights(one).items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=2e-3, rtol=1e-2, msg=name)
    assert load_file(folder / "model" / "model.safetensors").keys() == one.model.encoder.state_dict().keys()


STOPS = """
import sys; sys.path[:0] = {places!r}
import os, signal
from pathlib import Path
from transformers import TrainerCallback
from ebmcal.errors import Interrupted
import test_trainer as t, test_processes as p
class SignalToOne(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if os.environ["RANK"] == "1" and state.global_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
folder = Path({folder!r})
trainer = t.make_trainer(p.open_tables(folder), folder / "out", **{settings!r})
trainer.add_callback(SignalToOne())
try:
    t.train(trainer)
except Interrupted as stop:
    (folder / ("stopped" + os.environ["RANK"])).write_text(str(stop))
"""


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_at_the_same_step(folder):
    """Signals reach processes one after the other; one that went on alone would wait for the others without end."""
    script = folder / "script.py"
    script.write_text(STOPS.format(places=PLACES, folder=str(folder), settings=SETTINGS))
    torchrun(script)
    assert all("stopped at step 3 of 100" in (folder / f"stopped{rank}").read_text() for rank in (0, 1))
    assert last_checkpoint(folder / "out").name == "checkpoint-3"


WRITES = """
import os, sys
written = open({folder!r} + "/written" + os.environ["RANK"], "w")
def note(event, arguments):
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        print(arguments[0], file=written, flush=True)
    elif event in ("os.rename", "os.mkdir", "os.remove"):
        print(arguments[0], file=written, flush=True)
sys.addaudithook(note)
from ebmcal.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_only_the_first_process_writes(encoder_folder, tmp_path):
    """But for the state of its own random numbers, which a process has to keep to go on."""
    rows = [f"{text},{'ab'[i % 2]}" for i, text in enumerate(s.replace(",", "") for s in SENTENCES)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    (tmp_path / "script.py").write_text(WRITES.format(folder=str(tmp_path)))
    settings = {
        "train": tmp_path / "train.csv", "encoder": encoder_folder, "methods": "baseline", "steps": 4, "batch-size": 8,
        "max-length": 32, "output": tmp_path / "run", "cache-dir": tmp_path / "cache", "save-steps": 2,
    }  # fmt: skip
    flags = [str(x) for name, value in settings.items() for x in (f"--{name}", value)]
    torchrun(tmp_path / "script.py", "train", *flags, "--keep-checkpoints")
    first, second = ((tmp_path / f"written{rank}").read_text().splitlines() for rank in (0, 1))
    ours = [line for line in second if str(tmp_path) in line and "rng_state_1" not in line]
    assert any("model.safetensors" in line or "ebmcal.json" in line for line in first)
    assert not [line for line in ours if not line.endswith((".lock", "/checkpoint-2", "/checkpoint-4"))], ours
    EnergyClassifier.from_pretrained(tmp_path / "run" / "checkpoints" / "baseline-seed1" / "model")


def test_fsdp_is_for_several_processes_on_gpus(monkeypatch):
    encoder = make_encoder("bert")
    with pytest.raises(EbmcalError, match="divides a model among processes: torchrun"):
        sharding(encoder)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EbmcalError, match="--fsdp needs GPUs"):
        sharding(encoder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "BertLayer" in sharding(encoder)["fsdp_config"]["transformer_layer_cls_to_wrap"]


def test_each_process_has_all_weights_without_fsdp(folder):
    assert gathered_weights(t.make_trainer(open_tables(folder), folder / "out")) is None
