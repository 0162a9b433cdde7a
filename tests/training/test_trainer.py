"""`EnergyTrainer`: losses, checkpoints, resuming, users' scripts."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForSequenceClassification, TrainerCallback, TrainingArguments

import ebmcal
from ebmcal import EnergyClassifier, EnergyConfig, EnergyTrainer
from ebmcal.errors import EbmcalError, Interrupted
from ebmcal.methods import METHODS, find_method, register_energy
from ebmcal.progress import Reporter
from ebmcal.training.runtime import fit
from tiny_models import SENTENCES, make_encoder, make_wordpiece

TEXTS = SENTENCES[:96]
LABELS = [i % 3 for i in range(len(TEXTS))]
REFERENCE = json.loads((Path(__file__).parent / "reference_losses.json").read_text())


def train_set(n=96):
    return Dataset.from_dict({"text": TEXTS[:n], "label": LABELS[:n]})


def make_trainer(directory, method="hidden", dataset=None, model=None, noise=None, noise_setting="splice", **changes):
    settings = {
        "max_steps": 6, "per_device_train_batch_size": 16, "learning_rate": 1e-4, "seed": 5, "logging_steps": 1,
        "use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
        "dataloader_drop_last": True, "max_length": 64, "noise_every": 1,
    }  # fmt: skip
    if model is None:
        encoder = make_encoder("bert")
        torch.manual_seed(3)
        register_energy(find_method(method).energy)
        model = EnergyClassifier(encoder, find_method(method).energy, changes.get("centered", True))
    args = EnergyConfig(str(directory), method=method, noise=noise_setting, **settings | changes)
    dataset = train_set() if dataset is None else dataset
    return EnergyTrainer(model, args, train_dataset=dataset, processing_class=make_wordpiece(), noise=noise)


def without_dropout():
    encoder = make_encoder("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    torch.manual_seed(3)
    return EnergyClassifier(encoder, "hidden")


def losses(trainer):
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


@pytest.mark.parametrize("method", REFERENCE)
def test_losses_match_the_recorded_reference(tmp_path, method):
    """Losses of an independent implementation of the same trainings, with its own batching and noise code."""
    weight = 3.0 if method == "poscal" else 1.0  # the reference sums PosCal's term over the three classes
    trainer = make_trainer(
        tmp_path, method, max_steps=24, warmup_steps=2, weight_decay=0.1, noise_ratio=2, energy_weight=0.5,
        noise_every=1, energy_schedule="constant", centered=False, poscal_weight=weight,
    )  # fmt: skip
    trainer.train()
    np.testing.assert_allclose(losses(trainer), REFERENCE[method], atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "masked-lm"])
def test_every_method_trains_and_saves_a_model_that_predicts_the_same(tmp_path, method):
    trainer = make_trainer(tmp_path / "work", method)
    before = [p.detach().clone() for p in trainer.classifier.encoder.parameters()]
    trainer.train()
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.classifier.encoder.parameters(), strict=True))
    assert np.isfinite(losses(trainer)).all()
    trainer.save_model(str(tmp_path / "model"))
    outputs, _ = trainer.predict_train()
    p = ebmcal.load(tmp_path / "model").predict(TEXTS)
    np.testing.assert_allclose(p.logits, outputs.logits, atol=1e-5)
    np.testing.assert_allclose(p.energies, outputs.energies, atol=1e-5)


def test_the_logs_have_every_term_and_the_noise_auroc(tmp_path):
    trainer = make_trainer(tmp_path, "hidden", energy_weight=0.5, energy_schedule="constant")
    trainer.train()
    line = trainer.state.log_history[0]
    assert line["loss"] == pytest.approx(line["cross_entropy"] + 0.5 * (line["nce_data"] + line["nce_noise"]), rel=1e-5)
    assert 0 <= line["noise_auroc"] <= 1
    assert "largest_energy" not in line


@pytest.fixture
def cores():
    """Sets the number of torch's threads for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", ["baseline", "hidden", "hidden-entropy", "focal", "poscal"])
