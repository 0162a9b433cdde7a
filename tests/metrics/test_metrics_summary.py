"""Summaries of predictions, and the metrics inside a Trainer."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from cases import made

from ebmcal import metrics
from ebmcal.errors import EbmcalError
from ebmcal.metrics import DEFAULT_METRICS, METRICS, FewRowsWarning, bootstrap, compute_metrics, summarize
from ebmcal.predictions import Predictions


def predictions(n_rows=400):
    labels, probs = made(n_rows)
    return Predictions(labels, ("a", "b", "c"), probs=probs)


def test_summary_has_every_default_metric_and_agrees_with_bootstrap():
    p = predictions()
    summary = summarize(p, n_resamples=50, seed=2)
    assert tuple(summary) == DEFAULT_METRICS
    for name, interval in summary.items():
        assert interval == bootstrap(name, p.labels, probs=p.probs, n_resamples=50, seed=2)
    json.dumps({name: interval.to_json() for name, interval in summary.items()}, allow_nan=False)


def test_summary_of_logits_is_that_of_their_probabilities():
    p = predictions()
    logits = Predictions(p.labels, p.label_names, logits=np.log(p.probs))
    for name, interval in summarize(logits, n_resamples=0).items():
        assert interval.value == pytest.approx(METRICS[name].function(p.labels, probs=p.probs), abs=1e-9)


def test_rows_without_label_are_left_out():
    p = predictions()
    labels = p.labels.copy()
    labels[:100] = -1
    partly = Predictions(labels, p.label_names, probs=p.probs)
    assert summarize(partly, ["nll"], n_resamples=0)["nll"].value == metrics.nll(p.labels[100:], probs=p.probs[100:])
    with pytest.raises(EbmcalError, match="No row has a label"):
        summarize(Predictions([-1], ("a",), probs=[[1.0]]))


def test_few_rows_warn_once():
    with pytest.warns(FewRowsWarning) as caught:
        summarize(predictions(50), n_resamples=5)
    assert len(caught) == 1
    summarize(predictions(50), n_resamples=5, warn=False)


def test_degenerate_rows_still_make_a_summary():
    for labels, probs in (([0], [[1.0]]), ([0], [[0.5, 0.5]]), ([0, 0], [[1.0, 0.0]] * 2), ([1, 1], [[1.0, 0.0]] * 2)):
        p = Predictions(labels, tuple(map(str, range(len(probs[0])))), probs=probs)
        summary = summarize(p, sorted(METRICS), n_resamples=20, warn=False)
        json.dumps({name: interval.to_json() for name, interval in summary.items()}, allow_nan=False)


def test_unknown_metric_is_refused():
    with pytest.raises(EbmcalError, match="Unknown metric 'ece'"):
        summarize(predictions(), ["ece"])


def test_compute_metrics_of_a_trainer():
    labels, probs = made(300)
    out = compute_metrics(SimpleNamespace(predictions=np.log(probs).astype(np.float32), label_ids=labels))
    assert tuple(out) == DEFAULT_METRICS
    assert out["accuracy"] == metrics.accuracy(labels, probs=probs)
    with_hidden = compute_metrics(SimpleNamespace(predictions=(np.log(probs), np.zeros(3)), label_ids=labels))
    assert with_hidden["nll"] == pytest.approx(metrics.nll(labels, probs=probs))


def test_metrics_need_no_torch():
    code = (
        "import sys; sys.modules.update(torch=None, pandas=None, sklearn=None)\n"
        "import numpy as np\nfrom types import SimpleNamespace\nfrom ebmcal import metrics\n"
        "metrics.compute_metrics(SimpleNamespace(predictions=np.zeros((300, 2)), label_ids=np.zeros(300, int)))\n"
        "metrics.bootstrap('aurc', np.zeros(300, int), logits=np.zeros((300, 2)), n_resamples=5)\n"
        "heavy = [m for m in ('torch', 'pandas', 'sklearn', 'matplotlib') if sys.modules.get(m)]\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
