"""`ebmcal.evaluate`: tidy results, paired tests, calibrators, OOD detection, verdicts, JSON."""

import json
import time

import numpy as np
import pytest
from evaluation_cases import NAMES, make_predictions

import ebmcal
from ebmcal import EbmcalError, Evaluation, Predictions, metrics

QUICK = {"n_resamples": 50}


def value(evaluation, model, metric, calibrator=None, column="value"):
    """One number of the results."""
    frame = evaluation.results
    same = frame["calibrator"].isna() if calibrator is None else frame["calibrator"] == calibrator
    found = frame[(frame["model"] == model) & (frame["metric"] == metric) & same]
    assert len(found) == 1
    return found[column].item()


@pytest.fixture(scope="module")
def both():
    return {"base": make_predictions(scale=3.0), "ours": make_predictions(scale=1.1)}


@pytest.fixture(scope="module")
def compared(both):
    fit = {"base": make_predictions(seed=1, scale=3.0, prefix="cal")}
    return ebmcal.evaluate(both, fit=fit, calibrator=["temperature", "scaling-binning:n_bins=5"], **QUICK)


def test_results_are_tidy(compared, both):
    frame = compared.results
    assert list(frame.columns[:8]) == [
        "model", "method", "seed", "n_seeds", "calibrator", "test_set", "metric", "value",
    ]  # fmt: skip
    assert not frame.duplicated(["model", "calibrator", "metric"]).any()
    assert set(frame["metric"]) == set(metrics.DEFAULT_METRICS)
    assert set(frame["n_rows"]) == {600}
    for name, rows in both.items():
        expected = metrics.summarize(rows, **QUICK)
        for metric, interval in expected.items():
            assert value(compared, name, metric) == interval.value
            assert value(compared, name, metric, column="low") == interval.low
            assert value(compared, name, metric, column="high") == interval.high
    assert value(compared, "base", "ece_classwise", column="noise_floor") > 0
    assert np.isnan(value(compared, "base", "nll", column="noise_floor"))


def test_calibrators_add_rows(compared):
    assert list(compared.predictions) == [
        "base", "base + temperature", "base + scaling-binning:n_bins=5", "ours",
    ]  # fmt: skip
    assert value(compared, "base", "accuracy", "temperature") == value(compared, "base", "accuracy")
    for calibrator in ("temperature", "scaling-binning:n_bins=5"):
        assert value(compared, "base", "nll", calibrator) < value(compared, "base", "nll") - 0.1
    assert value(compared, "base", "nll", "temperature", "note").startswith("T = ")


def test_every_model_is_compared_with_the_reference(compared, both):
    frame = compared.comparisons
    assert set(frame["reference"]) == {"base"}
    assert set(frame["metric"]) == set(metrics.HEADLINE_METRICS)
    assert len(frame) == 3 * len(metrics.HEADLINE_METRICS)
    test = frame[(frame["model"] == "ours") & (frame["metric"] == "nll")].iloc[0]
    expected = metrics.paired_test("nll", both["ours"].labels, both["ours"].probs, both["base"].probs, n_resamples=50)
    assert test["difference"] == pytest.approx(expected.difference)
    assert test["p_value"] == pytest.approx(expected.p_value)
    assert frame["p_adjusted"].tolist() == metrics.holm(frame["p_value"].tolist())


def test_json_round_trip(compared):
    document = json.loads(json.dumps(compared.to_json(), allow_nan=False))
    again = Evaluation.from_json(document | {"task": "mine"})
    for name in ("results", "comparisons", "detection"):
        ours, theirs = getattr(again, name), getattr(compared, name)
        assert ours.dtypes.tolist() == theirs.dtypes.tolist()
        assert ours.equals(theirs)
    assert again.meta == compared.meta | {"task": "mine"}
    assert str(again.table()) == str(compared.table())
    assert again.verdicts() == compared.verdicts()


