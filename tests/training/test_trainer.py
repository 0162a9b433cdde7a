"""Joint training on tiny models: the loss of a step, micro-batches, accumulation, divergence, resuming, PosCal."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

import ebmcal.training.trainer
from ebmcal.errors import EbmcalError, Interrupted
from ebmcal.models.classifier import EnergyClassifier
from ebmcal.models.packing import pack
from ebmcal.models.scoring import score
from ebmcal.models.tokens import encode, tokenize
from ebmcal.noise.sources import Far, Splice
from ebmcal.noise.supply import Fresh, Mixture, Stored
from ebmcal.progress import Reporter
from ebmcal.storage.sealing import SEAL
from ebmcal.training.callbacks import FREQUENCIES, last_checkpoint
from ebmcal.training.methods import METHODS, Settings, label_frequencies
from ebmcal.training.plan import Collator, Shuffled, TrainingPlan
from ebmcal.training.running import run, training_arguments
from ebmcal.training.trainer import JointTrainer
from tiny_models import SENTENCES, make_encoder, make_wordpiece

N_ROWS, RATIO = 80, 2
LABELS = np.arange(N_ROWS) % 3


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """Tokens of data and of noise (words in another order)."""
    folder, tokenizer = tmp_path_factory.mktemp("tables"), make_wordpiece()
    noise = [" ".join(reversed(s.split())) for s in SENTENCES]
    return [
        tokenize([(s, None) for s in texts], tokenizer, 64, folder / name)
        for name, texts in (("data", SENTENCES[:N_ROWS]), ("noise", noise))
    ]


class Sentences:
    """What sources ask of `Texts`, over the sentences of the data."""

    labels, is_pair = LABELS, False

    def __len__(self):
        return N_ROWS

    def rows(self, indices):
        return [(SENTENCES[i], None) for i in indices]


def make_supply(kind, table, seed=1):
    """Texts of a table in turn, fresh ones, or a mixture of both."""
    tokenizer = make_wordpiece()

    def to_tokens(rows):
        return [(np.array(ids), np.array(types)) for ids, types, _ in encode(rows, tokenizer, 64)]

    stored = Stored("reversed", table, seed)
    splice, far = (Fresh(n, s, Sentences(), to_tokens, seed) for n, s in (("splice", Splice()), ("far", Far())))
    mixture = Mixture([splice, far, stored], [0.5, 0.25, 0.25])
    return {"stored": stored, "splice": splice, "mixture": mixture}[kind]


def make_trainer(
    tables, folder, method="hidden", *, n_steps=6, batch_size=4, accumulate=1, dropout=0.0, supply="stored", **changes
):
    data, noise = tables
    uses_noise = METHODS[method].uses_noise
    torch.manual_seed(3)
    encoder = make_encoder("bert", scale=2.0, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    plan = {key: changes.pop(key) for key in ("noise_start", "noise_every") if key in changes}
    kept = {key: changes.pop(key) for key in ("evaluation", "tokens_per_micro_batch", "callbacks") if key in changes}
    settings = Settings(noise_ratio=RATIO, energy_weight=0.4)
    arguments = {
        "learning_rate": 5e-3, "warmup_steps": 1, "precision": "fp32", "seed": 1, "weight_decay": 0.1, "save_steps": 99,
    } | changes  # fmt: skip
    return JointTrainer(
        EnergyClassifier(encoder, METHODS[method].energy),
        method=METHODS[method],
        settings=settings,
        collator=Collator(data, LABELS, make_supply(supply, noise) if uses_noise else None),
        args=training_arguments(
            folder, n_steps=n_steps, batch_size=batch_size // accumulate, gradient_accumulation_steps=accumulate,
            **arguments,
        ),
        train_dataset=TrainingPlan(
            n_rows=N_ROWS, n_steps=n_steps, batch_size=batch_size, noise_ratio=RATIO if uses_noise else 0, seed=1,
            **plan,
        ),
        **kept,
    )  # fmt: skip


def train(trainer):
    run(trainer, "test", Reporter())
    return trainer


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def history(trainer, name):
    return [line[name] for line in trainer.state.log_history if name in line]


def assert_same_weights(a, b):
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert a.keys() == b.keys()
    assert not different


def test_every_step_logs_its_terms_and_they_make_up_the_loss(tables, tmp_path):
    trainer = train(make_trainer(tables, tmp_path))
    names = ("cross_entropy", "data_term", "noise_term", "energy_data", "energy_noise", "noise_accuracy", "loss")
    series = {name: np.array(history(trainer, name)) for name in names}
    assert all(len(values) == 6 for values in series.values())
    total = series["cross_entropy"] + 0.4 * (series["data_term"] + series["noise_term"])
    np.testing.assert_allclose(series["loss"], total, rtol=1e-4)
    assert np.all((series["noise_accuracy"] >= 0) & (series["noise_accuracy"] <= 1))


def test_the_first_step_is_the_papers_loss(tables, tmp_path):
    """Computed directly from the plan's texts: cross-entropy + weight (mean data term + K mean noise term)."""
    trainer = make_trainer(tables, tmp_path, n_steps=1)
    data, noise = tables
    order = Shuffled(len(noise), 1 + 1)  # the noise of a store, in the order of its seed
    with torch.no_grad():
        steps = [trainer.train_dataset[p] for p in range(4)]
        rows = [trainer.model(pack([data[s.row][0]], [data[s.row][1]])) for s in steps]
        logits, energies = (torch.cat(parts).double() for parts in zip(*rows, strict=True))
        texts = [noise[order[number]] for s in steps for number in s.noise]
        noisy = [trainer.model(pack([ids], [types]))[1] for ids, types in texts]
        noise_energies = torch.cat(noisy).double()
    labels = torch.tensor([LABELS[s.row] for s in steps])
    cross_entropy = torch.nn.functional.cross_entropy(logits, labels)
    data_term = -torch.log(1 / (1 + RATIO * torch.exp(energies))).mean()
    noise_term = -torch.log(RATIO / (RATIO + torch.exp(-noise_energies))).mean()
    expected = cross_entropy + 0.4 * (data_term + RATIO * noise_term)
    train(trainer)
    assert history(trainer, "loss")[0] == pytest.approx(expected.item(), abs=1e-4)
    assert history(trainer, "energy_noise")[0] == pytest.approx(noise_energies.mean().item(), abs=1e-5)


