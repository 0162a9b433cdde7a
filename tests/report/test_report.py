"""The report: all of a run is on the page, half-finished runs too; damaged files are named; texts stay texts."""

import html
import json
import re
import shutil
import time
from html.parser import HTMLParser

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from ebmcal.cli.report import report
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions
from ebmcal.report import report_text, write_evaluation_report, write_report
from ebmcal.report.material import read_run
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import write_text
from synthetic_run import LABELS, METHODS, NASTY_TEXTS, make_predictions, make_run

VOID = {"meta", "hr", "br", "img", "link", "input"}


class Page(HTMLParser):
    """The page as tags and texts; raises when tags do not nest."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts, self.ids = [], [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    def count(self, tag, **wanted):
        return sum(t == tag and wanted.items() <= a.items() for t, a in self.tags)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, its page as text and parsed. Not to be changed."""
    run = make_run(tmp_path_factory.mktemp("runs") / "rte")
    text = write_report(run).read_text(encoding="utf-8")
    return run, text, Page(text)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A small run of its own for each test, to be broken; its figures are drawn but not written out, which is slow."""
    monkeypatch.setattr("ebmcal.report.pictures.to_svg", lambda figure, key, description: "<svg></svg>")
    return make_run(tmp_path / "run", seeds=(1,), n=30)


def page_of(run):
    text = write_report(run).read_text(encoding="utf-8")
    return text, Page(text)


def titles(text):
    return [html.unescape(t) for t in re.findall(r"<h4>(.*?)</h4>", text)]


def test_the_page_is_whole_and_needs_no_network(finished):
    _, text, page = finished
    assert page.count("script") == 1
    assert page.count("link") == page.count("img") == page.count("iframe") == 0
    assert not re.search(r"(src|srcset|action|poster)=", text)
    targets = {a.get("href", a.get("xlink:href")) for t, a in page.tags if "href" in a or "xlink:href" in a}
    assert all(target.startswith("#") for target in targets)
    assert {target[1:] for target in targets} <= set(page.ids), "every link leads somewhere"
    assert not re.search(r"url\((?!#)|@import", text)
    assert "default-src 'none'" in html.unescape(text)


def test_ids_are_unique(finished):
    ids = finished[2].ids
    assert len(ids) == len(set(ids))


def test_every_figure_is_there_for_every_method_and_seed(finished):
    _, text, _ = finished
    found = titles(text)
    for title in ("Reliability", "Reliability of each label", "Training"):
        assert found.count(title) == 4, title
    for title in (
        "Entropy and energy",
        "Energies of test, noise and other texts",
        "Texts of lowest and highest energy",
    ):
        assert found.count(title) == 2, f"{title}: only the models with energies"
    assert found.count("Risk and coverage") == 5
    for title in ("ECE class-wise over training steps", "ECE top-label over training steps", "Telling noise from data"):
        assert found.count(title) == 1, title
    assert text.count("<svg") == text.count("<figcaption>"), "every figure says how to read it"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_method_stands_beside_the_baseline_of_its_seed(finished, seed):
    run, text, _ = finished
    hidden = text[text.index("<h2>hidden</h2>") :]
    hidden = hidden[hidden.index(f"<summary>Seed {seed}</summary>") :]
    first = hidden[: hidden.index("</svg>")]
    rows = json.loads((run / "metrics.json").read_text())["rows"]
    for method in ("baseline", "hidden"):
        row = next(r for r in rows if (r["method"], r["seed"], r["posthoc"]) == (method, seed, None))
        assert f"{method}, ECE top-label {row['metrics']['ece_top_label']['value']:.3f}" in first


def test_summary_marks_the_best_and_shows_the_published(finished):
    _, text, page = finished
    summary = text[text.index('id="summary"') : text.index('id="overview"')]
    assert "(best)" in summary
    assert "Published ECE" in summary
    assert "0.279" in summary
    assert "± " in summary
    assert any("best" in a.get("class", "") for t, a in page.tags if t == "td")


def test_texts_and_names_are_shown_as_text(finished):
    _, text, page = finished
    body = re.sub(r"<script>\"use strict\".*?</script>", "", text, flags=re.S)
    assert "<script" not in body
    shown = "".join(page.texts)
    for nasty in (NASTY_TEXTS[0], NASTY_TEXTS[1], NASTY_TEXTS[3], "<b>not bold</b>", "so <b>odd</b> and $3", *LABELS):
        assert nasty in shown, nasty


def test_long_texts_fold(finished):
    _, text, _ = finished
    assert re.search(r'<details class="long"><summary><span class="start">(long )+', text)
    assert NASTY_TEXTS[4].rstrip() in text, "the whole text is there, folded"
    for found in re.findall(r"<td[^>]*>([^<]*)</td>", text):
        assert len(html.unescape(found)) <= 220


def test_examples_settings_data_and_times_are_there(finished):
    shown = " ".join(finished[2].texts)
    for part in (
        "lowest",
        "highest",
        "task: rte",
        "minilm",
        "trained on sentence pairs",
        "smollm2",
        "identical share",
        "3.11.2",
        "label counts",
        "62.5",
        "noise rounds",
        "0.876",
        "542d06403ad62186",
    ):
        assert part in shown, part
    assert re.search(r"<s class=\"mask\">&lt;i&gt;fun&lt;/i&gt;</s>", finished[1])
    assert re.search(r"\d\.\d{3} → \d\.\d{3}", shown), "baseline → model"


def test_numbers_carry_their_value_for_sorting(finished):
    page = finished[2]
    cells = [a for t, a in page.tags if t in ("td", "th") and "data-value" in a]
    assert len(cells) > 50
    assert all(np.isfinite(float(a["data-value"])) for a in cells)


def test_the_same_run_gives_the_same_bytes(finished, tmp_path):
    run, text, _ = finished
    assert write_report(run, tmp_path / "again.html").read_text(encoding="utf-8") == text


def test_a_finished_run_misses_nothing(finished):
    assert read_run(finished[0]).missing == ()
    assert "Not finished" not in finished[1]


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (("metrics.json",), "metrics.json is not written yet"),
        (("config.yaml",), "config.yaml is not there"),
        (("noise_examples.json",), "noise_examples.json is not there"),
        (("history", "hidden-seed1.jsonl"), "hidden, seed 1: no training history"),
        (("predictions", "hidden-seed1", "test.parquet"), "hidden, seed 1: no predictions for a test set"),
        (("predictions", "baseline-seed1", "test.parquet"), "baseline, seed 1: no predictions for a test set"),
    ],
)
def test_a_half_finished_run_says_what_is_missing(run, gone, said):
    run.joinpath(*gone).unlink()
    text, _ = page_of(run)
    assert said in html.unescape(text)
    for form in ("markdown", "latex", "json"):
        report_text(run, form)


def test_without_metrics_the_summary_is_computed_from_the_predictions(run):
    value = json.loads((run / "metrics.json").read_text())["rows"][0]["metrics"]["ece_classwise"]["value"]
    (run / "metrics.json").unlink()
    text, _ = page_of(run)
    assert f"{value:.3f}" in text[text.index('id="summary"') : text.index('id="overview"')]


def test_only_metrics_is_enough(run):
    shutil.rmtree(run / "predictions")
    shutil.rmtree(run / "history")
    text, _ = page_of(run)
    assert "hidden, seed 1: not trained yet, or its predictions are gone." in text
    assert 'id="overview"' not in text


def test_an_almost_empty_document_is_enough(run):
    (run / "metrics.json").write_text('{"format": 1, "rows": [], "noise": null, "data": null, "training": {}}')
    page_of(run)


def test_a_failed_cell_and_an_untrained_seed_are_said(run):
    document = json.loads((run / "metrics.json").read_text())
    document["seeds"] = [1, 2]
    document["rows"].append({"method": "scalar", "seed": 1, "test_set": "test", "error": "the loss is <NaN> at step 7"})
    (run / "metrics.json").write_text(json.dumps(document))
    text, _ = page_of(run)
    assert "scalar, seed 1: failed: the loss is &lt;NaN&gt; at step 7" in text
    assert "hidden, seed 2: not trained yet" in text
    assert "failed" in text[text.index('id="summary"') :]


def test_half_a_last_line_of_a_history_is_no_error(run):
    with open(run / "history" / "hidden-seed1.jsonl", "a") as handle:
        handle.write('{"step": 301, "lo')
    page_of(run)


def damage(path, content=b"PAR1 nonsense"):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("parts", "content"),
    [
        (("metrics.json",), b"{"),
        (("metrics.json",), b"[]"),
        (("metrics.json",), b'{"rows": [{"method": 3}]}'),
        (("metrics.json",), b"\xff\xfe"),
        (("noise_examples.json",), b'{"a": 1}'),
        (("config.yaml",), b"\xff\xff"),
        (("history", "hidden-seed1.jsonl"), b'{"step": 1\n{"step": 2}\n'),
        (("predictions", "hidden-seed1", "test.parquet"), b"PAR1 nonsense"),
        (("predictions", "hidden-seed1", "noise.parquet"), b""),
    ],
)
def test_damaged_files_are_named(run, parts, content):
    path = damage(run.joinpath(*parts), content)
    with pytest.raises(EbmcalError, match=re.escape(str(path))):
        write_report(run)


def test_a_truncated_parquet_is_named(run):
    path = run / "predictions" / "hidden-seed1" / "test.parquet"
    damage(path, path.read_bytes()[:-100])
    with pytest.raises(EbmcalError, match=re.escape(str(path))):
        write_report(run)


def test_folders_that_are_no_run_are_refused(tmp_path):
    with pytest.raises(EbmcalError, match="is not a folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(EbmcalError, match=r"neither metrics.json nor predictions/"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_report_that_cannot_be_written_is_an_error(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EbmcalError, match="Could not write"):
        write_report(run, tmp_path / "file" / "report.html")


def test_strange_folders_inside_a_run_are_left_alone(run):
    (run / "predictions" / "notes-seedless").mkdir()
    (run / "predictions" / ".DS_Store").write_text("")
    page_of(run)


def test_pairs_mismatched_sets_and_lone_surrogates(run):
    folder = RunFolder(run)
    rows = make_predictions(30, 1.5)
    paired = Predictions(
        rows.labels, LABELS, logits=rows.logits, energies=rows.energies, texts=rows.texts, text_pairs=rows.texts
    )
    for method in ("baseline", "hidden"):
        paired.write(folder.predictions(Cell(method, 1), "test"))
        paired.write(folder.predictions(Cell(method, 1), "test_mismatched"))
    folder.noise_examples.write_text(
        '[{"masked": "a \\ud800 <M>", "hidden": ["b"], "noise": "\\ud83d", "noise_pair": null}]'
    )
    text, _ = page_of(run)
    assert titles(text).count("Reliability, test_mismatched") == 2
    assert "<hr>" in text


def test_many_labels_are_drawn_in_part(run):
    names = tuple(f"label {i}" for i in range(30))
    logits = np.random.default_rng(0).normal(size=(200, 30))
    rows = Predictions(logits.argmax(axis=1), names, logits=logits, energies=logits[:, 0], texts=["t"] * 200)
    rows.write(RunFolder(run).predictions(Cell("hidden", 1), "test"))
    text, _ = page_of(run)
    assert "Reliability of each label: the 6 most frequent of 30" in titles(text)
    assert " → " not in text[text.rindex("<h4>Texts of lowest") :].split("</table>")[0], (
        "other classes than the baseline"
    )


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_no_label_of_a_figure_is_cut_off_whatever_the_numbers(run, monkeypatch, scale):
    drawn = []
    monkeypatch.setattr("ebmcal.report.pictures.to_svg", lambda figure, *_: drawn.append(figure) or "<svg></svg>")
    rows = make_predictions(50, 1.5)
    energies = -0.68 + scale * np.random.default_rng(0).normal(size=50)
    tight = Predictions(rows.labels, LABELS, logits=rows.logits * 1e-3, energies=energies, texts=rows.texts)
    tight.write(RunFolder(run).predictions(Cell("hidden", 1), "test"))
    lines = [{"step": 1000 * i, "cross_entropy": 0.693 + 1e-5 * i, "energy_data": scale * i} for i in range(30)]
    lines += [{"step": i, "eval_ece_classwise": 0.02 + 1e-5 * i, "eval_accuracy": 0.5 + 1e-4 * i} for i in range(9)]
    (run / "history" / "hidden-seed1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report(run)
    assert len(drawn) > 8
    for figure in drawn:
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert box.x0 > -0.03, figure.axes[0].get_ylabel()
        assert box.y0 > -0.03, figure.axes[0].get_xlabel()
        assert box.x1 < width + 0.03
        assert box.y1 < height + 0.03


def test_prediction_files_alone(tmp_path):
    named = {"mine <b>": make_predictions(60, 2.0, energies=False), "other": make_predictions(60, 1.0)}
    path = write_evaluation_report(tmp_path / "evaluation.html", named)
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert titles(text).count("Reliability") == 2
    other = text[text.index("<h2>other</h2>") :]
    assert "mine &lt;b&gt;, ECE top-label" in other[: other.index("</svg>")], "the first stands beside the others"
    assert "mine <b>" in page.texts
    assert "ECE class-wise" in text
    assert "Not finished" not in text


def test_prediction_files_without_labels_or_with_one_row(tmp_path):
    named = {"none": make_predictions(8, labels=False), "one": make_predictions(1)}
    Page(write_evaluation_report(tmp_path / "e.html", named).read_text(encoding="utf-8"))


def test_prediction_files_with_metrics_given(tmp_path):
    document = {"rows": [{"method": "a", "metrics": {"nll": {"value": 0.123456, "low": 0.1, "high": 0.2}}}]}
    path = write_evaluation_report(tmp_path / "e.html", {"a": make_predictions(9)}, document, title="Mine")
    text = path.read_text(encoding="utf-8")
    assert "<h1>Mine</h1>" in text
    assert "[0.100, 0.200]" in text
    with pytest.raises(EbmcalError, match="the metrics"):
        write_evaluation_report(tmp_path / "e.html", {"a": make_predictions(9)}, {"rows": 3})


def command_line():
    app = typer.Typer()
    app.command()(report)
    return app


@pytest.mark.parametrize(("form", "start"), [("markdown", "**rte**"), ("latex", r"\begin{table*}"), ("json", "{")])
def test_text_formats_go_to_the_terminal_or_a_file(finished, tmp_path, form, start):
    result = CliRunner().invoke(command_line(), [str(finished[0]), "--format", form])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(start)
    out = tmp_path / "table.txt"
    result = CliRunner().invoke(command_line(), [str(finished[0]), "-f", form, "-o", str(out)])
    assert str(out) in result.stdout.replace("\n", "")
    assert out.read_text(encoding="utf-8").startswith(start)
    if form == "json":
        assert json.loads(out.read_text())["summary"][0]["title"] == "rte"


def test_command_writes_html_and_passes_errors_on(run, tmp_path):
    result = CliRunner().invoke(command_line(), [str(run), "--output", str(tmp_path / "r.html")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "r.html").exists()
    result = CliRunner().invoke(command_line(), [str(tmp_path / "nowhere")])
    assert isinstance(result.exception, EbmcalError)
    assert CliRunner().invoke(command_line(), [str(run), "--format", "pdf"]).exit_code == 2
    with pytest.raises(EbmcalError, match="Did you mean 'latex'"):
        report_text(run, "latx")


@pytest.mark.slow
def test_five_methods_two_seeds_stay_small_and_quick(tmp_path):
    run = make_run(tmp_path / "run", methods=tuple(METHODS), n=3000)
    started = time.process_time()
    path = write_report(run)
    assert path.stat().st_size < 3_000_000
    assert time.process_time() - started < 15


def test_a_config_that_is_no_yaml_is_named(tmp_path):
    """Of a run that is not finished, which no checksums vouch for."""
    folder = RunFolder(tmp_path)
    write_text(folder.metrics, "{}")
    write_text(folder.config, "seeds: [1\x00")
    with pytest.raises(EbmcalError, match=r"config\.yaml is not readable YAML"):
        write_report(tmp_path)
