"""`RunConfig`: every mistake at once, and YAML."""

import pytest
import yaml

from ebmcal.config import (
    BY_CONTENT,
    FREE,
    RunConfig,
    differences,
    load_config,
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
        ({"noise": "splise"}, ["Unknown noise source 'splise'", "Did you mean 'splice'"]),
        ({"noise": ""}, ["noise names no source", "splice", "infill"]),
        ({"noise_lm": "gpt2", "noise_mode": "gap"}, ["Unknown noise source 'gap'", "Did you mean 'gaps'"]),
        ({"noise_mode": "gaps"}, ["noise-mode gaps needs a language model", "--noise gaps:gpt2"]),
        ({"noise": "splice", "noise_lm": "gpt2"}, ["noise (splice) says what noise-lm", "leave those out"]),
        ({"noise": "far", "noise_mode": "gaps"}, ["noise (far) says what noise-lm", "leave those out"]),
        ({"label_smoothing": 0}, ["label-smoothing", "greater than 0"]),
        ({"label_smoothing": 1}, ["label-smoothing", "less than 1"]),
        ({"focal_gamma": 0}, ["focal-gamma", "greater than 0"]),
        ({"mix_weight": 0}, ["mix-weight", "greater than 0"]),
        ({"task": "rt3"}, ["Unknown task 'rt3'", "rte"]),
        ({"task": "sts-b"}, ["regression"]),
        ({"metods": ["hidden"]}, ["Unknown setting 'metods'", "Did you mean 'methods'"]),
        ({"methods": []}, ["methods is empty"]),
        ({"seeds": []}, ["seeds is empty"]),
        ({"seeds": [1, 1]}, ["seeds has a repeated entry: 1, 1"]),
        ({"methods": ["hidden", "hidden"]}, ["methods has a repeated entry"]),
        ({"seeds": [-1]}, ["seeds must be 0 or more"]),
        ({"seeds": [2**32]}, ["seeds must be 0 or more and below 4294967296", "4294967296 came"]),
        ({"noise_seed": 2**32}, ["noise-seed", "less than 4294967296"]),
        ({"split_seed": 2**64}, ["split-seed", "less than 4294967296"]),
        ({"epochs": 1e300}, ["epochs", "less than or equal to 10000", "1e+300 came"]),
        ({"steps": 10**30}, ["steps", "less than or equal to"]),
        ({"learning_rate": 1e30}, ["learning-rate", "less than or equal to 1", "1e+30 came"]),
        ({"epochs": True}, ["epochs: true and false do not fit here; True came"]),
        ({"steps": True}, ["steps: true and false do not fit here"]),
        ({"seeds": [True]}, ["seeds: true and false do not fit here; [True] came"]),
        ({"task": False}, ["task: true and false do not fit here"]),
        ({"steps": 10, "warmup_steps": 11}, ["warmup-steps is 11 and the run has 10 steps"]),
        ({"seeds": ["one"]}, ["seeds.0", "'one' came"]),
        ({"methods": {"hidden": 1}}, ["methods", "list"]),
        ({"methods": ["auto", "scalar"]}, ["auto stands alone"]),
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
        (b"steps: 3\ntask: rte\nsteps: 4\n", "'steps' is given twice"),
        (b"noise-ratio: 3\nnoise_ratio: 4\n", "'noise_ratio' is given twice"),
        (b"ood: {a: x.csv, a: y.csv}\n", "'a' is given twice"),
        (b"task: 2024-13-45", "not readable YAML"),
        (b"task: " + b"[" * 5000, "not readable YAML"),
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


@pytest.mark.parametrize(
    ("older", "noise"),
    [
        ({"noise_lm": "gpt2"}, "infill:gpt2"),
        ({"noise_lm": "small"}, "infill:small"),
        ({"noise_lm": "small", "noise_mode": "gaps"}, "gaps:small"),
        ({"noise_lm": "some/folder", "noise_mode": "plain"}, "plain:some/folder"),
        ({"noise": "splice  .80,far .2"}, "splice 0.8, far 0.2"),
        ({"noise": "splice 0.5, far 0.5"}, "splice, far"),
        ({}, None),
    ],
)
def test_older_settings_and_other_spellings_become_noise(older, noise):
    config = load_config(None, older)
    assert (config.noise, config.noise_lm, config.noise_mode) == (noise, None, None)
    assert differences(config, load_config(None, {"noise": noise} if noise else {})) == []


def test_the_order_of_the_sources_makes_another_run():
    one, other = (load_config(None, {"noise": noise}) for noise in ("splice, far", "far, splice"))
    assert differences(one, other) == ["noise: there splice, far, now far, splice"]


def test_auto_stands_for_the_methods_that_the_advice_chooses_between():
    assert load_config(None, {"methods": ["auto"]}).methods == ["baseline", "hidden-smoothing"]
    assert load_config(None, {"methods": "hidden, scalar", "seeds": 3}).methods == ["hidden", "scalar"]


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
        "fsdp": True, "keep_checkpoints": True, "report_to": ["wandb"],
        "data_dir": "z", "train": "t", "calibration": "c", "test": "u", "encoding": "latin-1",
    }  # fmt: skip
    assert set(changed) == FREE | BY_CONTENT
    assert differences(one, one.model_copy(update=changed)) == []


def test_every_setting_is_described_and_has_a_place_in_the_help():
    for name, field in RunConfig.model_fields.items():
        assert field.description.endswith("."), name
        assert field.json_schema_extra["panel"], name


def test_a_switch_may_be_switched():
    assert load_config(None, {"hub": True, "fsdp": False}).hub is True


@pytest.mark.parametrize("name", ["latin-9000", "hex", "rot13"])
def test_an_encoding_that_there_is_not(name):
    assert f"There is no encoding {name!r}" in error_of(encoding=name)
