"""The routes of the web UI: explanation of a text, effect of words, evaluation of a file, histograms, the page."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from server_tools import NAMES, call, fit_rule, fitted_temperature, running, save_classifier

import ebmcal
from ebmcal.calibration import save_calibrator
from ebmcal.reports.plots import energy_histogram
from ebmcal.run_dir import update_card
from ebmcal.serving import Limits, create_app
from ebmcal.serving.ui import add_ui
from tiny_models import SENTENCES

TEXT = "the film was never dull"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A calibrated model with histograms, and a plain one."""
    place = tmp_path_factory.mktemp("ui")
    first, second = (save_classifier(place / name) for name in ("films", "plain"))
    save_calibrator(first, fitted_temperature())
    plain = ebmcal.load(first)
    named = {"ood_odd": plain.predict(["zzz qq"] * 5), "calibration": plain.predict(SENTENCES[:9])}
    histogram = energy_histogram(named | {"train": plain.predict(SENTENCES)})
    update_card(first, histograms=histogram)
    return {"films": ebmcal.load(first), "plain": ebmcal.load(second)}


@pytest.fixture(scope="module")
def app(models):
    with running(create_app(models, extend=add_ui)) as app:
        yield app


def explain(app, **body):
    return call(app, "POST", "/ui/explain", json={"inputs": body})


def test_probabilities_before_and_after_calibration(app, models):
    films, plain = explain(app, text=TEXT).json()["models"]
    assert (films["name"], plain["name"]) == ("films", "plain")
    before, after = models["films"].predict([TEXT], calibrated=False), models["films"].predict([TEXT])
    assert list(films["before"].values()) == pytest.approx(before.probs[0], abs=1e-5)
    assert list(films["probabilities"].values()) == pytest.approx(after.probs[0], abs=1e-5)
    assert films["before"] != pytest.approx(films["probabilities"], abs=1e-3)
    assert plain["before"] == pytest.approx(plain["probabilities"])
    assert (films["calibrator"], plain["calibrator"]) == ("temperature", None)


def test_a_folded_temperature_is_removed_from_the_probabilities_before(tmp_path):
    raw = ebmcal.load(save_classifier(tmp_path / "folded")).predict([TEXT])
    save_calibrator(tmp_path / "folded", fitted_temperature(), fold=True)
    with running(create_app({"m": ebmcal.load(tmp_path / "folded")}, extend=add_ui)) as app:
        (found,) = explain(app, text=TEXT).json()["models"]
    assert list(found["before"].values()) == pytest.approx(raw.probs[0], abs=1e-4)
    assert "in the weights" in found["calibrator"]


def test_words_are_left_out_one_by_one(app, models):
    text = f" {TEXT}\n 😀 end"
    found = explain(app, text=text).json()
    assert [word["word"] for word in found["words"]] == text.split()
    shorter = ["film was never dull\n 😀 end", "the was never dull\n 😀 end", "the film never dull\n 😀 end"]
    shorter += ["the film was dull\n 😀 end", "the film was never 😀 end", "the film was never dull\n end"]
    p = models["films"].predict([text, *shorter, "the film was never dull\n 😀"])
    of_label = p.probs[:, p.predicted[0]]
    assert [word["effect"] for word in found["words"]] == pytest.approx(of_label[0] - of_label[1:], abs=1e-4)
    effects = [word["energy_effect"] for word in found["words"]]
    assert effects == pytest.approx(p.energies[0] - p.energies[1:], abs=1e-4)
    assert explain(app, text="film").json()["words"] == []
    assert (found["n_words"], len(explain(app, text="a " * 150).json()["words"])) == (7, 100)


def test_a_long_text_stays_within_the_limits(models):
    limits = Limits(max_texts=8, max_tokens=200, max_queue=8)
    with running(create_app({"films": models["films"]}, limits=limits, extend=add_ui)) as app:
        response = explain(app, text="the film was dull " * 5000)
    assert response.status_code == 200, response.text
    assert len(response.json()["words"]) == 100
    assert response.json()["n_words"] < 20_000, "words that the model does not read are cut first"


@pytest.mark.parametrize(("score", "name"), [("confidence", "confidence is"), ("energy", "the negative energy is")])
def test_the_score_that_made_the_decision_is_shown(tmp_path, score, name):
    folder = save_classifier(tmp_path / "ruled")

    def is_wrong(rows):
        trust = rows.confidence if score == "confidence" else -rows.energies
        return trust < np.quantile(trust, 0.3)

    model = fit_rule(folder, is_wrong, max_error=0.15, confidence=0.6, score=score, ood=0)
    texts = SENTENCES[::8]
    with running(create_app({"m": model}, extend=add_ui)) as app:
        found = [explain(app, text=text).json()["models"][0] for text in texts]
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
    with running(create_app({"m": model}, extend=add_ui)) as app:
        found = [explain(app, text=text).json()["models"][0] for text in texts]
    assert [one["is_ood"] for one in found] == [False, True]
    assert {one["ood_score_name"] for one in found} == {"the distance to the nearest training texts"}
    assert [one["ood_score"] for one in found] == pytest.approx([scores.min(), scores.max()], abs=1e-4)
    assert found[0]["explanation"].startswith("not out-of-distribution (p = ")
    assert found[1]["explanation"].startswith("out-of-distribution by the distance")