def test_two_threads_share_a_step_and_compute_the_same_loss(tmp_path, method, cores):
    found = {}
    for n in (1, 2):
        cores(n)
        trainer = make_trainer(tmp_path / str(n), method, model=without_dropout(), max_steps=10)
        assert trainer.data_collator.is_parallel == (n == 2)
        trainer.train()
        found[n] = losses(trainer), torch.cat([p.detach().flatten() for p in trainer.classifier.parameters()])
    assert found[2][0] == pytest.approx(found[1][0], rel=1e-4)
    assert found[2][0] != found[1][0]  # in another order, so that two threads were in fact used
    torch.testing.assert_close(found[2][1], found[1][1], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("method", ["scalar", "sngp", "laplace", "mixup", "manifold"])
def test_methods_that_keep_state_or_draw_numbers_are_not_divided(tmp_path, method, cores):
    cores(2)
    assert not make_trainer(tmp_path, method).data_collator.is_parallel


def test_accumulated_gradients_are_not_divided(tmp_path, cores):
    cores(2)
    assert not make_trainer(tmp_path, "hidden", gradient_accumulation_steps=2).data_collator.is_parallel


@pytest.mark.parametrize(
    ("method", "n_cores"), [("hidden", 1), ("hidden", 2), ("hidden", 4), ("baseline", 2), ("poscal", 1), ("sngp", 1)]
)
def test_a_resumed_training_ends_with_the_same_weights(tmp_path, method, n_cores, cores):
    cores(n_cores)
    settings = {"max_steps": 8, "poscal_rows": 10}  # a sample of the rows, the same after a resume
    whole = make_trainer(tmp_path / "whole", method, **settings)
    whole.train()
    first = make_trainer(tmp_path / "parts", method, save_strategy="steps", save_steps=5, **settings)
    first.train()
    second = make_trainer(tmp_path / "parts", method, **settings)
    second.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-5"))
    for (name, a), b in zip(
        whole.classifier.state_dict().items(), second.classifier.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(a, b, atol=0, rtol=0, msg=name)


def test_poscal_predicts_at_most_so_many_rows_and_others_at_the_next_update(tmp_path, monkeypatch):
    trainer, drawn = make_trainer(tmp_path, "poscal", max_steps=8, poscal_rows=7), []
    predict = trainer.predict_train
    monkeypatch.setattr(trainer, "predict_train", lambda rows: drawn.append(rows.tolist()) or predict(rows))
    trainer.train()
    assert {len(set(rows)) for rows in drawn} == {7}
    assert len({tuple(rows) for rows in drawn}) == len(drawn) > 1


@pytest.mark.parametrize("step", [4, 8])  # 8 is the last one
def test_a_signal_saves_a_checkpoint_from_which_the_same_call_continues(tmp_path, step):
    class Stop(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == step - 1:
                os.kill(os.getpid(), signal.SIGTERM)

    whole = make_trainer(tmp_path / "whole", "laplace", max_steps=8)
    fit(whole, "whole", Reporter())
    stopped = make_trainer(tmp_path / "parts", "laplace", max_steps=8, save_strategy="steps", save_steps=100)
    stopped.add_callback(Stop())
    with pytest.raises(Interrupted, match=f"parts: stopped at step {step} of 8; a checkpoint is saved"):
        fit(stopped, "parts", Reporter())
    assert not stopped.classifier.energy_head.variances.any()  # the method has not finished
    resumed = make_trainer(tmp_path / "parts", "laplace", max_steps=8)
    fit(resumed, "parts", Reporter())
    for a, b in zip(whole.classifier.state_dict().values(), resumed.classifier.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)


@pytest.mark.parametrize(
    "changes", [{"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8}, {"tokens_per_micro_batch": 64}]
)
def test_accumulation_and_micro_batches_do_not_change_the_losses(tmp_path, changes):
    plain, other = make_trainer(tmp_path / "a"), make_trainer(tmp_path / "b", **changes)
    plain.train()
    other.train()
    np.testing.assert_allclose(losses(plain), losses(other), atol=1e-4)


def test_a_checkpoint_loads_without_ebmcal(tmp_path):
    trainer = make_trainer(tmp_path / "work")
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    encoded = make_wordpiece()(TEXTS[:8], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = plain(**encoded).logits.numpy()
    np.testing.assert_allclose(ebmcal.load(tmp_path / "model").predict(TEXTS[:8]).logits, logits, atol=1e-5)


def test_a_saved_model_knows_its_training_rows(tmp_path):
    trainer = make_trainer(tmp_path / "work", max_steps=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    with pytest.raises(EbmcalError, match="are training rows of the model"):
        ebmcal.load(tmp_path / "model").calibrate(train_set(), text_column="text", label_column="label")


class Synchronisations(TorchDispatchMode):
    """Records operations whose result the CPU needs: on a GPU each of them waits for all queued work."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put_") else ()
        has_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        if name in ("_local_scalar_dense", "nonzero", "masked_select") or has_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", ["baseline", "hidden", "scalar", "noise-entropy", "poscal", "focal"])
def test_a_step_never_waits_for_the_device(tmp_path, method):
    trainer = make_trainer(tmp_path, method, noise_setting="splice 0.5, unrelated 0.5")
    trainer.current_gradient_accumulation_steps = 1
    batch = next(iter(trainer.get_train_dataloader()))
    with Synchronisations() as counter:
        trainer.training_step(trainer.model, batch)
    assert counter.found == []


def test_noise_in_every_second_step(tmp_path):
    trainer = make_trainer(tmp_path, noise_every=2, max_steps=4)
    trainer.train()
    has_noise = ["nce_noise" in line for line in trainer.state.log_history if "loss" in line]
    assert has_noise == [True, False, True, False]


def test_a_linear_energy_schedule_ends_near_zero():
    args = EnergyConfig("out", energy_schedule="linear", energy_weight=0.4, use_cpu=True, report_to="none")
    assert args.energy_weight_at(0.0) == 0.4
    assert args.energy_weight_at(1.0) == 0.0


def test_a_tokenised_dataset_with_padding_trains_like_its_texts(tmp_path):
    tokenizer = make_wordpiece()
    padded = train_set().map(lambda rows: tokenizer(rows["text"], padding="max_length", max_length=32), batched=True)
    a, b = make_trainer(tmp_path / "a"), make_trainer(tmp_path / "b", dataset=padded)
    a.train()
    b.train()
    np.testing.assert_allclose(losses(a), losses(b), atol=1e-6)


def test_a_dataset_of_noise_texts(tmp_path):
    noise = Dataset.from_dict({"text": [f"{text} so" for text in TEXTS[:20]]})
    trainer = make_trainer(tmp_path, noise=noise)
    trainer.train()
    assert "nce_noise" in trainer.state.log_history[0]


def test_pairs_without_a_column_named_text(tmp_path):
    pairs = Dataset.from_dict({"premise": TEXTS, "claim": TEXTS[::-1], "labels": LABELS})
    trainer = make_trainer(tmp_path, dataset=pairs)
    trainer.train()
    assert np.isfinite(losses(trainer)).all()


def test_evaluation_keeps_the_order_of_rows_and_uses_compute_metrics(tmp_path):
    args = EnergyConfig(
        str(tmp_path), max_steps=1, per_device_train_batch_size=16, use_cpu=True, report_to="none", disable_tqdm=True
    )
    trainer = EnergyTrainer(
        make_encoder("bert"), args, train_dataset=train_set(), eval_dataset=train_set(20),
        processing_class=make_wordpiece(), compute_metrics=ebmcal.metrics.compute_metrics,
    )  # fmt: skip
    result = trainer.predict(trainer.eval_dataset)
    trainer.save_model(str(tmp_path / "model"))
    np.testing.assert_allclose(
        result.predictions, ebmcal.load(tmp_path / "model").predict(TEXTS[:20]).logits, atol=1e-5
    )
    assert {"eval_loss", "eval_accuracy", "eval_ece_classwise"} <= set(trainer.evaluate())


def test_evaluation_only_without_a_training_set(tmp_path):
    args = EnergyConfig(str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True)
    trainer = EnergyTrainer(make_encoder("bert"), args, eval_dataset=train_set(9), processing_class=make_wordpiece())
    assert np.isfinite(trainer.evaluate()["eval_loss"])


def test_evaluation_drops_no_row(tmp_path):
    """Training drops the last, incomplete batch."""
    args = EnergyConfig(str(tmp_path), use_cpu=True, report_to="none", dataloader_drop_last=True, max_length=64,
                        per_device_eval_batch_size=8)  # fmt: skip
    trainer = EnergyTrainer(make_encoder("bert"), args, eval_dataset=train_set(9), processing_class=make_wordpiece())
    assert trainer.predict(trainer.eval_dataset).predictions.shape[0] == 9
    assert args.dataloader_drop_last


def test_divergence_stops_the_training_and_names_the_value(tmp_path):
    trainer = make_trainer(tmp_path, learning_rate=1e9, max_steps=30, max_grad_norm=0.0)
    with pytest.raises(EbmcalError, match=r"diverged by step \d+: .* is (nan|inf|\d)"):
        trainer.train()


def test_the_head_gets_its_own_learning_rate(tmp_path):
    trainer = make_trainer(tmp_path, head_learning_rate=0.5)
    rates = {group["lr"] for group in trainer.create_optimizer().param_groups}
    assert rates == {1e-4, 0.5}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda d: EnergyTrainer(None, EnergyConfig(d, use_cpu=True)), "needs a model"),
        (lambda d: EnergyTrainer(make_encoder("bert"), TrainingArguments(d, use_cpu=True)), "EnergyConfig"),
        (lambda d: EnergyTrainer(make_encoder("bert"), EnergyConfig(d, use_cpu=True), data_collator=len), "collator"),
        (lambda d: EnergyConfig(d, method="hiden", use_cpu=True), "Did you mean 'hidden'"),
        (lambda d: EnergyConfig(d, noise_ratio=0, use_cpu=True), "invalid noise_ratio=0"),
        (lambda d: EnergyConfig(d, noise_ratio=1.5, use_cpu=True), "invalid noise_ratio=1.5"),
        (lambda d: make_trainer(d, dataset=train_set(0)), "no rows"),
        (
            lambda d: make_trainer(
                d, dataset=Dataset.from_dict({"text": ["a " * 900] * 16, "label": [0] * 16}), max_length=800
            ),
            "the encoder reads at most",
        ),
        (lambda d: EnergyConfig(d, energy_weight=-1.0, use_cpu=True), "invalid energy_weight=-1.0"),
        (lambda d: EnergyConfig(d, remove_unused_columns=True, use_cpu=True), "remove_unused_columns=False"),
        (lambda d: make_trainer(d, dataset=train_set().remove_columns("text")), "no input_ids"),
        (lambda d: make_trainer(d, dataset=Dataset.from_dict({"text": TEXTS, "label": [7] * 96})), "from 0 to 2"),
        (lambda d: make_trainer(d, noise=Dataset.from_dict({"text": []})), "at least one row"),
        (lambda d: make_trainer(d, dataset=[1, 2]), r"datasets\.Dataset, got list"),
    ],
)
def test_wrong_arguments_are_explained(tmp_path, build, message):
    with pytest.raises(EbmcalError, match=message):
        build(str(tmp_path))