@pytest.mark.parametrize("method", ["baseline", "poscal", "scalar", "sharp-hidden", "noise-entropy"])
def test_one_and_several_micro_batches_train_the_same(method, tables, tmp_path):
    """Plain gradient descent: AdamW would blow rounding of tiny gradients up."""
    one = train(make_trainer(tables, tmp_path / "one", method, tokens_per_micro_batch=10**6, optim="sgd"))
    many = train(make_trainer(tables, tmp_path / "many", method, tokens_per_micro_batch=30, optim="sgd"))
    np.testing.assert_allclose(history(many, "loss"), history(one, "loss"), rtol=1e-4)
    for name, value in weights(one).items():
        torch.testing.assert_close(weights(many)[name], value, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("method", ["baseline", "hidden"])
def test_gradient_accumulation_is_a_larger_batch(method, tables, tmp_path):
    whole = train(make_trainer(tables, tmp_path / "whole", method, batch_size=8, optim="sgd"))
    parts = train(make_trainer(tables, tmp_path / "parts", method, batch_size=8, accumulate=2, optim="sgd"))
    assert parts.state.global_step == whole.state.global_step == 6
    np.testing.assert_allclose(history(parts, "loss"), history(whole, "loss"), rtol=1e-4)
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], value, atol=1e-5, rtol=1e-4, msg=name)