@pytest.mark.parametrize("document", [[], {}, {"results": 3}, {"results": [3]}, {"results": [{"value": "high"}]}])
def test_a_damaged_document_is_rejected(document):
    with pytest.raises(EbmcalError, match=r"evaluation"):
        Evaluation.from_json(document)


def test_undefined_numbers_are_null_in_json():
    perfect = Predictions([0, 1] * 150, ("a", "b"), probs=[[0.9, 0.1], [0.1, 0.9]] * 150)
    found = ebmcal.evaluate({"perfect": perfect}, metrics=["error_auroc"], n_resamples=5)
    record = found.to_json()["results"][0]
    assert (record["value"], record["low"], record["seed"], record["method"]) == (None, None, None, None)


def test_without_resamples_there_are_no_intervals_and_no_tests(both):
    found = ebmcal.evaluate(both, n_resamples=0)
    assert found.results["low"].isna().all()
    assert not len(found.comparisons)
    assert found.results["value"].notna().all()


@pytest.mark.filterwarnings("ignore:.*rows are few")
@pytest.mark.parametrize(
    ("scale", "n", "words"),
    [
        (3.0, 600, "is overconfident by 18"),
        (0.4, 600, "is underconfident by"),
        (1.0, 600, "no clear miscalibration on 600 rows"),
        (1.3, 26, "no clear miscalibration on 26 rows"),
    ],
)
def test_the_verdict_needs_a_significant_difference(scale, n, words):
    rows = make_predictions(n, scale=scale)
    (sentence,) = ebmcal.evaluate({"mine": rows}, **QUICK).verdicts()
    assert words in sentence
    assert f"accuracy {(rows.predicted == rows.labels).mean():.1%}" in sentence
    assert ("Calibrate it on other labelled rows" in sentence) == ("confident by" in sentence)


def test_the_verdict_reports_the_effect_of_the_calibrator(compared):
    base, ours = compared.verdicts()
    assert base.startswith("base is overconfident")
    assert "base + temperature: no clear miscalibration on 600 rows" in base
    assert ours.startswith("ours: no clear miscalibration")


def test_the_verdict_names_significant_differences_between_models(both):
    base, ours = ebmcal.evaluate(both, **QUICK).verdicts()
    assert "ours has significantly better probabilities than base: NLL -0." in ours
    assert "(lower is better)" in ours
    assert "significantly" not in base
    base, ours = ebmcal.evaluate(both, reference="ours", **QUICK).verdicts()
    assert "base has significantly worse probabilities than ours: NLL +0." in base
    alike = {"ours": both["ours"], "same": both["ours"]}
    assert "significantly" not in "".join(ebmcal.evaluate(alike, **QUICK).verdicts())


def test_the_verdict_does_not_ask_for_a_calibrator_if_a_calibrated_model_is_evaluated_too(both):
    (sentence,) = ebmcal.evaluate({"base": both["base"]}, **QUICK).verdicts()
    assert sentence.endswith("`ebmcal calibrate --predictions OTHER_ROWS --apply FILE --output calibrated.csv`.")
    calibrator = ebmcal.TemperatureScaling().fit_predictions(make_predictions(seed=1, scale=3.0, prefix="cal"))
    named = {"base + temperature": calibrator.apply(both["base"]), "base": both["base"]}
    _, sentence = ebmcal.evaluate(named, **QUICK).verdicts()
    assert "base is overconfident by" in sentence
    assert "Calibrate it" not in sentence


def test_the_verdict_warns_of_labels_with_probability_zero():
    rows = make_predictions(600, scale=3.0)
    rounded = rows.with_probs(rows.probs.round(2) / rows.probs.round(2).sum(axis=1, keepdims=True))
    n = int((rounded.probs[np.arange(600), rows.labels] == 0).sum())
    plain, warned = ebmcal.evaluate({"exact": rows, "rounded": rounded}, **QUICK).verdicts()
    assert f"rounded: {n} rows give the true label a probability of 0. Its NLL is infinite; each counts 708" in warned
    assert "Were the probabilities rounded? Write more decimals." in warned
    assert "probability of 0" not in plain


