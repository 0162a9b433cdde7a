"""Folds, and cross-fitting for scripts with their own `EnergyTrainer`."""

import numpy as np
import pytest
from datasets import Dataset

import ebmcal
from ebmcal import EnergyConfig, EnergyTrainer
from ebmcal.errors import EbmcalError
from ebmcal.pipeline.cross_fit import describe_cost, plan_folds
from ebmcal.progress import Reporter
from tiny_models import SENTENCES, make_encoder, make_wordpiece

NAMES = ("bad", "fair", "good")


def folds_of(keys, labels, n_folds=None, reporter=None):
    keys, labels = np.asarray(keys, dtype=np.uint64), np.asarray(labels)
    return plan_folds(keys, labels, NAMES, n_folds, 0, reporter or Reporter())


def test_small_data_has_five_folds_and_large_data_one_split():
    small, large = (folds_of(np.arange(n), np.arange(n) % 3) for n in (100, 1000))
    assert np.bincount(small).tolist() == [20] * 5
    assert describe_cost(small) == "cross-fitting: 5 folds; training takes 6 times as long as without"
    assert (large == 0).sum() == 200
    assert set(large) == {-1, 0}
    assert "one split of 200 rows; training takes 2 times" in describe_cost(large)
    assert "Label issues are searched in these rows only; --folds 5 covers all rows" in describe_cost(large)
    assert "the temperature may be too high" in describe_cost(folds_of(np.arange(100), np.arange(100) % 3, 2))


@pytest.mark.parametrize(("n_rows", "n_held_out"), [(501, 101), (1000, 200), (1400, 200), (2000, 200), (10_000, 1000)])
def test_the_held_out_part_of_large_data_is_10_to_20_percent(n_rows, n_held_out):
    assert (folds_of(np.arange(n_rows), np.arange(n_rows) % 2) == 0).sum() == n_held_out


@pytest.mark.parametrize("seed", range(4))
def test_copies_of_a_text_do_not_fill_the_held_out_part(seed):
    keys = np.where(np.arange(600) < 360, 0, np.arange(600))  # one text is 60% of the rows
    labels = np.where(keys == 0, 0, np.arange(600) % 2)
    assert (plan_folds(keys, labels, ["a", "b"], None, seed, Reporter()) == 0).sum() < 120


def test_folds_are_stratified_and_keep_duplicates_together():
    labels = np.repeat([0, 1], [80, 20])
    folds = folds_of(np.arange(100), labels, 5)
    assert [(labels[folds == fold] == 1).sum() for fold in range(5)] == [4] * 5
    keys = np.arange(60) // 3  # every text three times
    folds = folds_of(keys, keys % 2, 4)
    assert all(len(set(folds[keys == key])) == 1 for key in range(20))


def test_a_class_with_fewer_texts_than_folds_is_in_every_training_part():
    labels = np.array([0] * 20 + [1, 1])
    folds = folds_of(np.arange(22), labels, 5)
    assert all(set(labels[folds != fold]) == {0, 1} for fold in range(5))


@pytest.mark.parametrize("keys", [range(12), [*range(10), 10, 10]], ids=["one row", "one text twice"])
def test_labels_with_one_text_are_always_trained_on_and_named(keys, monkeypatch):
    labels, lines = np.array([0, 1] * 5 + [2, 2 if keys[-1] == 10 else 0]), []
    monkeypatch.setattr(Reporter, "info", lambda self, text: lines.append(text))
    folds = folds_of(keys, labels, 5)
    assert (folds[labels == 2] == -1).all()
    assert (folds[labels != 2] >= 0).all()
    assert len(lines) == 1
    assert "labels with a single training text: 'good'" in lines[0]


@pytest.mark.parametrize(
    ("keys", "labels", "n_folds", "message"),
    [
        (range(9), [1] * 9, 3, "at least two classes"),
        (range(9), [0] * 8 + [2], 3, "at least two classes with two training rows"),
        (range(9), [0, 1, 2] * 3, 1, "n_folds is 1; expected at least 2"),
        (range(9), [0, 1, 2] * 3, 10, "10 folds need at least 10 different training texts, got 9"),
    ],
)
def test_rows_that_cannot_be_split_are_explained(keys, labels, n_folds, message):
    with pytest.raises(EbmcalError, match=message):
        folds_of(list(keys), labels, n_folds)


def test_cross_fitting_with_a_trainer_of_ones_own(tmp_path):
    rows = Dataset.from_dict({"text": SENTENCES[:24], "label": [i % 3 for i in range(24)]})
    seen = []

    def make_trainer(dataset):
        seen.append(set(dataset["text"]))
        args = EnergyConfig(
            str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=8, use_cpu=True, report_to="none",
            save_strategy="no", disable_tqdm=True, max_length=32,
        )  # fmt: skip
        return EnergyTrainer(make_encoder("bert"), args, train_dataset=dataset, processing_class=make_wordpiece())

    p = ebmcal.cross_fit(make_trainer, rows, folds=2, directory=tmp_path / "folds")
    assert seen[0] | seen[1] == set(SENTENCES[:24])
    assert not seen[0] & seen[1]
    assert p.texts == SENTENCES[:24]
    assert p.labels.tolist() == rows["label"][:]
    assert np.isfinite(p.energies).all()

    final = make_trainer(rows)
    final.train()
    final.save_model(str(tmp_path / "model"))
    with pytest.warns(match="24 rows are few"):
        model = ebmcal.load(tmp_path / "model").calibrate(p)
    assert model.calibrator.temperature_ > 0

    again = ebmcal.cross_fit(None, rows, folds=2, directory=tmp_path / "folds")  # all folds are stored
    np.testing.assert_array_equal(again.logits, p.logits)