def test_steps_without_noise_are_cross_entropy_alone(tables, tmp_path):
    trainer = train(make_trainer(tables, tmp_path, noise_start=0.5, noise_every=2))
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert ["noise_term" in line for line in lines] == [False, False, False, True, False, True]
    assert ["data_term" in line for line in lines] == [False, False, False, True, False, True]
    for line in lines:
        if "noise_term" not in line:
            assert line["loss"] == pytest.approx(line["cross_entropy"], rel=1e-4)


@pytest.mark.parametrize(
    ("method", "plain"),
    [
        ("hidden", "baseline"),
        ("noise-entropy", "baseline"),
        ("hidden-cutmix", "baseline"),
        ("hidden-smoothing", "label-smoothing"),
    ],
)
def test_the_start_of_a_noisy_run_is_the_method_without_noise(method, plain, tables, tmp_path):
    without = train(make_trainer(tables, tmp_path / "without", plain))
    late = train(make_trainer(tables, tmp_path / "late", method, noise_start=0.99))
    assert history(late, "loss") == history(without, "loss")


def test_each_source_of_a_mixture_is_told_apart_by_itself(tables, tmp_path):
    """Eight noise texts a step: of four, two and two, each over all pairs with the data texts of the step."""
    trainer = train(make_trainer(tables, tmp_path, supply="mixture"))
    each = [history(trainer, f"noise_accuracy_{name}") for name in ("splice", "far", "reversed")]
    assert [len(values) for values in each] == [6, 6, 6]
    together = 0.5 * np.array(each[0]) + 0.25 * np.array(each[1]) + 0.25 * np.array(each[2])
    np.testing.assert_allclose(history(trainer, "noise_accuracy"), together, atol=1e-3)
    one = train(make_trainer(tables, tmp_path / "one", supply="splice"))
    assert history(one, "noise_accuracy_splice") == history(one, "noise_accuracy")


@pytest.mark.parametrize("method", ["cutmix", "hidden-cutmix"])
def test_spliced_noise_has_the_labels_of_its_parts(method, tables, tmp_path):
    """Of a mixture, the noise that was not spliced has none."""
    trainer = make_trainer(tables, tmp_path, method, supply="mixture")
    batch = trainer.data_collator([trainer.train_dataset[p] for p in range(4)])
    spliced = batch["labels"] == -1
    assert spliced.sum() == 4
    assert (batch["mixed"][~spliced] == -1).all()
    assert (batch["mixed"][spliced][:, :2] >= 0).all()
    train(trainer)
    assert len(history(trainer, "mixed_term")) == 6


