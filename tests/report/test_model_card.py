"""Model cards: what stands on them, that an edited one stays, and that a sealed folder stays whole."""

import pytest
import yaml

from ebmcal.report import model_card
from ebmcal.report.model_card import write_card
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import write_json
from ebmcal.storage.sealing import damage, seal
from synthetic_run import LABELS, make_predictions, make_run

DRAWN = model_card._write_picture


@pytest.fixture(autouse=True)
def with_picture(monkeypatch):
    monkeypatch.setattr(model_card, "_write_picture", DRAWN)


@pytest.fixture
def model(tmp_path):
    """The model folder of a finished run, without weights."""
    run = RunFolder(make_run(tmp_path / "run"))
    run.config.write_text(
        "task: rte\nencoder: org/small\nsteps: 20\nmethods: [hidden, scalar]\n"
        "train: /secret/rows.csv\noutput: /secret/place\n"
    )
    folder = run.model(Cell("hidden", 2))
    folder.mkdir(parents=True)
    make_predictions(200, 1.4, 9).write(run.predictions(Cell("hidden", 2), "calibration"))
    write_json(folder / "config.json", {"id2label": dict(enumerate(LABELS))})
    facts = {
        "energy": "hidden",
        "method": "hidden",
        "seed": 2,
        "task": "rte",
        "max_length": 64,
        "training": {"noise_texts_used": 9},
        "text_pair_column": "b",
    }
    write_json(folder / "ebmcal.json", facts)
    seal(folder)
    return folder


def test_what_stands_on_a_card(model):
    text = write_card(model).read_text(encoding="utf-8")
    header = yaml.safe_load(text.split("---\n")[1])
    assert header["pipeline_tag"] == "text-classification"
    assert header["base_model"] == "org/small"
    (result,) = header["model-index"][0]["results"]
    assert {m["type"] for m in result["metrics"]} >= {"accuracy", "ece_top_label", "nll"}
    assert "| hidden + temperature (dev) |" in text
    assert "baseline |" not in text
    assert "ebmcal run \\\n  --task rte \\\n" in text
    assert "--methods hidden,scalar" in text
    assert "/secret" not in text
    assert "--train rows.csv" in text
    assert "`<script>alert(1)</script>`" in text
    assert "64 tokens" in text
    assert "Other seeds than 2" in text
    assert "![Reliability" in text
    assert (model / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert not damage(model)


def test_the_same_card_twice_and_an_edited_one_stays(model):
    first = write_card(model).read_text(encoding="utf-8")
    assert write_card(model).read_text(encoding="utf-8") == first
    (model / "README.md").write_text(first.replace("# rte", "# My model"), encoding="utf-8")
    assert write_card(model) is None
    assert "# My model" in (model / "README.md").read_text(encoding="utf-8")
    (model / "README.md").write_text("mine", encoding="utf-8")
    assert write_card(model) is None


def test_a_folder_of_somebody_else_has_a_card_too(tmp_path):
    write_json(tmp_path / "config.json", {"id2label": {"0": "no", "1": "yes"}})
    text = write_card(tmp_path).read_text(encoding="utf-8")
    assert "not evaluated" in text
    assert "`no`, `yes`" in text
    assert "energy" not in text.split("# text classification")[1].split("## How")[0]


def test_a_run_leaves_cards_and_goes_on(tmp_path, encoder_folder):
    pytest.importorskip("torch")
    from ebmcal.pipeline.stages import run, train_only
    from small_runs import Lines, own_rows, settings, write_csv

    files = write_csv(tmp_path / "rows.csv", own_rows(60))
    given = settings(files, encoder_folder, tmp_path, methods=["baseline"], steps=2, eval_steps=2)
    train_only(given, Lines())
    card = RunFolder(tmp_path / "run").model(Cell("baseline", 1)) / "README.md"
    assert "trained and not evaluated" in card.read_text(encoding="utf-8")
    run(given, Lines())
    assert "| baseline |" in card.read_text(encoding="utf-8")
    card.write_text("mine", encoding="utf-8")
    again = Lines()
    run(given, again)
    assert card.read_text(encoding="utf-8") == "mine"
    assert not [line for line in again.lines if "damaged" in line]
