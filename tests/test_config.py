"""`RunConfig` and YAML files: all mistakes at once, with suggestions."""

from pathlib import Path

import pytest

from ebmcal.config import RunConfig, continued_config, dump_config, fixed_settings, load_config
from ebmcal.errors import EbmcalError
from ebmcal.methods import METHODS
from ebmcal.training.recipe import n_epochs, resolve_training


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_yaml_file_with_overrides(tmp_path):
    path = write(tmp_path / "run.yaml", "train: mine.csv\nbatch-size: 8\nmethods: baseline, hidden\nseeds: 3\n")
    config = load_config(path, {"batch_size": 4})
    assert (config.train, config.batch_size) == (Path("mine.csv"), 4)
    assert (config.methods, config.seeds) == (["baseline", "hidden"], [3])


def test_a_dumped_config_loads_again(tmp_path):
    config = load_config(None, {"train": "mine.csv", "ood": {"books": "books.csv"}, "noise": "splice .8, unrelated .2"})
    again = load_config(write(tmp_path / "c.yaml", dump_config(config)))
    assert again == config
    assert fixed_settings(again) == fixed_settings(config)


def test_a_continued_run_keeps_what_is_left_open(tmp_path):
    given = {"train": "mine.csv", "calibration": "held_out.csv", "test": "test.csv", "epochs": 3}
    recorded = write(tmp_path / "config.yaml", dump_config(load_config(None, given)))
    config = continued_config(load_config(None, {"train": "mine.csv"}), recorded)
    assert (config.calibration, config.test, config.epochs) == ("held_out.csv", Path("test.csv"), 3)
    changed = load_config(None, {"train": "mine.csv", "calibration": "cross-fit"})
    assert continued_config(changed, recorded).calibration == "cross-fit"


def test_all_mistakes_are_reported_at_once():
    with pytest.raises(EbmcalError) as error:
        load_config(None, {"stpes": 3, "methods": ["hiden"], "batch_size": 0, "steps": True, "seeds": [1, 1]})
    message = str(error.value)
    for part in ("Did you mean 'steps'", "Did you mean 'hidden'", "batch-size", "true and false", "repetitions"):
        assert part in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: a.csv\ntrain: b.csv\n", "duplicate key 'train'"),
        ("- a\n- b\n", "must contain `setting: value` lines"),
        ("a: [1\n", "not valid YAML"),
        ("x: " + "[" * 5000, "not valid YAML"),
        ("methods: [" + "a," * 20_000 + "]", "characters"),
        ("x" * 200_000, "characters"),
    ],
    ids=["duplicate", "list", "broken", "nested", "many", "long"],
)
def test_bad_yaml_is_explained_quickly(tmp_path, text, message):
    with pytest.raises(EbmcalError, match=message):
        load_config(write(tmp_path / "c.yaml", text))


def test_an_alias_bomb_is_refused(tmp_path):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]" for i in range(9)]
    with pytest.raises(EbmcalError, match="aliases"):
        load_config(write(tmp_path / "bomb.yaml", "\n".join(lines)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 5, "epochs": 1}, "either steps or epochs"),
        ({"task": "sst2", "train": "a.csv"}, "either a task or a training file"),
        ({"calibration": "cross-fit", "folds": 1}, "greater than or equal to 2"),
        ({"encoding": "hex"}, "Unknown encoding"),
        ({"ood": {"my books": "x.csv"}}, "letters, digits"),
        ({"recipe": "published"}, "one of the paper's tasks"),
        ({"task": "sst3"}, "Did you mean 'sst2'"),
        ({"seeds": [2**32]}, "seeds must be"),
        ({"output": f"{__file__}/run"}, r"output .*run: .*test_config\.py is a file; expected a directory"),
    ],
)
def test_inconsistent_settings(values, message):
    with pytest.raises(EbmcalError, match=message):
        load_config(None, values)


def test_changeable_settings_are_not_fixed():
    a, b = RunConfig(methods=["baseline"], seeds=[1]), RunConfig(methods=["hidden"], seeds=[2])
    assert fixed_settings(a) == fixed_settings(b)
    assert fixed_settings(RunConfig(batch_size=4)) != fixed_settings(a)


def test_every_setting_has_a_short_description():
    for name, field in RunConfig.model_fields.items():
        assert field.description, name
        assert len(field.description) < 110, name
    assert sum(bool(f.json_schema_extra["common"]) for f in RunConfig.model_fields.values()) <= 24
    assert set(RunConfig().methods) <= set(METHODS)


def test_the_published_recipe_is_the_papers():
    from ebmcal.data.tasks import find_task

    settings = resolve_training({}, 67349, 768, find_task("sst2").published)
    assert (settings.batch_size, settings.steps, settings.warmup_steps, settings.learning_rate) == (32, 5233, 314, 2e-5)
    assert (settings.noise, settings.noise_ratio, settings.energy_weight) == ("infill:gpt2", 8, 1.0)
    assert (settings.energy_schedule, settings.centered, settings.head_learning_rate) == ("constant", False, None)


def test_defaults_depend_on_the_data_and_the_encoder():
    small, large = resolve_training({}, 500, 384), resolve_training({}, 100_000, 768)
    assert (small.batch_size, large.batch_size) == (16, 32)
    assert small.learning_rate > large.learning_rate
    assert small.centered
    assert n_epochs(500) == 10
    assert resolve_training({"steps": 7, "energy_weight": 2.0}, 500, 384).steps == 7
