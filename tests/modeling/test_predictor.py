"""The only prediction loop: order, batches, dropout, truncation."""

import numpy as np
import pytest
import torch

from ebmcal.errors import EbmcalError
from ebmcal.modeling.classifier import CHARACTERS_PER_TOKEN, EnergyClassifier, Predictor, tokenize
from tiny_models import SENTENCES, make_encoder, make_wordpiece


@pytest.fixture(scope="module")
def predictor():
    return Predictor(EnergyClassifier(make_encoder("bert")).eval(), make_wordpiece(), max_length=32)


def test_the_order_of_texts_does_not_matter(predictor):
    order = np.random.default_rng(0).permutation(len(SENTENCES))
    a, b = predictor(SENTENCES), predictor([SENTENCES[i] for i in order])
    np.testing.assert_allclose(a.logits[order], b.logits, atol=1e-5)
    np.testing.assert_allclose(a.energies[order], b.energies, atol=1e-5)


def test_one_text_at_a_time_gives_the_same_as_all_at_once(predictor):
    whole = predictor(SENTENCES[:10], features=True)
    single = [predictor([text], features=True) for text in SENTENCES[:10]]
    np.testing.assert_allclose(whole.logits, np.concatenate([o.logits for o in single]), atol=1e-5)
    np.testing.assert_allclose(whole.features, np.concatenate([o.features for o in single]), atol=1e-5)


def test_no_texts(predictor):
    outputs = predictor([])
    assert outputs.logits.shape == (0, 3)
    assert outputs.energies.shape == (0,)


def test_long_texts_are_truncated(predictor):
    text = " ".join(SENTENCES)
    assert len(predictor.tokenize([text])[0].ids) == 32
    given, wordpiece = [], make_wordpiece()

    def tokenizer(firsts, seconds, **options):
        given.extend([*firsts, *(seconds or ())])
        return wordpiece(firsts, seconds, **options)

    long = "dull " * 10**4
    for texts in ([long], [(long, long)]):
        assert tokenize(texts, tokenizer, 8)[0].ids.shape == (8,)
    assert max(map(len, given)) <= 8 * CHARACTERS_PER_TOKEN  # the tokenizer would split the whole text first


def test_progress_counts_every_text(predictor):
    seen = []
    predictor(SENTENCES, on_batch=seen.append)
    assert sum(seen) == len(SENTENCES)


def test_dropout_passes_differ_by_seed_and_repeat():
    model = EnergyClassifier(make_encoder("bert", hidden_dropout_prob=0.5)).eval()
    predictor = Predictor(model, make_wordpiece(), max_length=32)
    a, b, c = (predictor(SENTENCES[:5], dropout_seed=seed).logits for seed in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert not np.allclose(a, c)
    assert not model.training


def test_bfloat16_changes_the_outputs_a_little(predictor):
    other = Predictor(predictor.classifier, predictor.tokenizer, max_length=32, precision="bf16")
    exact, rounded = predictor(SENTENCES, features=True), other(SENTENCES, features=True)
    assert rounded.logits.dtype == np.float32
    assert 0 < np.abs(exact.logits - rounded.logits).max() < 0.05
    np.testing.assert_array_equal(predictor(SENTENCES).logits, exact.logits)


def test_an_unknown_precision(predictor):
    with pytest.raises(EbmcalError, match="precision.*bf16"):
        Predictor(predictor.classifier, predictor.tokenizer, max_length=32, precision="b16")


def test_batches_side_by_side_give_the_same_outputs(predictor, monkeypatch):
    monkeypatch.setattr("ebmcal.modeling.classifier.MAX_BATCH_TOKENS", 40)
    texts = [" ".join(["good", "film", "bad"][i % 3] for i in range(n % 9 + 1)) for n in range(60)]
    before, found = torch.get_num_threads(), []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            found.append(predictor(texts, features=True))
    finally:
        torch.set_num_threads(before)
    for name in ("logits", "energies", "features"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name))
