"""The routes of the web UI: explanation of a text, effect of words, histograms, the page."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from server_tools import call, fit_rule, fitted_temperature, running, save_classifier

import ebmcal
from ebmcal.calibration import save_calibrator
from ebmcal.reports.plots import energy_histogram
from ebmcal.run_dir import update_card
from ebmcal.serving import Limits, create_app
from tiny_models import SENTENCES

TEXT = "the film was never dull"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A calibrated model with histograms."""
    folder = save_classifier(tmp_path_factory.mktemp("ui") / "films")
    save_calibrator(folder, fitted_temperature())
    plain = ebmcal.load(folder)
    named = {"ood_odd": plain.predict(["zzz qq"] * 5), "calibration": plain.predict(SENTENCES[:9])}
    update_card(folder, histograms=energy_histogram(named | {"train": plain.predict(SENTENCES)}))
    return ebmcal.load(folder)


@pytest.fixture(scope="module")
def app(model):
    with running(create_app(model, name="films", with_ui=True)) as app:
        yield app


def explain(app, **body):
    return call(app, "POST", "/ui/explain", json={"inputs": body})


def test_probabilities_before_and_after_calibration(app, model):
    found = explain(app, text=TEXT).json()
    before, after = model.predict([TEXT], calibrated=False), model.predict([TEXT])
    assert list(found["before"].values()) == pytest.approx(before.probs[0], abs=1e-5)
    assert list(found["probabilities"].values()) == pytest.approx(after.probs[0], abs=1e-5)
    assert found["before"] != pytest.approx(found["probabilities"], abs=1e-3)


def test_a_folded_temperature_is_removed_from_the_probabilities_before(tmp_path):
    raw = ebmcal.load(save_classifier(tmp_path / "folded")).predict([TEXT])
    save_calibrator(tmp_path / "folded", fitted_temperature(), fold=True)
    with running(create_app(ebmcal.load(tmp_path / "folded"), with_ui=True)) as app:
        found = explain(app, text=TEXT).json()
    assert list(found["before"].values()) == pytest.approx(raw.probs[0], abs=1e-4)


def test_words_are_left_out_one_by_one(app, model):
    text = f" {TEXT}\n 😀 end"
    found = explain(app, text=text).json()
    assert [word["word"] for word in found["words"]] == text.split()
    shorter = ["film was never dull\n 😀 end", "the was never dull\n 😀 end", "the film never dull\n 😀 end"]
    shorter += ["the film was dull\n 😀 end", "the film was never 😀 end", "the film was never dull\n end"]
    energies = model.energy([text, *shorter, "the film was never dull\n 😀"])
    assert [word["effect"] for word in found["words"]] == pytest.approx(energies[0] - energies[1:], abs=1e-4)
    assert explain(app, text="film").json()["words"] == []
    assert (found["n_words"], len(explain(app, text="a " * 150).json()["words"])) == (7, 100)


def test_a_long_text_stays_within_the_limits(model):
    limits = Limits(max_texts=8, max_tokens=200, max_queue=8)
    with running(create_app(model, limits=limits, with_ui=True)) as app:
        response = explain(app, text="the film was dull " * 5000)
    assert response.status_code == 200, response.text
    assert len(response.json()["words"]) == 100
    assert response.json()["n_words"] < 20_000, "words that the model does not read are cut first"


@pytest.mark.parametrize("body", [{"text": ""}, {"text": "  "}, {}, {"text": 3}, {"text": "x" * 100_001}])
def test_invalid_texts_are_refused(app, body):
    response = explain(app, **body)
    assert response.status_code == 422
    assert response.json()["error"]


@pytest.mark.parametrize(("score", "name"), [("confidence", "confidence is"), ("energy", "the negative energy is")])
def test_the_score_that_made_the_decision_is_shown(tmp_path, score, name):
    folder = save_classifier(tmp_path / "ruled")

    def is_wrong(rows):
        trust = rows.confidence if score == "confidence" else -rows.energies
        return trust < np.quantile(trust, 0.3)

    model = fit_rule(folder, is_wrong, max_error=0.15, confidence=0.6, score=score, ood=0)
    texts = SENTENCES[::8]
    with running(create_app(model, with_ui=True)) as app:
        found = [explain(app, text=text).json() for text in texts]
    expected = model.abstention_rule.apply(model.predict(texts))
    assert {one["decision"] for one in found} == {"answer", "abstain"}
    for one, value in zip(found, expected.score, strict=True):
        side = "at least" if one["decision"] == "answer" else "below"
        assert one["explanation"].startswith(name)
        assert side in one["explanation"]
        assert float(one["explanation"].split(" is ")[1].split(",")[0]) == pytest.approx(value, abs=1e-3, rel=1e-3)


def test_the_ood_score_is_shown_by_its_name(tmp_path):
    training = [f"a new {text}" for text in SENTENCES]
    model = fit_rule(save_classifier(tmp_path / "ruled"), ood=0.2, ood_score="knn", training=training)
    scores = model.abstention_rule.apply(model.predict(SENTENCES)).ood_score
    texts = [SENTENCES[scores.argmin()], SENTENCES[scores.argmax()]]
    with running(create_app(model, with_ui=True)) as app:
        found = [explain(app, text=text).json() for text in texts]
    assert [one["is_ood"] for one in found] == [False, True]
    assert {one["ood_score_name"] for one in found} == {"the distance to the nearest training texts"}
    assert [one["ood_score"] for one in found] == pytest.approx([scores.min(), scores.max()], abs=1e-4)
    assert found[0]["explanation"].startswith("not out-of-distribution (p = ")
    assert found[1]["explanation"].startswith("out-of-distribution by the distance")


# The page


def test_the_page_uses_nothing_from_other_servers(app):
    pages = {path: call(app, "GET", path) for path in ("/", "/ui.css", "/ui.js")}
    assert all(page.status_code == 200 for page in pages.values())
    assert "default-src 'none'" in pages["/"].headers["content-security-policy"]
    for page in pages.values():
        text = page.text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
    about = call(app, "GET", "/ui/about").json()
    assert about["name"] == "films"
    assert list(about["histogram"]["shares"]) == ["train", "ood_odd"]
    assert about["is_energy_trained"] is False
    assert "/ui/explain" not in call(app, "GET", "/openapi.json").json()["paths"]


def test_the_api_key_protects_everything_but_the_page(model):
    with running(create_app(model, api_key="k", with_ui=True)) as app:
        codes = [call(app, "GET", path).status_code for path in ("/", "/ui.js", "/ui/about")]
        codes.append(explain(app, text="a").status_code)
    assert codes == [200, 200, 401, 401]
