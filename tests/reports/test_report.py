"""The report: one whole page without network, hostile texts, unfinished runs, corrupt files, other formats."""

import html
import json
import re
import shutil
import time
from html.parser import HTMLParser

import numpy as np
import pytest

import ebmcal
from ebmcal.calibration import make_calibrator
from ebmcal.errors import EbmcalError
from ebmcal.evaluation import evaluate_trials
from ebmcal.predictions import Predictions
from ebmcal.reports import report_text, write_evaluation_report, write_report
from ebmcal.reports.page import Picture
from ebmcal.reports.report import _reliability, confidence_verdict
from ebmcal.reports.run_data import find_focus, read_run
from ebmcal.run_dir import RunDir, Trial
from ebmcal.storage import write_json
from synthetic_run import HOSTILE_TEXTS, LABELS, METHODS, make_predictions, make_run


class Page(HTMLParser):
    """The tags, ids and texts of a page; raises if tags are not balanced."""

    VOID = ("meta", "br", "wbr", "hr", "use", "path")

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def ids(self):
        return [attrs["id"] for _, attrs in self.tags if "id" in attrs]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("finished") / "run")
    text = write_report(run).read_text(encoding="utf-8")
    return run, text, Page(text)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("small") / "run", seeds=(1,), n=40)


@pytest.fixture
def run(small_run, tmp_path, monkeypatch):
    """A small finished run to change; its plots are not drawn, which is slow."""

    def no_drawing(key, title, caption, *panels, **_):
        return Picture(title, "<svg></svg>", caption, len(panels))

    monkeypatch.setattr("ebmcal.reports.report.draw", no_drawing)
    return shutil.copytree(small_run, tmp_path / "run")


def page_of(run):
    text = write_report(run).read_text(encoding="utf-8")
    return text, Page(text)


def visible(text):
    """The page up to the first collapsed section."""
    return text[: text.index('<details class="section"')]


def section(text, title):
    """A collapsed section."""
    start = text.index(f"<h2>{title}</h2>")
    return text[start : text.index('<details class="section"', start)] if title != "Settings" else text[start:]


