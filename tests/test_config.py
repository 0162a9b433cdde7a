"""`RunConfig`: every mistake at once, YAML, and what `resolve` fills in."""

import pytest
import yaml

from ebmcal.config import (
    BY_CONTENT,
    FREE,
    SHORT_RUN_NOISE_WEIGHT,
    TINY_MASK_RATIO,
    RunConfig,
    differences,
    load_config,
    resolve,
    save_config,
)
from ebmcal.errors import EbmcalError


def error_of(**settings):
    with pytest.raises(EbmcalError) as caught:
        load_config(None, settings)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"noise_ratio": 0}, ["noise-ratio", "greater than or equal to 1", "0 came"]),
        ({"noise_ratio": 2.5}, ["noise-ratio", "2.5 came"]),
        ({"mask_ratio": 0}, ["mask-ratio", "greater than 0"]),
        ({"mask_ratio": 1.0}, ["mask-ratio", "less than 1"]),
        ({"mask_ratio": -0.2}, ["mask-ratio"]),
        ({"mask_ratio": float("nan")}, ["mask-ratio"]),
        ({"energy_weight": 0}, ["energy-weight"]),
        ({"top_k": 0}, ["top-k"]),
        ({"steps": 0}, ["steps"]),
        ({"precision": "fp8"}, ["precision", "'fp8' came"]),
        ({"max_length": 4}, ["max-length"]),
        ({"noise_start": 1.0}, ["noise-start"]),
        ({"methods": ["hiden"]}, ["Unknown method 'hiden'", "Did you mean 'hidden'", "sharp-hidden"]),
        ({"posthoc": ["temprature"]}, ["Unknown calibrator", "Did you mean 'temperature'"]),
        ({"noise_mode": "gap"}, ["Unknown noise mode 'gap'", "Did you mean 'gaps'"]),
        ({"task": "rt3"}, ["Unknown task 'rt3'", "rte"]),
        ({"task": "sts-b"}, ["regression"]),
        ({"metods": ["hidden"]}, ["Unknown setting 'metods'", "Did you mean 'methods'"]),
        ({"methods": []}, ["methods is empty"]),
        ({"seeds": []}, ["seeds is empty"]),
        ({"seeds": [1, 1]}, ["seeds has a repeated entry: 1, 1"]),
        ({"methods": ["hidden", "hidden"]}, ["methods has a repeated entry"]),
        ({"seeds": [-1]}, ["seeds must be 0 or more"]),
        ({"seeds": ["one"]}, ["seeds.0", "'one' came"]),
        ({"methods": "hidden"}, ["methods", "list"]),
        ({"steps": 5, "epochs": 1}, ["steps and epochs are two ways"]),
    ],
)
def test_a_mistake_is_explained(settings, words):
    message = error_of(**settings)
    assert all(word in message for word in words), message
    assert "\n" not in message  # one mistake is one line


def test_all_mistakes_come_at_once():
    """Wrong types, values out of range, unknown settings and unknown names in one error."""
    message = error_of(
        noise_ratio=0,
        mask_ratio=2,
        stepps=5,
        methods=["hiden"],
        task="ret",
        seeds=[1, 1],
        precision="half",
        steps="many",
    )
    lines = message.splitlines()
    assert lines[0] == "The config has mistakes:"
    assert len(lines) == 9
    for word in ("noise-ratio", "mask-ratio", "stepps", "hiden", "'ret'", "seeds", "precision", "steps:"):
        assert any(word in line for line in lines[1:]), word


