"""The recipe: published settings for published runs, and what everything else gets where nothing is given."""

import pytest

from ebmcal.config import RunConfig, load_config
from ebmcal.errors import EbmcalError
from ebmcal.recipe import epochs_for, resolve

PUBLISHED = {  # METHOD.md's table: batch, lr, steps, warm-up, LM epochs
    "sst2": (32, 2e-5, 5233, 314, 4),
    "mnli": (32, 2e-5, 30968, 1858, 4),
    "qnli": (32, 2e-5, 8278, 496, 4),
    "qqp": (32, 2e-5, 28318, 7079, 4),
    "mrpc": (16, 1e-5, 2296, 137, 4),
    "cola": (16, 1e-5, 5536, 320, 8),
    "rte": (16, 2e-5, 2036, 122, 8),
    "wnli": (16, 1e-5, 250, 10, 16),
}


@pytest.mark.parametrize("task", PUBLISHED)
def test_a_whole_glue_task_has_the_published_settings(task):
    batch, rate, steps, warmup, lm_epochs = PUBLISHED[task]
    config = resolve(RunConfig(task=task), n_train=8000, hidden_size=768)
    assert (config.batch_size, config.learning_rate, config.steps, config.warmup_steps) == (batch, rate, steps, warmup)
    assert (config.noise_ratio, config.mask_ratio, config.energy_weight, config.top_k) == (8, 0.4, 1.0, 20)
    assert (config.noise_lm_learning_rate, config.noise_lm_batch_size) == (5e-6, 8)
    assert config.noise_lm_steps == lm_epochs * 8000 // 8
    assert (config.noise, config.eval_steps, config.weight_decay, config.max_length) == ("infill:gpt2", 500, 0.1, 128)
    assert config.encoder == "roberta-base"


SHORT = [
    {"task": "rte", "max_train_rows": 500},
    {"task": "rte", "epochs": 2},
    {"task": "rte", "steps": 100},
    {"task": "rte", "train": "own.csv"},
    {"task": "rotten-tomatoes"},
    {"train": "own.csv"},
]


@pytest.mark.parametrize("settings", SHORT)
def test_other_runs_have_settings_for_small_data(settings):
    config = resolve(load_config(None, settings), n_train=1000, hidden_size=768)
    assert (config.noise, config.noise_ratio, config.energy_weight) == ("splice", 1, 0.4)
    assert (config.batch_size, config.learning_rate) == (16, 3e-5)
    expected = settings.get("steps") or round(settings.get("epochs", 10) * 1000 / 16)
    assert config.steps == expected
    assert config.warmup_steps == round(0.06 * expected)
    assert config.eval_steps <= config.steps
    assert config.save_steps <= config.steps
    assert config.noise_lm_steps is None  # no language model


@pytest.mark.parametrize(
    ("n_train", "epochs"), [(100, 10), (1000, 10), (5000, 10), (10_000, 5), (16_667, 3), (1_000_000, 3)]
)
def test_passes_over_the_data(n_train, epochs):
    assert epochs_for(n_train) == pytest.approx(epochs, rel=1e-3)
    config = resolve(RunConfig(), n_train=n_train, hidden_size=384)
    assert config.steps * config.batch_size / n_train == pytest.approx(epochs, rel=0.02)
    assert config.batch_size == (16 if n_train < 2000 else 32)


def test_narrow_encoders_learn_faster():
    rates = {width: resolve(RunConfig(), n_train=1000, hidden_size=width).learning_rate for width in (128, 384, 511)}
    assert set(rates.values()) == {1e-4}
    assert {resolve(RunConfig(), n_train=1000, hidden_size=w).learning_rate for w in (512, 768, 1024)} == {3e-5}
    published = resolve(RunConfig(task="sst2"), n_train=8000, hidden_size=384)
    assert published.learning_rate == pytest.approx(2.5 * 2e-5)


@pytest.mark.parametrize(
    ("noise", "mask_ratio", "batch", "steps", "rate"),
    [
        ("infill:gpt2", 0.4, 16, None, 2e-4),
        ("splice 0.8, infill:gpt2", 0.4, 16, None, 2e-4),
    ],
)
def test_a_source_with_a_language_model_has_settings_for_it(noise, mask_ratio, batch, steps, rate):
    config = resolve(load_config(None, {"noise": noise}), n_train=1000, hidden_size=768)
    assert (config.mask_ratio, config.noise_lm_batch_size) == (mask_ratio, batch)
    assert (config.noise_lm_steps, config.noise_lm_learning_rate) == (steps, rate)


def test_what_was_given_is_kept():
    given = {
        "batch_size": 8, "steps": 3, "learning_rate": 1e-3, "warmup_steps": 0, "noise_ratio": 5, "mask_ratio": 0.3,
        "energy_weight": 0.7, "noise": "plain:gpt2", "noise_lm_batch_size": 2, "noise_lm_steps": 9,
        "noise_lm_learning_rate": 1e-2, "eval_steps": 2, "save_steps": 1,
    }  # fmt: skip
    config = resolve(load_config(None, {"task": "rte", **given}), n_train=100, hidden_size=768)
    assert {name: getattr(config, name) for name in given} == given


def test_nothing_is_left_open_and_resolving_again_changes_nothing():
    for settings in ({"task": "rte"}, {"noise": "splice, infill:gpt2"}, {"noise_lm": "smollm2"}, *SHORT):
        once = resolve(load_config(None, settings), n_train=1000, hidden_size=768)
        assert resolve(once, n_train=1000, hidden_size=768) == once
        for name in ("batch_size", "steps", "learning_rate", "noise", "noise_ratio", "energy_weight", "mask_ratio"):
            assert getattr(once, name) is not None, name


def test_fewer_rows_than_a_batch():
    with pytest.raises(EbmcalError, match="There are 9 training rows and a batch has 16: take --batch-size 9 or less"):
        resolve(RunConfig(), n_train=9, hidden_size=768)
    assert resolve(RunConfig(batch_size=9), n_train=9, hidden_size=768).batch_size == 9


def test_a_warm_up_longer_than_the_run_is_refused():
    """Where only the number of rows says how long the run is."""
    with pytest.raises(EbmcalError, match="warmup-steps is 700 and the run has 625 steps"):
        resolve(RunConfig(warmup_steps=700), n_train=1000, hidden_size=768)


def test_more_steps_than_any_run_has():
    with pytest.raises(EbmcalError, match="Take fewer epochs"):
        resolve(RunConfig(epochs=10_000, batch_size=1), n_train=1_000_000, hidden_size=768)