def test_page_is_self_contained(finished):
    _, text, page = finished
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not {"link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not re.search(r"(src|srcset|action|poster)=", text)
    targets = {a.get("href", a.get("xlink:href")) for _, a in page.tags if "href" in a or "xlink:href" in a}
    assert {target[1:] for target in targets if target.startswith("#")} == {t.lstrip("#") for t in targets}
    assert {target[1:] for target in targets} <= set(page.ids)
    assert not re.search(r"url\((?!#)|@import", text)
    assert "default-src 'none'" in html.unescape(text)
    assert len(page.ids) == len(set(page.ids))


def test_first_screen_says_what_how_good_and_what_to_do(finished):
    run, text, _ = finished
    first = html.unescape(text[: text.index("Can its confidence be trusted?")])
    test = Predictions.read(RunDir(run).predictions(Trial("hidden", 1), "test"))
    right = test.predicted == test.labels
    for part in (
        "Recommended model", "hidden + temperature (dev)", f"{right.mean():.1%}", f"{right.sum()} of 400 test texts",
        "Average confidence", "When it is at least 90% sure", "Use hidden + temperature (dev) <now>.",
        f"ebmcal predict {run} new.csv --output labelled.csv", "ebmcal serve", "chosen on 400 calibration rows",
        "come from test rows", "temperature: one number (T) that makes", "14 training rows whose labels may be wrong",
        "baseline: finetuned in the usual way", "hidden: finetuned to tell", "dev: fitted on calibration rows",
        "Trained on 1,000 texts. Tested on 400 texts.", "mean of 2 seeds",
    ):  # fmt: skip
        assert part in first, part
    assert 'href="#label-issues"' in first
    assert "cross-fit:" not in first, "only words that are used are explained"
    sure = np.flatnonzero(calibrated_test(run).confidence >= 0.9)
    assert re.search(rf"\d+ of {len(sure)} texts with this confidence \(95% interval [^)]*\); \d+% of all texts", first)


def calibrated_test(run):
    trial = RunDir(run)
    rows = {split: Predictions.read(trial.predictions(Trial("hidden", 1), split)) for split in ("calibration", "test")}
    return make_calibrator("temperature").fit_predictions(rows["calibration"]).apply(rows["test"])


def test_few_confident_texts_have_no_box(run):
    make_predictions(100, 3.0).write(RunDir(run).predictions(Trial("hidden", 1), "test"))
    assert "When it is at least" in page_of(run)[0]
    make_predictions(29, 3.0).write(RunDir(run).predictions(Trial("hidden", 1), "test"))
    assert "When it is at least" not in page_of(run)[0]


def test_findings_and_actions_have_headings_of_their_own(run):
    results = json.loads((run / "results.json").read_text())
    results["advice"]["sentences"] = [
        "Use hidden.",
        "hidden is fine; NLL 0.3.",
        "Only 9 rows. Give more (--test FILE).",
    ]
    (run / "results.json").write_text(json.dumps(results))
    todo, found = visible(page_of(run)[0]).split("What to do")[1].split("What was found")
    assert "Use hidden." in todo
    assert "Give more" in todo
    assert "hidden is fine" not in todo
    assert "hidden is fine" in found
    assert "NLL: negative log-likelihood" in found


def test_a_temperature_that_is_not_recommended_is_shown_with_the_reason(run):
    results = json.loads((run / "results.json").read_text())
    results["recommended"] = {"trial": "hidden-seed1", "calibrator": None}
    nll = {None: 0.31, "temperature (dev)": 0.32}
    results["advice"]["evidence"] = [{"model": "hidden", "calibrator": c, "nll": v} for c, v in nll.items()]
    (run / "results.json").write_text(json.dumps(results))
    data = read_run(run)
    text, block, _ = _reliability(data, find_focus(data))
    assert "A temperature is not recommended: the NLL on the calibration rows is 0.32 with it, 0.31 without." in text
    assert len(block.content) == 2


def test_visible_part_has_reliability_comparison_errors_and_label_issues(finished):
    _, text, _ = finished
    shown = visible(text)
    for part in (
        "before calibration, ECE top-label", "after temperature, ECE top-label", "Comparison of models",
        "Confusion matrix", "Accuracy and calibration per label", "Most confident errors", "Possible label errors",
        "first 10 of 14",
    ):  # fmt: skip
        assert part in shown, part
    assert "(train)" not in shown
    assert re.search(r'<tr class="recommended [^>]*>\s*<th[^>]*>hidden \+ temperature \(dev\)', shown)
    for part in ("over training steps", "rank correlation", "Loss of", "Noise AUROC"):
        assert part not in shown, f"{part} is collapsed"


def test_collapsed_sections_have_every_figure_of_the_paper(finished):
    _, text, _ = finished
    assert "baseline + temperature (train)" in section(text, "All results with intervals")
    assert re.search(r"\[0\.\d{3}, 0\.\d{3}\]", section(text, "All results with intervals"))
    models = section(text, "Reliability of every model")
    assert "baseline, ECE top-label" in models
    assert "hidden, ECE top-label" in models
    assert "by confidence</text>" in models
    assert "by energy</text>" in models
    chosen = section(text, "Every model and metric")
    assert re.search(r'<tr class="recommended [^>]*>\s*<th[^>]*>hidden \(seed 1\) \+ temperature \(dev\)', chosen)
    energies = section(text, "Energies")
    assert energies.count(">rank correlation") == 2
    assert "right</text>" in energies, "the points are labelled test texts"
    assert "no label</text>" not in energies
    assert "OOD: reviews" in energies
    assert re.search(r"\d\.\d{3} → \d\.\d{3}", energies), "baseline → model"
    training = section(text, "Training")
    for title in ("ECE class-wise over training steps", "ECE top-label over", "Accuracy against ECE", "Loss of hidden"):
        assert title in training, title
    assert "62.5" in training
    noise = section(text, "Noise")
    assert "so &lt;M&gt; (&lt;i&gt;fun&lt;/i&gt;)" in noise
    assert "0.634" in noise
    assert "used 3.0 times" in noise
    assert "train: 2 rows with the text of an earlier row: kept" in section(text, "Data")
    assert "3.11.2" in section(text, "Settings")
    assert "&lt;b&gt;not bold&lt;/b&gt;" in section(text, "Settings")


def test_texts_and_names_are_shown_as_text(finished):
    _, text, page = finished
    body = re.sub(r"<script>\"use strict\".*?</script>", "", text, flags=re.S)
    assert "<script" not in body
    shown = "".join(page.texts)
    for hostile in (*HOSTILE_TEXTS[:4], "<b>not bold</b>", "so <b>odd</b> and $3", "a <i>fine</i> text", *LABELS):
        assert hostile in shown, hostile


def test_long_texts_are_folded(finished):
    _, text, _ = finished
    assert re.search(r'<details class="long"><summary><span class="start">(long )+', text)
    assert HOSTILE_TEXTS[4].rstrip() in text, "the whole text is there"
    assert all(len(html.unescape(found)) <= 220 for found in re.findall(r"<td[^>]*>([^<]*)</td>", text))


def test_same_run_same_bytes(finished, tmp_path):
    run, text, _ = finished
    assert ebmcal.write_report(run, tmp_path / "again.html").read_text(encoding="utf-8") == text


def test_models_that_learned_nothing_are_not_recommended(run):
    results = json.loads((run / "results.json").read_text())
    results["advice"]["sentences"] = ["No model is more accurate than always predicting the most frequent class."]
    (run / "results.json").write_text(json.dumps(results))
    assert "First choice, but see below" in page_of(run)[0]


def test_results_alone_are_enough(run):
    shutil.rmtree(run / "trials")
    assert "no predictions for labelled" in page_of(run)[0]


def test_an_incomplete_last_line_of_a_history_is_skipped(run):
    with open(run / "trials" / "hidden-seed1" / "history.jsonl", "a") as handle:
        handle.write('{"step": 301, "lo')
    page_of(run)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.json", b"{"),
        ("results.json", b"[]"),
        ("results.json", b'{"results": 3}'),
        ("results.json", b"\xff\xfe"),
        ("trials/hidden-seed1/test.parquet", b"PAR1 nonsense"),
        ("trials/hidden-seed1/noise.parquet", b""),
    ],
)
def test_corrupt_files_are_named(run, name, content):
    (run / name).write_bytes(content)
    with pytest.raises(EbmcalError, match=re.escape(str(run / name))):
        write_report(run)


