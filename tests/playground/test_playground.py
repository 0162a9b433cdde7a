"""The routes of the playground: what is shown of a text, words by energy, the report of a file, histograms."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from ebmcal.calibrators import attach
from ebmcal.calibrators.in_model import attach_folded
from ebmcal.cli import main
from ebmcal.decisions import SCORES, decide
from ebmcal.errors import EbmcalError
from ebmcal.histograms import FILE_NAME, keep_histograms, kept_histograms
from ebmcal.model import load
from ebmcal.playground.looking import without, word_spans
from ebmcal.playground.routes import LIMITS, add_playground
from ebmcal.serve import create_app
from serving import NAMES, call, fitted_temperature, running, save_classifier
from tiny_models import SENTENCES

TEXT = "the film was never dull"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A calibrated model that has histograms, and a plain one."""
    place = tmp_path_factory.mktemp("playground")
    first, second = (save_classifier(place / name) for name in ("films", "plain"))
    attach(first, fitted_temperature())
    keep_histograms(first, {"train": load(first).predict(SENTENCES), "ood_odd": load(first).predict(["zzz qq"] * 5)})
    return {"films": load(first), "plain": load(second)}


@pytest.fixture(scope="module")
def app(models):
    with running(create_app(models, limits=LIMITS, extend=add_playground)) as app:
        yield app


def look(app, **body):
    return call(app, "POST", "/playground/look", json=body)


def test_posteriors_stand_beside_each_other_before_and_after(app, models):
    films, plain = look(app, text=TEXT).json()["models"]
    assert (films["name"], plain["name"]) == ("films", "plain")
    before, after = models["films"].predict([TEXT], calibrated=False), models["films"].predict([TEXT])
    assert list(films["before"].values()) == pytest.approx(before.probs[0], abs=1e-5)
    assert list(films["probabilities"].values()) == pytest.approx(after.probs[0], abs=1e-5)
    assert films["before"] != pytest.approx(films["probabilities"], abs=1e-3)
    assert plain["before"] == pytest.approx(plain["probabilities"])
    assert (films["calibrator"], plain["calibrator"]) == ("temperature", None)


def test_a_folded_temperature_is_taken_out_of_the_posterior_before(tmp_path):
    raw = load(save_classifier(tmp_path / "folded")).predict([TEXT])
    attach_folded(tmp_path / "folded", fitted_temperature())
    with running(create_app({"m": load(tmp_path / "folded")}, extend=add_playground)) as app:
        (found,) = look(app, text=TEXT).json()["models"]
    assert list(found["before"].values()) == pytest.approx(raw.probs[0], abs=1e-4)
    assert "in the weights" in found["calibrator"]


def test_words_are_left_out_one_by_one(app, models):
    found = look(app, text=f" {TEXT}\n 😀 end").json()
    text = f" {TEXT}\n 😀 end"
    assert [word["word"] for word in found["words"]] == text.split()
    energies = models["films"].energy([text, *(without(text, span) for span in word_spans(text))])
    assert [word["rise"] for word in found["words"]] == pytest.approx(energies[0] - energies[1:], abs=1e-4)
    assert look(app, text="film").json()["words"] == []
    assert (found["n_words"], len(look(app, text="a " * 150).json()["words"])) == (7, 100)


@pytest.mark.parametrize("body", [{"text": ""}, {"text": "  "}, {}, {"text": 3}, {"text": "x" * 100_001}])
def test_what_is_no_text_is_refused(app, body):
    answer = look(app, **body)
    assert answer.status_code == 422
    assert answer.json()["error"]


def test_the_page_is_one_site_of_its_own(app):
    pages = {path: call(app, "GET", path) for path in ("/", "/playground.css", "/playground.js")}
    assert all(page.status_code == 200 for page in pages.values())
    assert "default-src 'none'" in pages["/"].headers["content-security-policy"]
    for page in pages.values():
        found = page.text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in found
        assert "https://" not in found
    about = call(app, "GET", "/playground/about").json()
    assert about["models"] == ["films", "plain"]
    assert list(about["histogram"]["shares"]) == ["train", "ood_odd"]
    assert "/playground/look" not in call(app, "GET", "/openapi.json").json()["paths"]


@pytest.mark.parametrize(
    ("score", "words"), [("confidence", "confidence is"), ("energy", "minus the energy is"), ("both", "the score of")]
)
def test_the_decision_is_explained_by_the_score_of_the_rule(tmp_path, score, words):
    folder = save_classifier(tmp_path / "ruled")
    held_out = {"text": SENTENCES, "label": load(folder).predict(SENTENCES).labels_.tolist()}
    rows = load(folder).predict(held_out, label_column="label")
    trust = SCORES[score](rows)[:, 0]
    flipped = np.where(trust < np.quantile(trust, 0.3), (rows.labels + 1) % 3, rows.labels)  # wrong where trust is low
    decide(folder, replace(rows, labels=flipped), max_error=0.15, confidence=0.6, score=score)
    model = load(folder)
    with running(create_app({"m": model}, extend=add_playground)) as app:
        found = [look(app, text=text).json()["models"][0] for text in SENTENCES[::8]]
    for text, one in zip(SENTENCES[::8], found, strict=True):
        side = "at least" if one["decision"] == "answer" else "below"
        value = model.rule.decide(model.predict([text])).scores[0]
        assert one["why"].startswith(words)
        assert side in one["why"]
        assert float(one["why"].split(" is ")[1].split(",")[0]) == pytest.approx(value, abs=1e-3, rel=1e-3)
        assert one["unusual_by"] == "an energy"