def test_yaml_with_overrides(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("task: rte\nnoise-ratio: 4\nlearning_rate: 2e-5\nmethods: [baseline]\n")
    config = load_config(path, {"methods": ["hidden"], "steps": 7})
    assert (config.task, config.noise_ratio, config.learning_rate) == ("rte", 4, 2e-5)
    assert (config.methods, config.steps) == (["hidden"], 7)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"task: [rte", "not readable YAML"),
        (b"\xff\xfe\x00", "not readable YAML"),
        (b"- task\n- rte\n", "must have `setting: value` lines; it is a list"),
        (b"rte", "it is a str"),
        (b"1: 2", "`setting: value`"),
        (b"task: !!python/object/apply:os.system ['true']", "not readable YAML"),
    ],
)
def test_a_file_that_is_no_config(content, words, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(EbmcalError, match=r"run\.yaml") as caught:
        load_config(path, {})
    assert words in str(caught.value)


def test_an_absent_or_empty_file(tmp_path):
    with pytest.raises(EbmcalError, match=r"absent.yaml does not exist"):
        load_config(tmp_path / "absent.yaml", {})
    with pytest.raises(EbmcalError, match="not readable"):
        load_config(tmp_path, {})
    (tmp_path / "empty.yaml").write_text("")
    assert load_config(tmp_path / "empty.yaml", {}) == RunConfig()


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
    assert (config.noise_mode, config.eval_steps, config.weight_decay, config.max_length) == ("infill", 500, 0.1, 128)
    assert (config.encoder, config.noise_lm) == ("roberta-base", "gpt2")


SHORT = [
    {"task": "rte", "max_train_rows": 500},
    {"task": "rte", "epochs": 2},
    {"task": "rte", "steps": 100},
    {"task": "rte", "train": "own.csv"},
    {"task": "rotten-tomatoes"},
    {"train": "own.csv"},
]


@pytest.mark.parametrize("settings", SHORT)
def test_other_runs_have_short_run_settings(settings):
    config = resolve(load_config(None, settings), n_train=1000, hidden_size=768)
    assert (config.noise_ratio, config.batch_size, config.learning_rate) == (2, 16, 2e-5)
    assert config.energy_weight * config.noise_ratio == pytest.approx(SHORT_RUN_NOISE_WEIGHT)
    expected = settings.get("steps") or round(settings.get("epochs", 4) * 1000 / 16)
    assert config.steps == expected
    assert config.warmup_steps == round(0.06 * expected)
    assert config.noise_lm_learning_rate == 1e-4
    assert config.eval_steps <= config.steps
    assert config.save_steps <= config.steps


def test_the_balance_follows_the_noise_ratio():
    for ratio in (1, 2, 8):
        config = resolve(RunConfig(noise_ratio=ratio), n_train=1000, hidden_size=768)
        assert config.energy_weight * ratio == pytest.approx(SHORT_RUN_NOISE_WEIGHT)


def test_tiny_and_small_encoders_have_settings_of_their_own():
    config = resolve(RunConfig(noise_lm="tiny"), n_train=5000, hidden_size=384)
    assert (config.noise_mode, config.mask_ratio, config.batch_size) == ("gaps", TINY_MASK_RATIO, 32)
    assert config.learning_rate == pytest.approx(5e-5)


def test_what_was_given_is_kept():
    given = {
        "batch_size": 8, "steps": 3, "learning_rate": 1e-3, "warmup_steps": 0, "noise_ratio": 5, "mask_ratio": 0.3,
        "energy_weight": 0.7, "noise_mode": "plain", "noise_lm_batch_size": 2, "noise_lm_steps": 9,
        "noise_lm_learning_rate": 1e-2, "eval_steps": 2, "save_steps": 1,
    }  # fmt: skip
    config = resolve(load_config(None, {"task": "rte", **given}), n_train=100, hidden_size=768)
    assert {name: getattr(config, name) for name in given} == given


def test_nothing_is_left_open_and_resolving_again_changes_nothing():
    for settings in ({"task": "rte"}, *SHORT):
        once = resolve(load_config(None, settings), n_train=1000, hidden_size=768)
        assert resolve(once, n_train=1000, hidden_size=768) == once
        for name in ("batch_size", "steps", "learning_rate", "noise_ratio", "energy_weight"):
            assert getattr(once, name) is not None


def test_fewer_rows_than_a_batch():
    with pytest.raises(EbmcalError, match="There are 9 training rows and a batch has 16: take --batch-size 9 or less"):
        resolve(RunConfig(), n_train=9, hidden_size=768)
    assert resolve(RunConfig(batch_size=9), n_train=9, hidden_size=768).batch_size == 9


def test_a_saved_config_is_read_back(tmp_path):
    config = load_config(None, {"task": "rte", "output": "runs/ü", "ood": {"a": "b.csv"}, "mask_ratio": 0.1})
    (tmp_path / "config.yaml").write_text(save_config(config), encoding="utf-8")
    assert load_config(tmp_path / "config.yaml", {}) == config
    assert yaml.safe_load(save_config(config))["output"] == "runs/ü"


def test_what_makes_another_run():
    one = RunConfig(task="rte", steps=5)
    assert differences(one, one.model_copy(update={"steps": 6})) == ["steps: there 5, now 6"]
    changed = {
        "methods": ["scalar"], "seeds": [4], "posthoc": [], "output": "x", "cache_dir": "y", "ood": {"a": "b"},
        "fsdp": True, "keep_checkpoints": True, "data_dir": "z", "train": "t", "calibration": "c", "test": "u",
    }  # fmt: skip
    assert set(changed) == FREE | BY_CONTENT
    assert differences(one, one.model_copy(update=changed)) == []


def test_every_setting_is_described_and_has_a_place_in_the_help():
    for name, field in RunConfig.model_fields.items():
        assert field.description.endswith("."), name
        assert field.json_schema_extra["panel"], name
