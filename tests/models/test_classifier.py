"""The classifier with an energy: what it computes, saves and loads, and that its checkpoint is a plain one."""

import json
import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, GPT2Config, GPT2ForSequenceClassification

from ebmcal.errors import EbmcalError
from ebmcal.models.classifier import CARD_FILE, HEAD_FILE, HEADS, EnergyClassifier
from ebmcal.models.packing import mean_states, pack, pad
from ebmcal.models.scoring import micro_batches, predict, score, token_budget
from ebmcal.models.tokens import tokenize
from tiny_models import SENTENCES, make_encoder, make_wordpiece, random_texts

BATCH = pack(random_texts([3, 5, 5, 9]))
ENERGIES = ["hidden", "sharp-hidden", "scalar", "scaled-hidden"]


def make_classifier(energy="hidden", kind="bert", **changes):
    encoder = make_encoder(kind, **changes)
    torch.manual_seed(7)
    return EnergyClassifier(encoder, energy).eval()


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra", "mpnet", "albert"])
@pytest.mark.parametrize("energy", ENERGIES)
def test_logits_and_energies(kind, energy):
    model = make_classifier(energy, kind)
    logits, energies = model(BATCH)
    assert logits.shape == (4, 3)
    assert energies.shape == (4,)
    assert logits.dtype == energies.dtype == torch.float32
    if energy == "hidden":
        torch.testing.assert_close(energies, -torch.logsumexp(logits, -1))
    elif energy == "sharp-hidden":
        torch.testing.assert_close(energies, -logits.amax(-1))
    elif energy == "scaled-hidden":  # where learning begins
        torch.testing.assert_close(energies, -torch.logsumexp(logits, -1))
    energies.sum().backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert any("attention" in name or "attn" in name for name in moved)  # the energy trains the encoder
    assert ("energy_head.weight" in moved) == (energy == "scalar")


def test_scalar_reads_the_features_of_the_last_layer():
    model = make_classifier("scalar")
    kept = []
    model.encoder.classifier.register_forward_hook(lambda _, inputs, __: kept.append(inputs[0]))
    _, energies = model(BATCH)
    expected = kept[0] @ model.energy_head.weight.T + model.energy_head.bias
    torch.testing.assert_close(energies, expected[:, 0])
    assert model.energy_head.weight.shape == (1, 16)


def test_scaled_hidden_has_a_scale_and_a_constant():
    model = make_classifier("scaled-hidden")
    with torch.no_grad():
        model.energy_head.log_scale.fill_(0.01)
        model.energy_head.constant.fill_(-0.02)
    logits, energies = model(BATCH)
    torch.testing.assert_close(energies, -math.e * torch.logsumexp(logits, -1) - 2)
    energies.sum().backward()
    assert all(p.grad.abs() > 0 for p in model.energy_head.parameters())


def test_parameters_of_the_energies():
    plain = sum(p.numel() for p in make_encoder("bert").parameters())
    sizes = {e: sum(p.numel() for p in make_classifier(e).parameters()) for e in ENERGIES}
    assert sizes == {"hidden": plain, "sharp-hidden": plain, "scalar": plain + 17, "scaled-hidden": plain + 2}


@pytest.mark.parametrize("energy", ENERGIES)
def test_what_was_saved_is_loaded(energy, tmp_path):
    model = make_classifier(energy)
    model.save_pretrained(tmp_path, {"max_length": 48})
    loaded = EnergyClassifier.from_pretrained(tmp_path).eval()
    for ours, theirs in zip(model(BATCH), loaded(BATCH), strict=True):
        assert torch.equal(ours, theirs)
    assert json.loads((tmp_path / CARD_FILE).read_text()) == {"energy": energy, "max_length": 48}
    assert (tmp_path / HEAD_FILE).exists() == (energy in HEADS)
    stock = make_encoder("bert").state_dict()
    assert load_file(tmp_path / "model.safetensors").keys() == stock.keys()