# Files


def report(app, content):
    """The report of a file, or the refusal."""
    made = call(app, "POST", "/playground/report", content=content, headers={"content-type": "text/csv"})
    return call(app, "GET", f"/{made.json()['report']}") if made.status_code == 200 else made


def test_only_reports_that_were_made_are_there(app):
    assert call(app, "GET", "/playground/report/x").status_code == 404


def test_a_file_of_labelled_texts_gets_its_report(app):
    lines = [f'"{text}",{NAMES[i % 3]}' for i, text in enumerate(SENTENCES[:60])]
    answer = report(app, "\n".join(["text,label", *lines]).encode())
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "films" in answer.text
    assert "plain" in answer.text
    assert any(text in answer.text for text in SENTENCES[:60]), "texts by energy"


def test_a_file_of_predictions_gets_its_report(app):
    lines = ["no,0.9,0.1", "yes,0.2,0.8", "yes,0.7,0.3"] * 10
    answer = report(app, "\n".join(["label,prob_no,prob_yes", *lines]).encode())
    assert answer.status_code == 200, answer.text
    assert "your file" in answer.text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "needs text and label"),
        (b"text,tag\na,b\n", "has the columns text, tag"),
        (b"text,label\nfine,wonderful\n", "wonderful"),
        (b"text,label\n", "row"),
        (b"\xff\xfe\x00", "no CSV in UTF-8"),
        (b"label,prob_no,prob_yes\nno,2,3\n", "prob"),
        (b"text,label\n" + b"a joy,good\n" * 2001, "2,000 are the most"),
    ],
)
def test_a_file_that_cannot_be_reported_is_refused_with_a_reason(app, content, said):
    answer = report(app, content)
    assert (answer.status_code, said in answer.json()["error"]) == (422, True), answer.text


def test_the_key_guards_the_playground_but_not_its_page(models):
    with running(create_app({"films": models["films"]}, api_key="k", extend=add_playground)) as app:
        codes = [call(app, "GET", path).status_code for path in ("/", "/playground.js", "/playground/about")]
        codes += [look(app, text="a").status_code, report(app, b"").status_code]
    assert codes == [200, 200, 401, 401, 401]


def test_two_models_of_different_labels_are_refused(tmp_path, capsys):
    one, other = save_classifier(tmp_path / "a"), save_classifier(tmp_path / "b", ("x", "y", "z"))
    with pytest.raises(SystemExit) as stop:
        main(["playground", str(one), str(other), "--port", "0"])
    assert stop.value.code == 1
    assert "different labels: bad, fair, good and x, y, z" in " ".join(capsys.readouterr().err.split())


# Histograms


def test_histograms_are_kept_with_the_model_and_read_again(tmp_path, models):
    rows = models["films"].predict(SENTENCES)
    made = keep_histograms(tmp_path, {"train": rows})
    kept = kept_histograms(tmp_path)
    np.testing.assert_allclose(kept.edges, made.edges)
    np.testing.assert_allclose(kept.shares["train"], made.shares["train"], atol=1e-6)
    assert kept.shares["train"].sum() == pytest.approx(1, abs=1e-4)
    assert kept_histograms(models["plain"].folder) is None


@pytest.mark.parametrize("damage", ["{}", "[]", '{"format": 2, "edges": [0, 1], "shares": {}}', "NaN",
                                    '{"format": 1, "edges": [0, 1], "shares": {"a": [1, 2]}}'])  # fmt: skip
def test_damaged_histograms_are_called_damaged(tmp_path, damage):
    (tmp_path / FILE_NAME).write_text(damage)
    with pytest.raises(EbmcalError, match=r"damaged"):
        kept_histograms(tmp_path)


def test_a_run_without_them_has_them_from_its_predictions(tmp_path, models):
    folder = tmp_path / "run" / "checkpoints" / "hidden-seed1" / "model"
    folder.mkdir(parents=True)
    (tmp_path / "run" / "predictions" / "hidden-seed1").mkdir(parents=True)
    models["films"].predict(SENTENCES).write(tmp_path / "run" / "predictions" / "hidden-seed1" / "noise.parquet")
    assert list(kept_histograms(folder).shares) == ["noise"]
    assert json.dumps(kept_histograms(folder).edges.tolist())