@pytest.mark.parametrize("part", ["advice", "recommended", "label_issues", "audit", "noise", "training", "versions"])
@pytest.mark.parametrize("value", [None, 3, [1], {"splits": 3, "sources": 4, "trial": 5}])
def test_edited_parts_of_the_results_are_no_traceback(run, part, value, monkeypatch):
    monkeypatch.setattr("ebmcal.reports.page.write_page", lambda path, page: page)
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps(results | {part: value}))
    write_report(run)


def test_directories_that_are_no_run_are_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(EbmcalError, match=r"has no results\.json. Expected the output directory of a finished"):
            write_report(folder)
    assert not list(tmp_path.iterdir())


def test_pairs_other_test_sets_and_lone_surrogates(run):
    rows = make_predictions(30, 1.5)
    found = {"test": rows.replace(text_pairs=rows.texts), "test_mismatched": rows.replace(text_pairs=rows.texts)}
    for method in ("baseline", "hidden"):
        for split in found:
            found[split].write(RunDir(run).predictions(Trial(method, 1), split))
    write_json(run / "results.json", evaluate_trials({Trial("hidden", 1): found}, n_resamples=5).to_json())
    (run / "noise_examples.json").write_text(
        '[{"source": "x", "masked": "a \\ud800 <M>", "hidden": ["b"], "text": "\\ud83d"}]'
    )
    text, _ = page_of(run)
    assert "Test set test_mismatched" in text
    assert "pairs of texts" in text
    assert " ‖ " in text


