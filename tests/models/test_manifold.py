"""Samples beside the texts: which way they lie, how far, and that the model is the stock one again behind them."""

import json

import pytest
import torch
import torch.nn.functional as F

from ebmcal import EnergyTextClassifier
from ebmcal.models.classifier import EnergyClassifier
from ebmcal.models.manifold import Around, classify_around, word_embeddings
from ebmcal.models.packing import mean_states, pack
from ebmcal.pipeline import stages
from ebmcal.progress import Reporter
from ebmcal.runfolder import Cell
from small_runs import own_rows, settings, write_csv
from tiny_models import SENTENCES, make_encoder, random_texts, save_encoder

BATCH = pack(random_texts([3, 5, 5, 9]))
LABELS = torch.tensor([0, 1, 2, 0])
KINDS = ["bert", "roberta", "electra", "distilbert", "mpnet", "albert"]


def around(model, on, off, monkeypatch):
    """What a model says of the samples, and the word embeddings of each of its three passes."""
    passes, lookup = [], model.encoder.get_input_embeddings()
    real = torch.nn.Module.register_forward_hook

    def spied(module, hook):
        def look(*given):
            put = hook(*given)
            passes.append(given[2] if put is None else put)
            return put

        return real(module, look)

    monkeypatch.setattr(lookup, "register_forward_hook", lambda hook: spied(lookup, hook), raising=False)
    torch.manual_seed(2)
    return classify_around(model.encoder, BATCH, Around(LABELS, on, off)), passes


@pytest.mark.parametrize("kind", KINDS)
def test_samples_lie_at_the_named_distance_and_the_named_way(kind, monkeypatch):
    model = EnergyClassifier(make_encoder(kind)).eval()
    (logits, near, far, partners), passes = around(model, 1e-3, 4e-3, monkeypatch)
    torch.testing.assert_close(logits, model(BATCH)[0])
    assert partners.sort().values.tolist() == [0, 1, 2, 3]
    words, on, off = passes
    for place, size in ((on, 1e-3), (off, 4e-3)):
        assert (place - words).abs().max().item() == pytest.approx(size, rel=1e-2)
        assert not place.requires_grad
    assert (F.cross_entropy(far, LABELS, reduction="none") > F.cross_entropy(logits, LABELS, reduction="none")).all()
    with torch.no_grad():
        texts = mean_states(model.encoder, BATCH)
        with word_embeddings(model.encoder, on):
            moved = mean_states(model.encoder, BATCH)
    others = partners != torch.arange(4)
    before, after = (F.cosine_similarity(x, texts[partners])[others] for x in (texts, moved))
    assert others.any()
    assert (after > before).all()
    torch.testing.assert_close(near, logits, atol=0.5, rtol=0)
    assert not torch.equal(near, logits)


def test_all_three_passes_teach_the_encoder_and_no_hook_is_left():
    model = EnergyClassifier(make_encoder("bert")).train()
    lookup = model.encoder.get_input_embeddings()
    for chosen in range(3):
        model.zero_grad()
        torch.manual_seed(2)
        logits, energies, *samples, _ = model(BATCH, Around(LABELS, 1e-3, 4e-3))
        F.cross_entropy((logits, *samples)[chosen], LABELS).backward()
        assert model.encoder.bert.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0
        assert (lookup.weight.grad is None) == (chosen > 0)  # samples are inputs, not words
    assert not lookup._forward_hooks
    torch.testing.assert_close(energies, -torch.logsumexp(logits, -1))


def test_a_run_of_pairs_with_samples_beside_the_texts(tmp_path, monkeypatch):
    """Through the command's own path: terms in the history, a plain checkpoint; the baseline beside it as ever."""
    monkeypatch.setattr(stages, "write_report", lambda root: root)
    rows = [(text, SENTENCES[i], label) for i, (text, label) in enumerate(own_rows())]
    files = write_csv(tmp_path / "pairs.csv", rows, ("text", "other", "label"))
    given = {"text_column": "text", "text_pair_column": "other", "label_column": "label", "steps": 3}
    encoder = save_encoder(tmp_path / "encoder")
    both = settings(files, encoder, tmp_path, methods=["baseline", "manifold"], manifold_off=0.01, **given)
    folder = stages.run(both, Reporter())
    lines = [json.loads(line) for line in folder.history(Cell("manifold", 1)).read_text().splitlines()]
    terms = [line for line in lines if "loss" in line]
    assert len(terms) == 3
    for line in terms:
        assert line["loss"] == pytest.approx(line["cross_entropy"] + line["near_term"] + line["far_term"], rel=1e-3)
    (tmp_path / "alone").mkdir()
    alone = stages.run(settings(files, encoder, tmp_path / "alone", methods=["baseline"], **given), Reporter())
    one, other = (f.predictions(Cell("baseline", 1), "test").read_bytes() for f in (folder, alone))
    assert one == other


def test_for_scikit_learn(tmp_path):
    texts, labels = zip(*own_rows(60), strict=True)
    given = {"steps": 2, "cache_dir": tmp_path / "cache", "max_length": 32}
    model = EnergyTextClassifier(str(save_encoder(tmp_path / "encoder")), method="manifold", settings=given)
    assert model.fit(list(texts), list(labels)).predict_proba(list(texts[:3])).shape == (3, 5)
