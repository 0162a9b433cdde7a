"""Tables: rows over seeds, best marks, every output format, the published numbers, error analysis, examples."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ebmcal.predictions import Predictions
from ebmcal.reports import tables
from ebmcal.reports.page import Table
from ebmcal.reports.tables import (
    class_table,
    confident_errors,
    energy_examples,
    noise_auroc_table,
    noise_examples,
)
from synthetic_run import (
    BASELINE,
    HIDDEN,
    HOSTILE_TEXTS,
    LABELS,
    best,
    column,
    make_evaluation,
    make_history,
    make_predictions,
    make_results,
    two_methods,
)  # fmt: skip


def compared(p_adjusted):
    """Tests of the two rows that are not the reference, on every metric."""
    keys = [("baseline", "temperature (dev)"), ("hidden", None)]
    return [
        {"model": model, "calibrator": calibrator, "test_set": "test", "metric": metric, "p_adjusted": p_adjusted}
        for model, calibrator in keys
        for metric in HIDDEN
    ]


def test_summary_shows_means_over_seeds_in_the_order_of_the_paper():
    table = tables.summary_table(two_methods())
    assert column(table, "Model") == ["baseline", "baseline + temperature (dev)", "hidden"]
    assert column(table, "ECE class-wise") == ["0.110", "0.010", "0.040"]
    assert "mean of 2 seeds" in table.notes[0]
    assert "400 test rows" in table.notes[0]


def test_recommended_model_is_first_and_marked():
    table = tables.summary_table(two_methods(recommended={"trial": "hidden-seed2", "calibrator": None}))
    assert column(table, "Model")[0] == "hidden"
    assert table.recommended == 0
    assert "→ hidden" in str(table)
    assert "→ recommended" in str(table)
    by_argument = tables.summary_table(two_methods(), recommended=("baseline", "temperature (dev)"))
    assert column(by_argument, "Model")[0] == "baseline + temperature (dev)"


def test_verbose_adds_training_rows_and_intervals():
    short, verbose = (tables.summary_table(two_methods(), verbose) for verbose in (False, True))
    assert "(train)" not in str(short)
    assert "±" not in str(short)
    assert "baseline + temperature (train)" in column(verbose, "Model")
    assert "± 0.014" in str(verbose)
    single = make_evaluation(make_results({("mine", None, None): {"nll": 0.5}}))
    assert "[0.490, 0.510]" in str(tables.summary_table(single, verbose=True))


def test_rows_over_seeds_are_preferred_to_our_own_means():
    rows = make_results({("hidden", 1, None): {"nll": 0.4}, ("hidden", 2, None): {"nll": 0.5}})
    pooled = make_results({("hidden", None, None): {"nll": 0.456}}, n_seeds=2)
    table = tables.summary_table(make_evaluation([*rows, *pooled]), verbose=True)
    assert column(table, "NLL") == ["0.456"]
    assert "[0.446, 0.466]" in str(table)


@pytest.mark.parametrize("verbose", [False, True])
def test_terminal_tables_fit_100_columns(verbose):
    values = {
        (method, seed, calibrator): BASELINE
        for method in ("a-method-with-a-rather-long-name", "hidden")
        for seed in (1, 2, 3)
        for calibrator in (None, "scaling-binning (cross-fit)", "temperature (train)")
    }
    table = tables.summary_table(make_evaluation(make_results(values)), verbose)
    lines = str(table).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(re.search(r"0\.850", line) for line in lines if line.strip().startswith(("a-method", "hidden")))


def test_runs_show_scaling_binning_only_in_verbose_tables_and_temperature_before_it():
    calibrators = (None, "scaling-binning (dev)", "temperature (dev)")
    found = make_evaluation(make_results({("hidden", 1, calibrator): HIDDEN for calibrator in calibrators}))
    names = ["hidden", "hidden + temperature (dev)", "hidden + scaling-binning (dev)"]
    assert column(tables.summary_table(found), "Model") == names, "an evaluation has what was asked for"
    assert column(tables.summary_table(found, recommended=("hidden", "")), "Model") == names[:2]
    assert column(tables.summary_table(found, True, recommended=("hidden", "")), "Model") == names


def test_best_values_follow_the_direction_of_the_metric_and_ties_share():
    table = tables.summary_table(two_methods(comparisons=compared(p_adjusted=0.01)))
    assert best(table, "ECE class-wise") == ["baseline + temperature (dev)"]
    assert best(table, "NLL") == ["hidden"]
    assert best(table, "Brier") == [], "all read the same"
    assert best(table, "Accuracy") == ["baseline + temperature (dev)"]
    assert "* best of its column" in str(table)


@pytest.mark.parametrize("tests", [[], compared(p_adjusted=0.2), compared(p_adjusted=0.01)[: len(HIDDEN)]])
def test_no_value_is_best_without_a_significant_difference_between_tested_models(tests):
    table = tables.summary_table(two_methods(comparisons=tests))
    assert not any(cell.is_best for row in table.cells() for cell in row)


def test_missing_values_are_dashes_and_never_best():
    rows = make_results({("a", None, None): {"nll": 0.4}, ("b", None, None): {"nll": None}})
    rows += make_results({("c", None, None): {"nll": float("nan")}})
    table = tables.summary_table(make_evaluation(rows))
    assert column(table, "NLL") == ["0.400", "–", "–"]


def test_short_tables_leave_out_ensembles_and_the_probe_is_last():
    values = {("frozen-probe", 0, None): BASELINE, ("baseline", 1, None): BASELINE, ("baseline", 2, None): BASELINE}
    values |= {("focal", 1, None): HIDDEN, ("focal", 2, None): HIDDEN, ("baseline ensemble", None, None): HIDDEN}
    evaluation = make_evaluation(make_results(values))
    assert column(tables.summary_table(evaluation), "Model") == ["baseline", "focal", "frozen-probe"]
    assert "baseline ensemble" in column(tables.summary_table(evaluation, verbose=True), "Model")
    assert "Seeds" not in tables.summary_table(evaluation).columns


@pytest.mark.parametrize("note", ["T = 1.5", "T = 1.5; 9 rows are few", "mean of 3 seeds; T = 1.5"])
def test_single_models_show_what_a_calibrator_learned(note):
    rows = make_results({("a", 1, None): HIDDEN}) + make_results({("a", 1, "temperature (dev)"): HIDDEN}, note=note)
    table = tables.seed_table(make_evaluation(rows))
    assert column(table, "Fitted") == ["–", "T\u00a0=\u00a01.5"], "on one line"


def test_unequal_numbers_of_seeds_have_a_column():
    rows = make_results({("baseline", s, None): BASELINE for s in (1, 2, 3)} | {("hidden", 1, None): HIDDEN})
    assert column(tables.summary_table(make_evaluation(rows)), "Seeds") == ["3", "1"]


def test_noise_floor_and_bins_are_in_the_notes():
    rows = make_results({("a", None, None): HIDDEN}, noise_floor=0.012)
    notes = " ".join(tables.summary_table(make_evaluation(rows, n_bins=15)).notes)
    assert "15 bins" in notes
    assert "(dev): calibrator fitted on calibration rows." in tables.summary_table(two_methods()).notes
    single = make_evaluation(make_results({("a", None, None): HIDDEN}, n_rows=1))
    assert tables.summary_table(single).notes[0] == "Measured on 1 test row."
    run = make_evaluation(rows, advice={"rows": "out-of-fold", "n_rows": 270})
    assert "The recommendation was made on 270 out-of-fold rows" in tables.summary_table(run).notes[0]
    binned = make_evaluation(make_results({("a", None, "scaling-binning (dev)"): HIDDEN}))
    assert tables.BINNING_NOTE in tables.summary_table(binned).notes
    assert tables.BINNING_NOTE not in tables.summary_table(single).notes
    assert "by chance about 0.012 (class-wise), 0.012 (top-label)" in notes


def test_comparisons_with_interval_p_value_and_rows_needed():
    test = {"model": "hidden", "calibrator": None, "reference": "baseline", "test_set": "test", "metric": "nll"}
    test |= {"difference": -0.1, "low": -0.2, "high": 0.01, "p_value": 0.00002, "p_adjusted": 0.2}
    table = tables.comparison_table(make_evaluation([], [test | {"rows_needed": 1300.0, "seeds_needed": None}]))
    (row,) = table.cells()
    assert [cell.full for cell in row] == [
        "hidden", "baseline", "NLL", "-0.100 [-0.200, 0.010]", "< 0.001", "0.200",
    ]  # fmt: skip
    assert table.notes[-1].endswith("this many rows would show them in four of five cases: hidden 1,300 rows (NLL).")
    assert "five cases" not in "".join(tables.comparison_table(make_evaluation([], [test])).notes)
    assert len(tables.comparison_table(make_evaluation([]))) == 0


def test_detection_is_averaged_over_seeds():
    row = {"method": "hidden", "score": "max_prob", "fpr95": 0.2}
    rows = [row | {"seed": s, "texts": t, "auroc": 0.8 + s / 100} for s in (1, 2) for t in ("noise", "ood_books")]
    table = tables.detection_table(make_evaluation([], (), rows))
    assert table.columns == ["Texts", "Model", "largest probability"]
    assert [cell.full for cell in table.cells()[1]] == ["books", "hidden", "0.815 FPR 0.20"]


def hostile_table():
    frame = pd.DataFrame({"Me|thod": ["<b>|x_1*", "50% ~ {#}\\^"], ("A&B", "acc_$"): [-0.0001, 0.98765]})
    frame.columns = pd.Index(["Me|thod", ("A&B", "acc_$")], tupleize_cols=False)
    better = {("A&B", "acc_$"): 1}
    return Table(frame, "A $title$ [x](y)", ("note_1 <i>",), better, sections=["a", "b"])


def test_markdown_escapes_and_has_one_line_per_row():
    lines = hostile_table().to_markdown().splitlines()
    body = [line for line in lines if line.startswith("|")]
    assert len(body) == 4
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in body)
    assert "\\<b>" in body[2]
    assert "0.000" in body[2]
    assert "-0.000" not in body[2]
    assert "**0.988**" in body[3]


def test_latex_is_balanced_escaped_and_without_leading_zeros():
    text = hostile_table().to_latex()
    assert r"50\% \textasciitilde{} \{\#\}\textbackslash{}\textasciicircum{}" in text
    assert r"A\&B" in text
    assert r"\textbf{.988}" in text
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert not re.search(r"(?<!\\)[#%]", text)
    assert text.count(r"\midrule") == 2, "below the heading and between sections"
    frame = pd.DataFrame({"m": ["x"], "a": [10.05]})
    assert "10.050" in Table(frame).to_latex()


def test_print_loses_no_column_if_the_output_is_no_terminal(capsys):
    tables.summary_table(two_methods(), verbose=True).print()
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    assert all(name in shown for name in ("Accuracy", "Brier"))


def test_notebooks_get_html():
    html = two_methods().table()._repr_html_()
    assert "<table" in html
    assert "ECE class-wise" in html


def test_empty_tables_work_in_every_format():
    empty = make_evaluation([])
    for table in (tables.comparison_table(empty), tables.detection_table(empty)):
        assert not len(table)
        assert table.to_markdown()
        assert table.to_latex()
        assert str(table)


def test_class_table_against_hand_worked_numbers():
    probs = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]
    table = class_table(Predictions([0, 0, 1, 1], ("no", "yes"), probs=probs))
    assert table.frame["Recall"].tolist() == [1.0, 0.5]
    assert table.frame["Precision"].tolist() == pytest.approx([2 / 3, 1.0])
    assert table.frame["Confidence"].tolist() == pytest.approx([(0.9 + 0.8 + 0.6) / 3, 0.7])
    assert table.frame["ECE"].tolist() == pytest.approx([(0.1 + 0.2 + 0.3 + 0.6) / 4] * 2)


def test_confident_errors_are_sorted_and_counted():
    rows = make_predictions(200, 3.0)
    table = confident_errors(rows, n=5)
    wrong = rows.predicted != rows.labels
    assert table.frame["Confidence"].tolist() == sorted(rows.confidence[wrong], reverse=True)[:5]
    assert f"{wrong.sum()} of 200" in table.notes[0]
    no_texts = confident_errors(Predictions([0], ("a", "b"), probs=[[0.1, 0.9]], ids=["r7"]))
    assert no_texts.frame["Text"].tolist() == ["id r7"]


def test_energy_examples_are_the_ends_with_both_posteriors():
    rows, baseline = make_predictions(50, 1.4), make_predictions(50, 4.0)
    table = energy_examples(rows, baseline.rows(np.arange(50)[::-1]), n=3)  # another order: matched by id
    order = np.argsort(rows.energies)
    assert table.frame["Ê(x)"].tolist() == pytest.approx(rows.energies[[*order[:3], *order[-3:]]].tolist())
    assert table.frame["Text"][0] == HOSTILE_TEXTS[0]
    first = int(order[0])
    label = rows.labels[first]
    shown = f"{LABELS[label]} {baseline.probs[first, label]:.3f} → {rows.probs[first, label]:.3f}"
    assert table.frame["Posterior"][0].splitlines()[0] == shown


@pytest.mark.parametrize("n_rows", [1, 2, 3, 7])
def test_no_energy_example_appears_twice(n_rows):
    rows = make_predictions(n_rows)
    assert sorted(energy_examples(rows).frame["Ê(x)"]) == pytest.approx(sorted(rows.energies))


def test_energy_examples_without_energies_baseline_or_matching_rows():
    assert not len(energy_examples(make_predictions(5, energies=False)))
    assert "→" not in energy_examples(make_predictions(5)).frame["Posterior"][0]
    other = Predictions([0], ("a", "b"), probs=[[0.5, 0.5]])
    assert "→" not in "".join(energy_examples(make_predictions(4), other).frame["Posterior"])
    partly = energy_examples(make_predictions(4), make_predictions(3)).frame["Posterior"]
    assert sum("→" not in text for text in partly) == 1


def test_noise_examples_put_hidden_words_after_their_masks():
    records = [
        {"source": "infill", "masked": "<M> young <M> of charm", "hidden": ["as a", "woman"], "text": "of a young man"},
        {"source": "infill", "masked": "one <M> <SEP> two", "hidden": ["x"], "text": "a", "text_pair": "b"},
        {"source": "splice", "masked": "no mask here", "hidden": ["lost"], "text": ""},
    ]
    frame = noise_examples(records).frame
    masked = ["<M> (as a) young <M> (woman) of charm", "one <M> (x) ‖ two", "no mask here (lost)"]
    assert frame["Made from (hidden words)"].tolist() == masked
    assert frame["Noise text"].tolist() == ["of a young man", "a ‖ b", ""]
    online = noise_examples([{"source": "splice", "text": "a b", "text_pair": None}]).frame
    assert online.columns.tolist() == ["Source", "Noise text"]


def test_noise_auroc_per_method_with_warnings():
    histories = [("hidden", make_history("hidden", seed)) for seed in (1, 2)] + [
        ("baseline", make_history("baseline", 1))
    ]
    detection = [{"method": "hidden", "texts": "noise", "score": "energy", "auroc": 0.99, "fpr95": 0.1}]
    table = noise_auroc_table(histories, make_evaluation([], (), detection).detection, reuse=3.0)
    assert column(table, "Method") == ["hidden"]
    assert table.frame["Training"][0] == pytest.approx(0.69, abs=0.01)
    notes = " ".join(table.notes)
    assert "too easy (held-out AUROC 0.99)" in notes
    assert "used 3.0 times" in notes
    assert not len(noise_auroc_table([], make_evaluation([]).detection))


def test_terminal_takes_markup_as_text():
    table = Table(pd.DataFrame({"[red]m": ["[bold]x"]}), "[red]t")
    assert "[red]t" in str(table)
    assert "[bold]x" in str(table)


def test_other_metrics_are_shown_if_the_headline_is_incomplete():
    rows = make_results({("a", None, None): {"aurc": 0.1, "aurc_by_energy": 0.2, "my_score": 3.0}})
    assert tables.summary_table(make_evaluation(rows)).columns == ["Model", "AURC", "AURC by energy", "My score"]


def test_no_value_is_best_without_a_significant_difference():
    rows = make_results({("a", 1, None): HIDDEN, ("b", 1, None): BASELINE})
    tests = [
        {"model": "b", "reference": "a", "test_set": "test", "metric": "nll", "p_adjusted": p} for p in (0.9, 0.01)
    ]
    marked = [tables.summary_table(make_evaluation(rows, [test])) for test in tests]
    assert [any(row[4].is_best for row in table.cells()) for table in marked] == [False, True]


def test_arrows_stay_if_rows_are_too_few_to_compare():
    rows = make_results({("a", 1, None): HIDDEN, ("b", 1, None): BASELINE})
    table = tables.summary_table(replace(make_evaluation(rows), meta={"not_compared": "24 rows are too few."}))
    assert table.better["NLL"] == -1
    assert not any(cell.is_best for row in table.cells() for cell in row)


def test_columns_of_texts_are_wider_than_those_of_labels():
    frame = pd.DataFrame(
        {"Text": ["a longer text " * 9], "Label": ["0"], "Name": ["transfer_not_received_by_recipient"]}
    )
    assert [Table(frame).min_width(i) for i in range(3)] == [30, 1, 9]