def test_the_verdict_of_miscalibration_that_cancels_on_average():
    # Half of the rows are 60% confident and always correct, half are 95% confident and correct in 55%.
    probs = np.repeat([[0.6, 0.4], [0.95, 0.05]], 500, axis=0)
    labels = np.r_[np.zeros(500, int), np.arange(500) % 20 >= 11]
    found = ebmcal.evaluate({"mine": Predictions(labels, ("a", "b"), probs=probs)}, **QUICK)
    assert "neither over- nor underconfident on average, but miscalibrated: ECE top-label 0.400" in found.verdicts()[0]


def test_rows_without_labels_are_left_out_with_a_warning():
    rows = make_predictions(400)
    partly = rows.replace(labels=np.where(np.arange(400) < 300, rows.labels, -1))
    with pytest.warns(UserWarning, match=r"mine: 100 of 400 rows have no label and are left out"):
        found = ebmcal.evaluate({"mine": partly}, metrics=["nll"], **QUICK)
    assert value(found, "mine", "nll", column="n_rows") == 300
    assert value(found, "mine", "nll") == metrics.nll(rows.labels[:300], logits=rows.logits[:300])


def test_rows_and_classes_in_another_order_are_matched(both):
    shuffled = both["ours"].rows(np.random.default_rng(0).permutation(600)).reorder(["pos", "neg", "neu"])
    found = ebmcal.evaluate({**both, "shuffled": shuffled}, metrics=["nll"], **QUICK)
    assert value(found, "shuffled", "nll") == pytest.approx(value(found, "ours", "nll"))
    assert found.comparisons["difference"].iloc[1] == pytest.approx(found.comparisons["difference"].iloc[0])


def test_energies_rank_rows_and_detect_other_texts():
    rows, other = make_predictions(energies=True), make_predictions(300, 5, prefix="o", shift=-3.0, energies=True)
    found = ebmcal.evaluate({"mine": rows}, ood=other, **QUICK)
    assert value(found, "mine", "error_auroc_by_energy") == metrics.error_auroc(
        rows.labels, logits=rows.logits, scores=-rows.energies
    )
    frame = found.detection.set_index("score")
    assert list(frame.index) == ["energy", "max_prob", "entropy"]
    assert frame.loc["energy", "low"] < frame.loc["energy", "auroc"] <= frame.loc["energy", "high"]
    assert frame.loc["energy", "auroc"] > 0.95
    assert 0.3 < frame.loc["max_prob", "auroc"] < 0.7


def test_other_texts_need_no_labels_and_no_energies():
    rows, other = make_predictions(200), make_predictions(100, prefix="o")
    unlabelled = Predictions(np.full(100, -1), NAMES, probs=other.probs)
    found = ebmcal.evaluate({"mine": rows}, ood=unlabelled, **QUICK)
    assert list(found.detection["score"]) == ["max_prob", "entropy"]  # one side has probabilities only


def test_distances_are_compared_if_both_sides_have_them():
    inside, outside = (make_predictions(60, prefix=p).replace(distances={"knn": d}) for p, d in (
        ("a", np.arange(60) * 0.1), ("b", np.arange(60) * 0.1 + 100)
    ))  # fmt: skip
    found = ebmcal.evaluate({"mine": inside}, ood=outside, metrics=["accuracy"], **QUICK).detection.set_index("score")
    assert found.loc["knn", "auroc"] == 1.0
    bare = ebmcal.evaluate({"mine": inside}, ood=make_predictions(9), metrics=["accuracy"], **QUICK)
    assert "knn" not in set(bare.detection["score"])