class At(TrainerCallback):
    """Does something at the beginning of a step."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.step:
            self.action()


def spoil(trainer, value):
    with torch.no_grad():
        trainer.model.encoder.classifier.bias.fill_(value)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (float("nan"), "cross_entropy is nan"),
        (1e6, r"energy is 100000\d"),
        (float("inf"), "cross_entropy is (nan|inf)"),
    ],
)
def test_divergence_stops_with_step_and_term_and_keeps_the_checkpoint(value, what, tables, tmp_path):
    trainer = make_trainer(tables, tmp_path, save_steps=2)
    trainer.add_callback(At(4, lambda: spoil(trainer, value)))
    with pytest.raises(EbmcalError, match=rf"diverged at step 5: {what}.*checkpoint is kept. Try a smaller learning"):
        train(trainer)
    kept = last_checkpoint(tmp_path)
    assert kept.name == "checkpoint-4"
    stored = load_file(kept / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in stored.values())


def test_a_gradient_that_overflows_spoils_no_checkpoint(tables, tmp_path):
    """The loss of the step is finite; its update would make every weight NaN, and the checkpoint of step 4 useless."""
    trainer = make_trainer(tables, tmp_path, save_steps=2)
    weight = trainer.model.encoder.classifier.weight
    trainer.add_callback(At(3, lambda: weight.register_hook(lambda gradient: gradient * float("inf"))))
    with pytest.raises(EbmcalError, match=r"diverged at step 4: the norm of the gradient is (nan|inf)\."):
        train(trainer)
    kept = last_checkpoint(tmp_path)
    assert kept.name == "checkpoint-2"
    assert all(torch.isfinite(value).all() for value in load_file(kept / "model.safetensors").values())


def test_a_figure_that_is_not_finite_is_named_as_divergence(tables, tmp_path):
    trainer = make_trainer(tables, tmp_path, evaluation=lambda model: {"nll": float("nan")}, eval_steps=2)
    with pytest.raises(EbmcalError, match="diverged at step 2: nll is nan"):
        train(trainer)


def test_weights_spoilt_by_the_last_step_are_not_kept_as_a_model(tables, tmp_path):
    trainer, spoiling = make_trainer(tables, tmp_path), TrainerCallback()
    spoiling.on_train_end = lambda *_, **__: spoil(trainer, float("nan"))
    trainer.add_callback(spoiling)
    with pytest.raises(EbmcalError, match="weights are not finite"):
        train(trainer)


def test_a_loss_that_overflows_is_named(tables, tmp_path):
    """Every term is finite; their weighted sum is not."""
    trainer = make_trainer(tables, tmp_path)
    trainer.settings.energy_weight = 3e38
    with pytest.raises(EbmcalError, match="diverged at step 1: loss is inf"):
        train(trainer)


class Lines(Reporter):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


class Crash(Exception):
    pass


def crash():
    raise Crash


@pytest.mark.parametrize(
    ("method", "supply"),
    [
        ("baseline", "stored"),
        ("poscal", "stored"),
        ("manifold", "stored"),
        ("sngp", "stored"),
        ("scalar", "stored"),
        ("hidden", "stored"),
        ("hidden", "splice"),
        ("hidden", "mixture"),
        ("hidden-cutmix", "mixture"),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(method, supply, tables, tmp_path):
    """Dropout included. It goes on from the checkpoint of step 3, between two refreshes of PosCal's table."""
    settings = {"method": method, "supply": supply, "n_steps": 8, "dropout": 0.2, "save_steps": 3}
    whole = train(make_trainer(tables, tmp_path / "whole", **settings))
    broken = make_trainer(tables, tmp_path / "broken", **settings)
    broken.add_callback(At(5, crash))
    with pytest.raises(Crash):
        train(broken)
    torch.manual_seed(99)
    resumed = train(make_trainer(tables, tmp_path / "broken", **settings))
    assert_same_weights(weights(resumed), weights(whole))
    assert history(resumed, "loss") == history(whole, "loss")