@pytest.mark.parametrize("kind", ["bert", "mpnet", "albert"])
def test_features_come_with_the_same_pass(kind):
    model = EnergyClassifier(make_encoder(kind)).eval()
    logits, energies, features = model.with_features(BATCH)
    for ours, theirs in zip((logits, energies), model(BATCH), strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(features, mean_states(model.encoder, BATCH, middle=True))
    ids, mask, _ = pad(BATCH, 0)
    layers = make_encoder(kind).eval().base_model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    middle = layers.hidden_states[len(layers.hidden_states) // 2]
    for i, length in enumerate(BATCH.lengths):
        torch.testing.assert_close(features[i], middle[i, :length].mean(0), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(features, mean_states(model.encoder, BATCH))


def test_any_sequence_classifier_loads(tmp_path):
    make_encoder("bert").save_pretrained(tmp_path)
    assert EnergyClassifier.from_pretrained(tmp_path).energy == "hidden"


def test_folders_that_do_not_load_are_named(tmp_path):
    with pytest.raises(EbmcalError, match="not a usable checkpoint"):
        EnergyClassifier.from_pretrained(tmp_path)
    make_classifier("scalar").save_pretrained(tmp_path)
    (tmp_path / HEAD_FILE).unlink()
    with pytest.raises(EbmcalError, match="not a usable checkpoint"):
        EnergyClassifier.from_pretrained(tmp_path)


def test_an_unknown_energy_names_the_near_ones():
    with pytest.raises(EbmcalError, match="Did you mean 'sharp-hidden'"):
        EnergyClassifier(make_encoder("bert"), "sharphidden")


def make_language_classifier():
    config = GPT2Config(
        vocab_size=120, n_embd=16, n_layer=1, n_head=2, n_positions=64, num_labels=3, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    return GPT2ForSequenceClassification(config).eval()


def test_classifiers_made_of_language_models_are_padded():
    """They have no padding token; alone, without padding, each text has the same logits."""
    encoder = make_language_classifier()
    texts = random_texts([3, 5, 5, 9])
    with torch.no_grad():
        expected = torch.cat([encoder(torch.tensor(text)[None]).logits for text in texts])
        logits, energies = EnergyClassifier(encoder)(BATCH)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert energies.shape == (4,)


def test_scalar_needs_one_feature_vector_a_text():
    """GPT-2 makes logits at every position and picks one: what enters its last layer is no feature of a text."""
    with pytest.raises(EbmcalError, match="Use hidden or sharp-hidden"):
        EnergyClassifier(make_language_classifier(), "scalar")(BATCH)


LOADED_ELSEWHERE = """
    import json, sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "ebmcal":
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, Blocker())
    from transformers import pipeline
    classify = pipeline("text-classification", model=sys.argv[1], device="cpu")
    texts = json.loads(sys.argv[2])
    print(json.dumps([{row["label"]: row["score"] for row in rows} for rows in
                      classify(texts, top_k=None, function_to_apply="none")]))
    assert not any(name.startswith("ebmcal") for name in sys.modules)
"""


def test_transformers_alone_loads_the_checkpoint_and_gives_the_same_logits(tmp_path, wordpiece):
    texts = ["the film is dull, but honest.", "a joy", "their new song was never what we wanted."]
    names = {0: "bad", 1: "fair", 2: "good"}
    model = make_classifier("hidden", id2label=names, label2id={v: k for k, v in names.items()})
    model.save_pretrained(tmp_path)
    wordpiece.save_pretrained(tmp_path)
    script = textwrap.dedent(LOADED_ELSEWHERE)
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path, json.dumps(texts)], capture_output=True, text=True, check=True
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours, _ = score(model, tokenize([(t, None) for t in texts], wordpiece, 64, tmp_path / "tokens"))
    for row, their_row in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(row, [their_row[names[i]] for i in range(3)], atol=1e-5)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return tokenize([(s, None) for s in SENTENCES], make_wordpiece(), 64, tmp_path_factory.mktemp("t") / "table")


def test_scores_come_back_in_the_order_of_the_rows(table):
    model = make_classifier("scalar").train()
    logits, energies = score(model, table)
    assert model.training  # as it was
    rows = [17, 3, 3, 88]
    some, some_energies = score(model, table, rows)
    np.testing.assert_allclose(some, logits[rows], atol=1e-5)
    np.testing.assert_allclose(some_energies, energies[rows], atol=1e-5)
    model.eval()
    alone, energy = model(pack([table[88][0]], [table[88][1]]))
    np.testing.assert_allclose(logits[88], alone[0].detach(), atol=1e-5)
    np.testing.assert_allclose(energies[88], energy[0].detach(), atol=1e-5)


def test_predictions_have_everything_the_reader_needs(table):
    model, texts = make_classifier("sharp-hidden"), [("a", "b"), ("c", ""), ("d", None)]
    told = []
    predictions = predict(
        model, table, labels=np.array([2, -1, 0]), label_names=("x", "y", "z"), ids=np.array([7, 8, 9]), texts=texts,
        meta={"seed": 1}, rows=[0, 1, 2], progress=told.append,
    )  # fmt: skip
    logits, energies = score(model, table, [0, 1, 2])
    np.testing.assert_array_equal(predictions.logits, logits)
    np.testing.assert_array_equal(predictions.energies, energies)
    assert predictions.labels.tolist() == [2, -1, 0]
    assert predictions.ids.tolist() == ["7", "8", "9"]
    assert list(predictions.texts) == ["a", "c", "d"]
    assert list(predictions.text_pairs) == ["b", "", ""]
    assert predictions.meta == {"energy": "sharp-hidden", "seed": 1}
    assert sum(told) == 3


def test_micro_batches_keep_to_the_budget_and_hold_every_text_once():
    lengths = np.random.default_rng(0).integers(1, 40, size=200)
    batches = list(micro_batches(lengths, budget=100))
    assert sorted(np.concatenate(batches)) == list(range(200))
    assert all(lengths[b].sum() <= 100 for b in batches)
    assert all(np.all(np.diff(lengths[b]) >= 0) for b in batches)
    assert [b.tolist() for b in micro_batches(np.array([500, 2]), budget=100)] == [[1], [0]]
    assert list(micro_batches(np.array([], dtype=int), budget=100)) == []


def test_larger_models_have_smaller_budgets():
    small, large = (BertConfig(hidden_size=h, num_hidden_layers=n) for h, n in ((384, 6), (1024, 24)))
    assert token_budget(small) > token_budget(large) >= 512