def test_the_ensemble_is_the_mean_of_all(both):
    fit = {name: make_predictions(seed=1, scale=s, prefix="cal") for name, s in (("base", 3.0), ("ours", 1.1))}
    found = ebmcal.evaluate(both, ensemble=True, fit=fit, metrics=["nll"], **QUICK)
    mean = (both["base"].probs + both["ours"].probs) / 2
    assert value(found, "ensemble of 2", "nll") == pytest.approx(metrics.nll(both["base"].labels, probs=mean))
    assert "ensemble of 2 + temperature" in found.predictions
    for given, options in (({"base": both["base"]}, {}), (both, {"paired": False})):
        with pytest.raises(EbmcalError, match="at least two files with the same rows"):
            ebmcal.evaluate(given, ensemble=True, **options, **QUICK)


def test_the_calibrator_must_not_be_evaluated_on_its_own_rows(both):
    with pytest.warns(UserWarning, match="used to fit the calibrator"):
        ebmcal.evaluate({"base": both["base"]}, fit=both["base"], metrics=["nll"], **QUICK)


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        (3, {}, "expected predictions or a file, got int"),
        ({"a": 3}, {}, "a: expected predictions or a file, got int"),
        ([], {}, "nothing to evaluate"),
        ("one", {}, "has one class only"),
        ("base", {"n_resamples": 10**6}, "from 0 to 100,000"),
        ("base", {"metrics": []}, "metrics is empty"),
        ("base", {"metrics": ["accurcy"]}, "Did you mean 'accuracy'"),
        ("base", {"n_bins": 0}, "n_bins is 0"),
        ("base", {"calibrator": "temperature"}, r"needs fit \(--fit\)"),
        ("base", {"fit": {"bas": "base"}}, "Unknown name in fit 'bas'. Did you mean 'base'"),
        ("base", {"fit": "two"}, "has the classes no, yes, base has neg, neu, pos"),
        ("base", {"fit": "one_label"}, "all labels are 'neu'"),
        ("base", {"multilabel": True, "ensemble": True}, "ensemble .* not defined with several labels"),
        ("base", {"multilabel": True}, "read from files, got Predictions"),
    ],
)
def test_mistakes_are_explained(both, given, options, words):
    known = {
        "base": both["base"],
        "one": Predictions([0], ("a",), probs=[[1.0]]),
        "two": make_predictions(100, names=("no", "yes")),
        "one_label": Predictions(np.ones(50, int), NAMES, logits=make_predictions(50).logits),
    }
    given = {given: known[given]} if isinstance(given, str) else given
    fit = options.get("fit")
    if fit is not None:
        fit = {name: known[rows] for name, rows in fit.items()} if isinstance(fit, dict) else known[fit]
        options = options | {"fit": fit}
    with pytest.raises(EbmcalError, match=words):
        ebmcal.evaluate(given, **{**QUICK, **options})


def test_many_classes_are_fast():
    n, n_classes = 40, 40_000
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, n)
    logits = rng.normal(size=(n, n_classes)).astype(np.float32)
    logits[np.arange(n), labels] += 12
    names = [f"class {i}" for i in range(n_classes)]
    rows = Predictions(labels, names, logits=logits)
    start = time.process_time()
    with pytest.warns(UserWarning, match="40 rows are few"):
        found = ebmcal.evaluate({"a": rows, "b": rows.reorder(names[::-1])}, n_resamples=20)
    assert time.process_time() - start < 30  # a quadratic check takes minutes
    for metric in ("accuracy", "ece_classwise"):
        assert value(found, "a", metric) == pytest.approx(value(found, "b", metric))


def test_another_reference(both):
    found = ebmcal.evaluate(both, reference="ours", metrics=["nll"], **QUICK)
    assert found.comparisons[["model", "reference"]].to_numpy().tolist() == [["base", "ours"]]
    assert found.comparisons["difference"].item() > 0
    with pytest.raises(EbmcalError, match="Unknown reference 'our'. Did you mean 'ours'"):
        ebmcal.evaluate(both, reference="our", **QUICK)