def test_seeds_make_a_run_repeatable_and_differ(tables, tmp_path):
    runs = [
        weights(train(make_trainer(tables, tmp_path / str(i), dropout=0.2, seed=s))) for i, s in enumerate((1, 1, 2))
    ]
    assert_same_weights(runs[0], runs[1])
    assert any(not torch.equal(runs[0][name], runs[2][name]) for name in runs[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_a_checkpoint_and_the_run_goes_on_later(number, tables, tmp_path):
    settings = {"n_steps": 8, "dropout": 0.2}
    whole = train(make_trainer(tables, tmp_path / "whole", **settings))
    stopped = make_trainer(tables, tmp_path / "stopped", **settings)
    stopped.add_callback(At(2, lambda: os.kill(os.getpid(), number)))
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match="stopped at step 3 of 8"):
        train(stopped)
    assert signal.getsignal(number) is before
    assert last_checkpoint(tmp_path / "stopped").name == "checkpoint-3"
    resumed = train(make_trainer(tables, tmp_path / "stopped", **settings))
    assert_same_weights(weights(resumed), weights(whole))


def test_a_run_that_was_trained_to_its_end_is_only_loaded(tables, tmp_path):
    done = train(make_trainer(tables, tmp_path))
    again = make_trainer(tables, tmp_path)
    again.add_callback(At(6, crash))
    assert_same_weights(weights(train(again)), weights(done))


def test_damaged_checkpoints_are_passed_over(tables, tmp_path):
    train(make_trainer(tables, tmp_path, save_steps=2))
    newest, older = tmp_path / "checkpoint-6", tmp_path / "checkpoint-4"
    assert last_checkpoint(tmp_path) == newest
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (newest / "model.safetensors").write_bytes(content)
    assert last_checkpoint(tmp_path) == older
    (older / SEAL).unlink()  # cut off while it was written
    assert last_checkpoint(tmp_path) is None


def test_training_goes_on_from_the_older_checkpoint(tables, tmp_path):
    whole = train(make_trainer(tables, tmp_path / "whole", dropout=0.2, save_steps=2))
    trainer = make_trainer(tables, tmp_path / "damaged", dropout=0.2, save_steps=2)
    trainer.add_callback(At(5, crash))
    with pytest.raises(Crash):
        train(trainer)
    shutil.copytree(tmp_path / "damaged" / "checkpoint-4", tmp_path / "damaged" / "checkpoint-5")
    (tmp_path / "damaged" / "checkpoint-4" / "optimizer.pt").write_bytes(b"half")
    (tmp_path / "damaged" / "checkpoint-5" / "trainer_state.json").unlink()
    resumed, lines = make_trainer(tables, tmp_path / "damaged", dropout=0.2, save_steps=2), Lines()
    run(resumed, "test", lines)
    assert lines.lines[:3] == [
        "test: checkpoint-5 is damaged or was cut off (trainer_state.json is missing): not used",
        "test: checkpoint-4 is damaged or was cut off (optimizer.pt changed): not used",
        "test: goes on at step 2 of 6",
    ]
    assert not (tmp_path / "damaged" / "checkpoint-5").exists()  # it would push a good one out
    assert_same_weights(weights(resumed), weights(whole))


def test_poscal_refreshes_its_table_ten_times_an_epoch(tables, tmp_path, monkeypatch):
    """80 rows in batches of 4: 20 steps an epoch, so every second step."""
    steps, seen = [], []
    trainer = make_trainer(tables, tmp_path, "poscal", n_steps=41)

    def noted(probs, labels, n_bins):
        steps.append(trainer.state.global_step)
        seen.append((probs, labels))
        return label_frequencies(probs, labels, n_bins)

    monkeypatch.setattr(ebmcal.training.trainer, "label_frequencies", noted)
    train(trainer)
    assert steps == list(range(2, 41, 2))
    assert [sum(20 * e <= s < 20 * e + 20 for s in steps) for e in (0, 1)] == [9, 10]  # none before the first step
    probs, labels = seen[-1]
    assert probs.shape == (N_ROWS, 3)
    assert labels.tolist() == LABELS.tolist()
    with_term = ["posterior_term" in line for line in trainer.state.log_history if "loss" in line]
    assert with_term == [False, False] + [True] * 39


def test_poscals_table_is_of_the_model_as_it_is(tables, tmp_path):
    trainer = make_trainer(tables, tmp_path, "poscal", n_steps=3, save_steps=2)
    found = []

    def keep():
        probs = torch.softmax(torch.from_numpy(score(trainer.model, tables[0])[0]), -1)
        found.append(label_frequencies(probs, torch.from_numpy(LABELS), 20))

    trainer.add_callback(At(2, keep))
    train(trainer)
    torch.testing.assert_close(trainer.settings.frequencies, found[0], equal_nan=True)
    stored = load_file(tmp_path / "checkpoint-3" / FREQUENCIES)["frequencies"]
    torch.testing.assert_close(stored, found[0], equal_nan=True)


def test_evaluation_is_recorded_over_the_steps(tables, tmp_path):
    models = []
    trainer = make_trainer(
        tables, tmp_path, eval_steps=2, evaluation=lambda model: models.append(model) or {"accuracy": len(models) / 10}
    )
    train(trainer)
    lines = [line for line in trainer.state.log_history if "eval_accuracy" in line]
    assert [(line["step"], line["eval_accuracy"]) for line in lines] == [(2, 0.1), (4, 0.2), (6, 0.3)]
    assert all(isinstance(model, EnergyClassifier) for model in models)


def test_the_users_own_callbacks_and_schedule(tables, tmp_path):
    class Count(TrainerCallback):
        n = 0

        def on_step_end(self, *_, **__):
            self.n += 1

    count = Count()
    trainer = train(make_trainer(tables, tmp_path, callbacks=[count], schedule="cosine", warmup_steps=2))
    assert count.n == 6
    rates = history(trainer, "learning_rate")
    assert max(rates) == pytest.approx(5e-3)
    assert rates[-1] < 2e-3


def test_training_learns(tables, tmp_path):
    trainer = train(make_trainer(tables, tmp_path, n_steps=60, batch_size=8, learning_rate=1e-2))
    terms = np.array(history(trainer, "data_term")) + history(trainer, "noise_term")
    assert terms[-10:].mean() < terms[:10].mean()
    assert np.mean(history(trainer, "noise_accuracy")[-10:]) > 0.75
    assert np.mean(history(trainer, "energy_data")[-10:]) < np.mean(history(trainer, "energy_noise")[-10:])


def test_bf16_trains_with_float32_logits(tables, tmp_path):
    trainer = make_trainer(tables, tmp_path, n_steps=1, batch_size=2, precision="bf16")
    kinds = []
    trainer.model.register_forward_hook(lambda _, __, out: kinds.extend(o.dtype for o in out))
    train(trainer)
    assert set(kinds) == {torch.float32}
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}


