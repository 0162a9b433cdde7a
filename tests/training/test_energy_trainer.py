"""`EnergyTrainer` on tiny models: the losses of `ebmcal run`, resuming, processes, and all that the Trainer does."""

import copy
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import (
    AutoModelForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

import ebmcal
from ebmcal.errors import EbmcalError
from ebmcal.models.classifier import CARD_FILE, HEAD_FILE, HEADS, EnergyClassifier
from ebmcal.models.packing import pack
from ebmcal.models.tokens import tokenize
from ebmcal.noise.supply import Stored
from ebmcal.storage.atomic import read_json
from ebmcal.training.energy_trainer import EnergyTrainer
from ebmcal.training.methods import METHODS, Settings
from ebmcal.training.plan import Collator, TrainingPlan
from ebmcal.training.running import training_arguments
from ebmcal.training.trainer import JointTrainer
from tiny_models import SENTENCES, make_encoder, make_wordpiece

N_ROWS, N_STEPS, BATCH, RATIO, WEIGHT, SEED = 80, 6, 4, 2, 0.4, 1
LABELS = np.arange(N_ROWS) % 3
NOISE = [" ".join(reversed(s.split())) for s in SENTENCES]
ENERGY_NAMES = ("hidden", "sharp-hidden", "scalar", "scaled-hidden")


def tokenized(texts, tokenizer, labels=None):
    columns = {"sentence": texts} | ({} if labels is None else {"label": labels})
    return Dataset.from_dict(columns).map(lambda rows: tokenizer(rows["sentence"]), batched=True)


@pytest.fixture(scope="module")
def data():
    tokenizer = make_wordpiece()
    return tokenizer, tokenized(SENTENCES[:N_ROWS], tokenizer, LABELS.tolist()), tokenized(NOISE, tokenizer)


def arguments(folder, **changes):
    settings = {
        "max_steps": N_STEPS, "per_device_train_batch_size": BATCH, "learning_rate": 5e-3, "seed": SEED, "optim": "sgd",
        "logging_steps": 1, "report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no",
        "dataloader_pin_memory": False,
    }  # fmt: skip
    return TrainingArguments(str(folder), **settings | changes)


def make_model(kind="bert", **changes):
    return make_encoder(kind, scale=2.0, **changes)


def make_trainer(data, folder, energy="hidden", model=None, *, args=None, **changes):
    tokenizer, train, noise = data
    settings = {
        "train_dataset": train, "noise_dataset": noise, "processing_class": tokenizer, "energy": energy,
        "noise_ratio": RATIO, "energy_weight": WEIGHT,
    } | changes  # fmt: skip
    return EnergyTrainer(model or make_model(), arguments(folder, **(args or {})), **settings)


def history(trainer, name):
    return [line[name] for line in trainer.state.log_history if name in line]


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


class Gradients(TrainerCallback):
    """Keeps the gradients of every step before they are clipped."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        named = model.named_parameters()
        self.steps.append({n.removeprefix("encoder."): p.grad.clone() for n, p in named if p.grad is not None})


@pytest.mark.parametrize(
    ("energy", "kind"),
    [*((energy, "bert") for energy in ENERGY_NAMES), ("hidden", "roberta"), ("scalar", "distilbert")],
)
def test_losses_and_gradients_are_those_of_a_run(energy, kind, data, tmp_path):
    """The same weights, the same data texts in the same order: noise, losses and gradients of every step are equal."""
    tokenizer, train, _ = data
    tables = [
        tokenize([(text, None) for text in texts], tokenizer, 64, tmp_path / name)
        for name, texts in (("data", SENTENCES[:N_ROWS]), ("noise", NOISE))
    ]
    plan = TrainingPlan(n_rows=N_ROWS, n_steps=N_STEPS, batch_size=BATCH, noise_ratio=RATIO, seed=SEED)
    torch.manual_seed(5)
    theirs = EnergyClassifier(make_model(kind), energy)
    ours = make_model(kind)
    kept = [Gradients(), Gradients()]
    joint = JointTrainer(
        theirs, method=METHODS[energy], settings=Settings(RATIO, WEIGHT),
        collator=Collator(tables[0], LABELS, Stored("noise", tables[1], SEED)),
        args=training_arguments(
            tmp_path / "theirs", n_steps=N_STEPS, batch_size=BATCH, learning_rate=5e-3, warmup_steps=0, seed=SEED,
            precision="fp32", weight_decay=0.0, save_steps=99, optim="sgd",
        ),
        train_dataset=plan, callbacks=[kept[0]],
    )  # fmt: skip
    in_order = train.select([plan[p].row for p in range(len(plan))])
    trainer = make_trainer(
        data, tmp_path / "ours", energy, ours, train_dataset=in_order, callbacks=[kept[1]],
        args={"train_sampling_strategy": "sequential"},
    )  # fmt: skip
    if energy in HEADS:
        ours.energy_head.load_state_dict(theirs.energy_head.state_dict())
    joint.train()
    trainer.train()
    names = ("loss", "cross_entropy", "data_term", "noise_term", "energy_data", "energy_noise", "noise_accuracy")
    for name in names:
        assert len(history(trainer, name)) == N_STEPS
        np.testing.assert_allclose(history(trainer, name), history(joint, name), atol=1e-5, err_msg=name)
    assert len(kept[0].steps) == len(kept[1].steps) == N_STEPS
    for expected, came in zip(kept[0].steps, kept[1].steps, strict=True):
        assert came.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(came[name], expected[name], atol=1e-5, rtol=1e-4, msg=name)
    assert max(g.abs().max() for g in kept[0].steps[0].values()) > 0.01


def test_the_energy_terms_are_added_to_the_losses_of_the_script(data, tmp_path):
    """Label smoothing is the Trainer's: the terms of the energy stay what they are."""
    model = make_encoder("bert", scale=8.0)
    plain = make_trainer(data, tmp_path / "a", model=copy.deepcopy(model))
    smooth = make_trainer(data, tmp_path / "b", model=model, args={"label_smoothing_factor": 0.2})
    for trainer in (plain, smooth):
        trainer.train()
    assert history(smooth, "data_term")[0] == pytest.approx(history(plain, "data_term")[0], abs=1e-6)
    assert history(smooth, "cross_entropy")[0] != pytest.approx(history(plain, "cross_entropy")[0], abs=1e-3)
    total = history(smooth, "cross_entropy")[0]
    total += WEIGHT * (history(smooth, "data_term")[0] + history(smooth, "noise_term")[0])
    assert history(smooth, "loss")[0] == pytest.approx(total, abs=1e-5)


def own_loss(outputs, labels, num_items_in_batch=None):
    return torch.nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


@pytest.mark.parametrize("loss", [None, own_loss])
def test_gradient_accumulation_is_a_larger_batch(loss, data, tmp_path):
    whole = make_trainer(data, tmp_path / "a", compute_loss_func=loss)
    parts = make_trainer(
        data, tmp_path / "b", compute_loss_func=loss,
        args={"gradient_accumulation_steps": 2, "per_device_train_batch_size": BATCH // 2},
    )  # fmt: skip
    for trainer in (whole, parts):
        trainer.train()
    np.testing.assert_allclose(history(parts, "loss"), history(whole, "loss"), rtol=1e-4)
    expected = weights(whole.model)
    for name, value in weights(parts.model).items():
        torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("energy", ["hidden", "scalar"])
def test_a_resumed_training_is_the_same_to_the_bit(energy, data, tmp_path):
    """Six steps, or three and three more: with dropout, in the middle of an epoch, with AdamW."""

    def trained(folder, until=None, resume=None):
        torch.manual_seed(2)
        model = make_model(hidden_dropout_prob=0.1)
        options = {"optim": "adamw_torch", "save_strategy": "steps", "save_steps": 3}
        trainer = make_trainer(data, folder, energy, model, args=options)
        if until:
            trainer.add_callback(StopAt(until))
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    once = trained(tmp_path / "once")
    trained(tmp_path / "twice", until=3)
    again = trained(tmp_path / "twice", resume=True)
    assert again.state.global_step == once.state.global_step == N_STEPS
    assert history(again, "loss") == history(once, "loss")
    expected = weights(once.model)
    assert expected.keys() == weights(again.model).keys()
    assert all(torch.equal(value, expected[name]) for name, value in weights(again.model).items())


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step >= self.step


def test_a_second_training_of_the_same_trainer_draws_the_same_noise(data, tmp_path):
    trainer = make_trainer(data, tmp_path, args={"max_steps": 1, "learning_rate": 1e-12})
    trainer.train()
    first = history(trainer, "energy_noise")
    trainer.train()
    assert history(trainer, "energy_noise") == pytest.approx(first, abs=1e-5)


def test_noise_begins_late_and_comes_every_other_step(data, tmp_path):
    trainer = make_trainer(data, tmp_path, noise_start=0.5, noise_every=2)
    trainer.train()
    noisy = [line["step"] for line in trainer.state.log_history if "noise_term" in line]
    assert noisy == [4, 6]
    assert len(history(trainer, "energy_data")) == N_STEPS


@pytest.mark.parametrize("energy", ENERGY_NAMES)
def test_evaluation_prediction_and_saving_are_the_trainers(energy, data, tmp_path):
    tokenizer, train, _ = data
    figures = {}

    def compute_metrics(predictions):
        figures["shape"] = predictions.predictions.shape
        return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}

    trainer = make_trainer(
        data, tmp_path / "t", energy, eval_dataset=train, compute_metrics=compute_metrics,
        args={"eval_strategy": "steps", "eval_steps": 3},
    )  # fmt: skip
    trainer.train()
    assert len(history(trainer, "eval_accuracy")) == len(history(trainer, "eval_loss")) == 2
    predicted = trainer.predict(train)
    assert figures["shape"] == predicted.predictions.shape == (N_ROWS, 3)
    expected = torch.nn.functional.cross_entropy(torch.from_numpy(predicted.predictions), torch.from_numpy(LABELS))
    assert predicted.metrics["test_loss"] == pytest.approx(expected.item(), abs=1e-4)
    trainer.save_model(tmp_path / "saved")
    assert (tmp_path / "saved" / HEAD_FILE).exists() == (energy in HEADS)
    assert not any("energy_head" in name for name in load_file(tmp_path / "saved" / "model.safetensors"))
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    plain = Trainer(stock, arguments(tmp_path / "p"), processing_class=tokenizer).predict(train)
    np.testing.assert_allclose(plain.predictions, predicted.predictions, atol=1e-6)


@pytest.mark.parametrize("energy", ENERGY_NAMES)
def test_what_it_saves_is_a_model_of_ours(energy, data, tmp_path):
    """Energies of the folder, read by ebmcal, are those that were trained."""
    trainer = make_trainer(data, tmp_path / "t", energy)
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    assert read_json(tmp_path / "saved" / CARD_FILE) == {
        "energy": energy, "noise_ratio": RATIO, "energy_weight": WEIGHT,
    }  # fmt: skip
    loaded = EnergyClassifier.from_pretrained(tmp_path / "saved").eval()
    assert loaded.energy == energy
    row = data[1][0]
    with torch.no_grad():
        _, energies = loaded(pack([np.array(row["input_ids"])], [np.array(row["token_type_ids"])]))
        trainer.model.train()  # dropout is off: only the energies are shown
        outputs = trainer.model(input_ids=torch.tensor([row["input_ids"]]))
    direct = outputs["energies"] if energy in HEADS else METHOD_ENERGY[energy](outputs["logits"])
    torch.testing.assert_close(energies, direct, atol=1e-5, rtol=1e-5)


METHOD_ENERGY = {"hidden": lambda f: -torch.logsumexp(f, -1), "sharp-hidden": lambda f: -f.max(-1).values}


def test_the_best_model_comes_back_with_its_energy_layer(data, tmp_path):
    def worse_and_worse(predictions):
        worse_and_worse.calls += 1
        return {"score": -worse_and_worse.calls}

    worse_and_worse.calls = 0
    trainer = make_trainer(
        data, tmp_path, "scalar", eval_dataset=data[1], compute_metrics=worse_and_worse,
        args={
            "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
            "load_best_model_at_end": True, "metric_for_best_model": "score",
        },
    )  # fmt: skip
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    head = load_file(tmp_path / "checkpoint-2" / HEAD_FILE)
    later = load_file(tmp_path / "checkpoint-6" / HEAD_FILE)
    assert not torch.equal(head["weight"], later["weight"])
    assert torch.equal(trainer.model.energy_head.weight, head["weight"])


def test_a_model_may_be_made_anew_for_each_training(data, tmp_path):
    tokenizer, train, noise = data
    trainer = EnergyTrainer(
        args=arguments(tmp_path, max_steps=2), model_init=lambda: make_model(), train_dataset=train,
        noise_dataset=noise, processing_class=tokenizer, energy="scalar",
    )  # fmt: skip
    trainer.train()
    first = history(trainer, "noise_term")
    trainer.train()
    assert history(trainer, "noise_term") == first
    assert len(first) == 2
    assert trainer.settings.energy_weight == 0.4


def test_bfloat16_autocast_keeps_energies_in_float32(data, tmp_path):
    trainer = make_trainer(data, tmp_path, "scalar", args={"bf16": True, "max_steps": 1})
    trainer.train()
    assert np.isfinite(history(trainer, "loss")).all()
    assert history(trainer, "energy_noise")[0] != history(trainer, "energy_data")[0]


def test_what_is_pushed_is_the_saved_folder(data, tmp_path, monkeypatch):
    pushed = {}

    class Hub:
        def create_repo(self, name, **_):
            return SimpleNamespace(repo_id=f"me/{name}")

        def upload_folder(self, repo_id, folder_path, **_):
            pushed[repo_id] = {p.name for p in Path(folder_path).iterdir()}
            return "url"

    monkeypatch.setattr("transformers.trainer.hf_api", Hub)
    trainer = make_trainer(data, tmp_path / "mine", "scalar", args={"max_steps": 1})
    trainer.train()
    assert trainer.push_to_hub() == "url"
    assert pushed["me/mine"] >= {"model.safetensors", "config.json", "tokenizer.json", HEAD_FILE, CARD_FILE}


def test_noise_that_comes_round_is_told(data, tmp_path):
    trainer = make_trainer(data, tmp_path, noise_dataset=data[2].select(range(10)))
    with pytest.warns(UserWarning, match=r"draws 48 noise texts and there are 10: they come round 4\.8 times"):
        trainer.train()


def test_no_noise_text_is_drawn_twice_before_all_were_drawn_once(data, tmp_path):
    drawn = []

    class Watched:
        column_names = data[2].column_names

        def __len__(self):
            return len(data[2])

        def __getitem__(self, i):
            drawn.append(i)
            return data[2][i]

    trainer = make_trainer(data, tmp_path, noise_dataset=Watched())
    trainer.train()
    assert len(drawn) == len(set(drawn)) == N_STEPS * BATCH * RATIO


def texts_of(trainer, numbers):
    return [trainer.processing_class.decode(draw.tokens["input_ids"]) for draw in trainer._supply.draw(numbers)]


@pytest.mark.parametrize(("noise", "sources"), [("splice", ()), ("splice 0.5, far 0.5", ("splice", "far"))])
def test_noise_is_written_fresh_from_the_training_texts(noise, sources, data, tmp_path):
    options = {"optim": "adamw_torch", "save_strategy": "steps", "save_steps": 3}
    once = make_trainer(data, tmp_path / "a", noise_dataset=noise, args=options)
    assert texts_of(once, range(5)) == texts_of(once, range(5)) != texts_of(once, range(5, 10))
    assert all(once.processing_class.unk_token not in text for text in texts_of(once, range(20)))
    once.train()
    stopped = make_trainer(data, tmp_path / "b", noise_dataset=noise, args=options, callbacks=[StopAt(3)])
    stopped.train()
    again = make_trainer(data, tmp_path / "b", noise_dataset=noise, args=options)
    again.train(resume_from_checkpoint=True)
    assert history(again, "loss") == history(once, "loss")
    for name in sources:
        assert len(history(once, f"noise_accuracy_{name}")) == N_STEPS


def test_fresh_noise_is_as_long_as_the_training_texts(data, tmp_path):
    """Padded rows and a collator that only stacks them; pairs."""
    tokenizer, _, _ = data
    rows = {"a": SENTENCES[:40], "b": SENTENCES[40:80], "label": LABELS[:40].tolist()}
    padded = Dataset.from_dict(rows).map(
        lambda r: tokenizer(r["a"], r["b"], padding="max_length", max_length=30, truncation=True), batched=True
    )
    trainer = make_trainer(
        data, tmp_path, noise_dataset="splice", train_dataset=padded, data_collator=default_data_collator
    )
    assert {len(draw.tokens["input_ids"]) for draw in trainer._supply.draw(range(10))} == {30}
    assert any(1 in draw.tokens["token_type_ids"] for draw in trainer._supply.draw(range(3)))
    trainer.train()
    assert np.isfinite(history(trainer, "loss")).all()


WRONG = {
    "no noise": ({"noise_dataset": None}, "needs noise_dataset.*write_noise"),
    "not tokenised": ({"noise_dataset": Dataset.from_dict({"text": ["a"]})}, "columns text and no input_ids: tokenise"),
    "other columns": (
        {"noise_dataset": Dataset.from_dict({"input_ids": [[2, 3]]})},
        "lacks token_type_ids, attention_mask, which the training set has",
    ),
    "empty": ({"noise_dataset": Dataset.from_dict({"input_ids": []})}, "noise_dataset is empty"),
    "a stream": ({"noise_dataset": iter(())}, "whose rows have numbers.* a tuple_iterator came"),
    "ratio": ({"noise_ratio": 0}, "noise_ratio must be a whole number, 1 or more; 0 came"),
    "half a ratio": ({"noise_ratio": 1.5, "noise_every": 0}, "noise_ratio.*1.5 came.\nnoise_every.*0 came"),
    "weight": ({"energy_weight": 0}, "energy_weight must be above 0; 0 came"),
    "start": ({"noise_start": 1.0}, r"noise_start is a share .* 1\.0 came"),
    "language model": ({"noise_dataset": "infill:gpt2"}, "infill:gpt2: only splice and far are made from the texts"),
    "source": ({"noise_dataset": "splise"}, "Unknown noise source 'splise'. Did you mean 'splice'"),
    "no tokenizer": ({"noise_dataset": "splice", "processing_class": None}, "and the processing_class"),
    "energy": ({"energy": "hiden"}, "Unknown energy 'hiden'. Did you mean 'hidden'"),
    "energy of a run": ({"energy": "sngp"}, "Unknown energy 'sngp'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_told_before_training(case, data, tmp_path):
    changes, message = WRONG[case]
    with pytest.raises(EbmcalError, match=message):
        make_trainer(data, tmp_path, **changes)


@pytest.mark.parametrize(
    "changes", [{"problem_type": "multi_label_classification"}, {"n_labels": 1}, {"problem_type": "regression"}]
)
def test_only_classifiers_of_one_label_a_text(changes, data, tmp_path):
    with pytest.raises(EbmcalError, match="one label a text; BertForSequenceClassification has problem_type"):
        make_trainer(data, tmp_path, model=make_model(**changes))


def test_without_training_no_noise_is_needed(data, tmp_path):
    tokenizer, train, _ = data
    trainer = EnergyTrainer(make_model(), arguments(tmp_path), processing_class=tokenizer, eval_dataset=train)
    assert np.isfinite(trainer.evaluate()["eval_loss"])


def test_divergence_stops_the_training_and_names_the_step(data, tmp_path):
    trainer = make_trainer(data, tmp_path, args={"learning_rate": 1e12})
    with pytest.raises(EbmcalError, match=r"diverged at step \d+: .* or float32 \(bf16=False\)"):
        trainer.train()


SCRIPT = """
import os, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from test_energy_trainer import make_trainer, tokenized, LABELS, N_ROWS, NOISE
from tiny_models import SENTENCES, make_wordpiece

class Watched:
    def __init__(self, rows):
        self.rows, self.column_names, self.drawn = rows, rows.column_names, []
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        self.drawn.append(i)
        return self.rows[i]

folder, energy, batch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
tokenizer = make_wordpiece()
noise = Watched(tokenized(NOISE, tokenizer))
data = tokenizer, tokenized(SENTENCES[:N_ROWS], tokenizer, LABELS.tolist()), noise
torch.manual_seed(4)
args = {"per_device_train_batch_size": batch, "train_sampling_strategy": "sequential"}
args |= {"ddp_backend": "gloo"} if "WORLD_SIZE" in os.environ else {}
trainer = make_trainer(data, folder / "t", energy, args=args)
if energy == "scalar":
    torch.manual_seed(6)
    torch.nn.init.normal_(trainer.model.energy_head.weight)
    torch.nn.init.zeros_(trainer.model.energy_head.bias)
trainer.train()
(folder / f"drawn-{trainer.args.process_index}.txt").write_text("\\n".join(map(str, sorted(noise.drawn))))
if trainer.is_world_process_zero():
    save_file({k: v.contiguous() for k, v in trainer.model.state_dict().items()}, folder / "weights.safetensors")
"""


@pytest.mark.slow
@pytest.mark.parametrize("energy", ["hidden", "scalar"])
def test_two_processes_train_as_one_and_each_has_its_own_noise(energy, tmp_path):
    here = Path(__file__).parent
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    source = str(Path(ebmcal.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, str(here), str(here.parent)])}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    for name, start, batch in (("one", [sys.executable], BATCH), ("two", torchrun, BATCH // 2)):
        (tmp_path / name).mkdir()
        command = [*start, str(script), str(tmp_path / name), energy, str(batch)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
        assert done.returncode == 0, done.stderr
    drawn = [(tmp_path / "two" / f"drawn-{rank}.txt").read_text().split() for rank in (0, 1)]
    assert len(drawn[0]) == len(drawn[1]) == N_STEPS * BATCH * RATIO // 2
    assert not set(drawn[0]) & set(drawn[1])
    assert sorted(drawn[0] + drawn[1]) == sorted((tmp_path / "one" / "drawn-0.txt").read_text().split())
    one, two = (load_file(tmp_path / name / "weights.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=1e-5, rtol=1e-4, msg=name)