def test_many_labels_have_no_matrix_but_a_list_of_confusions(run):
    names = tuple(f"label {i}" for i in range(30))
    for method in ("baseline", "hidden"):
        for split in ("test", "calibration"):
            make_predictions(300, 2.0, label_names=names).write(RunDir(run).predictions(Trial(method, 1), split))
    text, _ = page_of(run)
    assert "Confusion matrix" not in text
    assert "Most frequent confusions" in text
    assert "the 6 most frequent of 30" in text
    assert "20 labels with the lowest recall of 30" in text
    assert "and 24 more" in text


def test_out_of_fold_rows_are_used_for_cross_fitted_calibrators(run):
    make_predictions(60, 1.6, 5).write(RunDir(run).predictions(Trial("hidden", 1), "out_of_fold"))
    results = json.loads((run / "results.json").read_text())
    results["recommended"] = {"trial": "hidden-seed1", "calibrator": "temperature (cross-fit)"}
    (run / "results.json").write_text(json.dumps(results))
    text, _ = page_of(run)
    assert "its confidence was corrected after training" in text
    assert "The model is hidden + temperature (cross-fit), seed 1." in text
    assert "hidden, corrected" in visible(text)
    assert "needs labelled texts that were not used for training" in visible(text)
    assert "hidden (seed 1): training rows, predicted by models trained without them" in text
    assert "The calibrator was fitted on these rows" in text


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_no_label_of_a_figure_is_cut_off(small_run, tmp_path, monkeypatch, scale):
    drawn, run = [], shutil.copytree(small_run, tmp_path / "run")
    monkeypatch.setattr("ebmcal.reports.plots.to_svg", lambda figure, *_: drawn.append(figure) or "<svg></svg>")
    rows = make_predictions(50, 1.5)
    energies = -0.68 + scale * np.random.default_rng(0).normal(size=50)
    rows.replace(logits=rows.logits * 1e-3, energies=energies).write(
        RunDir(run).predictions(Trial("hidden", 1), "test")
    )
    lines = [
        {"step": 1000 * i, "loss": 1.0, "cross_entropy": 0.693 + 1e-5 * i, "energy_data": scale * i} for i in range(30)
    ]
    lines += [{"step": i, "eval_ece_classwise": 0.02 + 1e-5 * i, "eval_accuracy": 0.5 + 1e-4 * i} for i in range(9)]
    (run / "trials" / "hidden-seed1" / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report(run)
    assert len(drawn) > 8
    for figure in drawn:
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        place = [figure.axes[0].get_title(loc="left"), figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()]
        assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.03, place


@pytest.mark.parametrize(
    ("n", "n_right", "confidence", "words"),
    [
        (26, 25, 0.95, "1.2 points below its accuracy: no clear miscalibration on 26 texts"),
        (1000, 800, 0.9, "10.0 points above its accuracy: the model is overconfident"),
        (1000, 800, 0.7, "10.0 points below its accuracy: the model is underconfident"),
    ],
)
def test_confidence_is_called_wrong_only_if_the_difference_is_significant(n, n_right, confidence, words):
    labels = [0] * n_right + [1] * (n - n_right)
    assert confidence_verdict(Predictions(labels, ("a", "b"), probs=[[confidence, 1 - confidence]] * n)) == words


def test_evaluation_reports(tmp_path):
    named = {"mine <b>": make_predictions(250, 2.0, energies=False), "other": make_predictions(250, 1.0)}
    evaluation = ebmcal.evaluate(named, n_resamples=20, fit={"mine <b>": make_predictions(400, 2.0, 9)})
    text = write_evaluation_report(evaluation, tmp_path / "e.html", "My files").read_text(encoding="utf-8")
    page = Page(text)
    assert "<h1>My files</h1>" in text
    assert "mine <b>" in page.texts
    assert "mine &lt;b&gt;, ECE top-label" in section(text, "Reliability of every model")
    assert "Recommended" not in text
    assert "ebmcal predict" not in text
    assert "mine <b> + temperature" in page.texts
    assert "before calibration, ECE top-label" in visible(text)
    assert "mine &lt;b&gt; is overconfident by" in visible(text)


def test_the_report_of_a_calibrated_file_names_the_rows_and_the_command(tmp_path):
    test, fit = tmp_path / "test.csv", tmp_path / "fit.csv"
    make_predictions(250, 3.0).write(test)
    make_predictions(400, 3.0, 9).write(fit)
    evaluation = ebmcal.evaluate({"theirs": str(test)}, n_resamples=20, fit={"theirs": str(fit)})
    text = html.unescape(visible(write_evaluation_report(evaluation, tmp_path / "e.html").read_text("utf-8")))
    assert f"calibrated on 400 rows of {fit}" in text
    assert "first of" not in text
    assert f"<code>ebmcal calibrate --predictions {fit} --apply {test} --output calibrated.csv</code>" in text
    assert "theirs + temperature has significantly better probabilities than theirs" in text
    assert "`" not in text.split("What to do")[1]
    (platt,) = ebmcal.evaluate(str(test), n_resamples=20, fit=str(fit), calibrator="platt").verdicts()
    assert f"--apply {test} --calibrator platt --output calibrated.csv`" in platt


def test_the_report_of_many_files_has_six_verdicts_those_to_calibrate_first(tmp_path):
    named = {f"model {i}": make_predictions(250, 3.0 if i > 4 else 1.0) for i in range(7)}
    text = write_evaluation_report(ebmcal.evaluate(named, n_resamples=20), tmp_path / "e.html").read_text("utf-8")
    bullets = [name for name in named if f"<li>{name} is" in visible(text) or f"<li>{name}: no clear" in visible(text)]
    assert bullets == ["model 0", "model 1", "model 2", "model 3", "model 5", "model 6"]


@pytest.mark.parametrize(("scale", "is_todo"), [(3.0, True), (1.0, False)])
def test_the_report_of_one_file_has_no_comparison_and_only_actions_to_do(tmp_path, scale, is_todo):
    evaluation = ebmcal.evaluate({"theirs": make_predictions(250, scale)}, n_resamples=20)
    text = write_evaluation_report(evaluation, tmp_path / "e.html").read_text(encoding="utf-8")
    assert ("What to do" in text) == is_todo
    assert "Comparison of models" not in text
    assert "as trained" not in visible(text)
    assert "theirs, ECE top-label" in visible(text)
    assert "calibrators fitted on the training rows" not in text


@pytest.mark.parametrize(("form", "start"), [("markdown", "# rte"), ("latex", r"\begin{table*}"), ("json", "{")])
def test_text_formats_are_printed_or_written(finished, tmp_path, command, form, start):
    out = tmp_path / "table.txt"
    printed = command("report", finished[0], "--format", form)
    assert printed.startswith(start)
    assert "Wrote" in command("report", finished[0], "-f", form, "-o", out)
    assert out.read_text(encoding="utf-8") == printed
    if form == "json":
        assert {row["model"] for row in json.loads(printed)["results"]} >= {"baseline-seed1", "hidden"}


def test_command_writes_html_and_explains_errors(run, tmp_path, command):
    command("report", run, "--output", tmp_path / "r.html")
    assert (tmp_path / "r.html").exists()
    assert "has no results.json" in command("report", tmp_path / "nowhere", code=1)
    assert "is a directory" in command("report", run, "--output", tmp_path, code=1)
    with pytest.raises(EbmcalError, match="Available: markdown, json"):
        report_text(run, "latx")


def test_numbers_have_their_value_for_sorting(finished):
    cells = [a for tag, a in finished[2].tags if tag in ("td", "th") and "data-value" in a]
    assert len(cells) > 50
    assert all(np.isfinite(float(a["data-value"])) for a in cells)


def test_evaluation_reports_of_one_row(tmp_path):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows
        evaluation = ebmcal.evaluate({"one": make_predictions(1)}, n_resamples=5)
    Page(write_evaluation_report(evaluation, tmp_path / "e.html").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_five_methods_two_seeds_stay_small_and_fast(tmp_path):
    run = make_run(tmp_path / "run", methods=tuple(METHODS), n=3000)
    started = time.process_time()
    path = write_report(run)
    assert path.stat().st_size < 1_500_000
    assert time.process_time() - started < 20