def test_bf16_has_the_loss_curve_of_fp32(tables, tmp_path):
    """Over 200 steps, in windows of 20: rounding moves the loss by hundredths of its fall."""
    curves = [
        np.reshape(history(train(make_trainer(
            tables, tmp_path / precision, n_steps=200, batch_size=8, learning_rate=5e-3, precision=precision
        )), "loss"), (-1, 20)).mean(axis=1)
        for precision in ("fp32", "bf16")
    ]  # fmt: skip
    fall = curves[0][0] - curves[0][-1]
    assert fall > 0.3 * curves[0][0]
    assert 0 < np.abs(curves[1] - curves[0]).max() < 0.01 * fall


def test_batches_must_divide_among_the_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(EbmcalError, match="A batch of 4 cannot be shared by 3 processes"):
        training_arguments(
            tmp_path, n_steps=1, batch_size=4, learning_rate=1, warmup_steps=0, precision="fp32", seed=0,
            weight_decay=0, save_steps=1,
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "budget", "supply"), [("hidden", 10**6, "stored"), ("scalar", 30, "stored"), ("hidden", 30, "mixture")]
)
def test_two_processes_train_like_one(method, budget, supply, tables, tmp_path):
    """torchrun on two processes, with and without micro-batches and noise: the weights of one process."""
    settings = {
        "method": method, "supply": supply, "optim": "sgd", "tokens_per_micro_batch": budget, "noise_start": 0.5,
    }  # fmt: skip
    one = train(make_trainer(tables, tmp_path / "one", **settings))
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}\n"
        "from pathlib import Path\n"
        "import test_trainer as t\n"
        "from ebmcal.models.tokens import TokenTable\n"
        f"tables = [TokenTable.open(Path(p)) for p in {[str(Path(t.ids.filename).parent) for t in tables]!r}]\n"
        f"t.train(t.make_trainer(tables, Path(sys.argv[1]), **{settings!r}))\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29511"]
    subprocess.run([*command, script, tmp_path / "two"], check=True, capture_output=True, timeout=300)
    two = load_file(tmp_path / "two" / "checkpoint-6" / "model.safetensors")
    for name, value in weights(one).items():
        torch.testing.assert_close(two[name], value, atol=1e-5, rtol=1e-4, msg=name)
    state = json.loads((tmp_path / "two" / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["global_step"] == 6