# Files


def upload(app, content, **columns):
    """The report of a file, or the refusal."""
    headers = {"content-type": "text/csv"}
    created = call(app, "POST", "/ui/report", content=content, headers=headers, params=columns)
    return call(app, "GET", f"/{created.json()['report']}") if created.status_code == 200 else created


def describe(app, content):
    return call(app, "POST", "/ui/columns", content=content, headers={"content-type": "text/csv"})


@pytest.mark.parametrize(
    ("content", "text", "label", "is_predictions"),
    [
        (b"text,label\na,good\n", "text", "label", False),
        (b"id;category;sentence\n1;good;a\n", "sentence", "category", False),
        (b"comment\tverdict\na\tgood\n", "comment", "verdict", False),
        (b"n,verdict,comment\n1,good,a fine film\n2,bad,a dull one\n", "comment", "verdict", False),
        (b"verdict,comment\n+,a fine film\n-,a dull one\n", "comment", "verdict", False),
        (b"comment\na fine film\n", "comment", None, False),
        (b"\xef\xbb\xbfnumber,label,prob_no,prob_yes\n1,no,0.9,0.1\n", None, "label", True),
    ],
)
def test_columns_are_listed_and_guessed(app, content, text, label, is_predictions):
    found = describe(app, content).json()
    assert (found["label"], found["is_predictions"]) == (label, is_predictions)
    assert is_predictions or found["text"] == text
    assert {found["text"], label} <= {*found["columns"], None}


@pytest.mark.parametrize("names", [("text", "label"), ("comment", "verdict")])
def test_labelled_texts_get_a_report_of_the_chosen_columns(app, names):
    lines = [f'{i},"{text}",{NAMES[i % 3]}' for i, text in enumerate(SENTENCES[:60])]
    response = upload(app, "\n".join([f"n,{','.join(names)}", *lines]).encode(), text=names[0], label=names[1])
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/html")
    assert "films" in response.text
    assert "plain" in response.text


def test_predictions_get_a_report_of_the_chosen_label(app):
    lines = ["no,0.9,0.1", "yes,0.2,0.8", "yes,0.7,0.3"] * 10
    response = upload(app, "\n".join(["truth,prob_no,prob_yes", *lines]).encode(), label="truth")
    assert response.status_code == 200, response.text
    assert "your file" in response.text


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        (b"", {}, "Empty CSV file"),
        (b"text,tag\na,b\n", {}, "Unknown column 'label'"),
        (b"text,label\na,good\n", {"text": "txt"}, "Did you mean 'text'"),
        (b"text,label\nfine,wonderful\n", {}, "wonderful"),
        (b"text,label\nfine,0\ndull,1\n", {}, "numbers (0, 1), but the classes are bad, fair, good"),
        (b"text,label\nfine,0\ndull,1.00\n", {}, "numbers (0, 1)"),
        (b"text\nfine\n", {"label": ""}, "Choose the column with the true labels"),
        (b"text,label\nfine,good\n", {"label": "text"}, "Choose the column with the true labels"),
        (b"text,label\n", {}, "row"),
        (b"\xff\xfe\x00", {}, "utf-16"),
        (b"label,prob_no,prob_yes\nno,2,3\n", {}, "prob"),
        (b"label,prob_no,prob_yes\nno,0.2,0.8\n", {"label": "lable"}, "Did you mean 'label'"),
        (b"text,label\n" + b"a joy,good\n" * 2001, {}, "at most 2,000"),
    ],
)
def test_a_file_that_cannot_be_evaluated_is_refused_with_the_reason(app, content, columns, message):
    response = upload(app, content, **columns)
    assert (response.status_code, message in response.json()["error"]) == (422, True), response.text
    assert "/tmp" not in response.text


@pytest.mark.parametrize(
    "content", [b"a," * 2000 + b"b\n", b'\r\n"\n";x"' + b";a" * 2000 + b'"\n', b"a" * 200_000 + b"|a" * 2000 + b"\n"]
)
def test_many_columns_are_refused_before_pyarrow_needs_memory_for_each(app, content, monkeypatch):
    monkeypatch.setattr("ebmcal.serving.ui.read_columns", lambda path: pytest.fail("read"))
    for response in (describe(app, content), upload(app, content)):
        assert (response.status_code, "too many columns; at most 1,000" in response.text) == (422, True)


def test_only_existing_reports_are_sent(app):
    assert call(app, "GET", "/ui/report/x").status_code == 404


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
    assert about["models"] == ["films", "plain"]
    assert list(about["histogram"]["shares"]) == ["train", "ood_odd"]
    assert about["is_energy_trained"] is False
    assert "/ui/explain" not in call(app, "GET", "/openapi.json").json()["paths"]


def test_the_api_key_protects_everything_but_the_page(models):
    with running(create_app({"films": models["films"]}, api_key="k", extend=add_ui)) as app:
        codes = [call(app, "GET", path).status_code for path in ("/", "/ui.js", "/ui/about")]
        codes += [explain(app, text="a").status_code, upload(app, b"").status_code, describe(app, b"").status_code]
    assert codes == [200, 200, 401, 401, 401, 401]
