"""Tables: best marks, means over seeds, every format, the published numbers, free-form parts, examples."""

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

from ebmcal import tables
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions
from ebmcal.tables import Column, Entry, Table, TableRow, mark_best
from ebmcal.tables.examples import (
    energy_example_table,
    energy_examples,
    masked_text,
    matching_rows,
    noise_example_table,
    noise_examples,
)
from ebmcal.tables.nested import nested_tables, record_table
from synthetic_run import LABELS, NASTY_TEXTS, make_predictions

NAMES = ("accuracy", "ece_classwise", "ece_top_label", "nll", "brier")


def row(method, seed=1, posthoc=None, test_set="test", **figures):
    stored = {name: {"value": value, "low": value - 0.01, "high": value + 0.01} for name, value in figures.items()}
    return {"method": method, "posthoc": posthoc, "seed": seed, "test_set": test_set, "n_rows": 9, "metrics": stored}


def document(task="rte", rows=None):
    rows = rows or [
        row("hidden", 1, accuracy=0.82, ece_classwise=0.05, ece_top_label=0.06, nll=0.4, brier=0.2),
        row("hidden", 2, accuracy=0.84, ece_classwise=0.03, ece_top_label=0.05, nll=0.4, brier=0.2),
        row("baseline", 1, accuracy=0.85, ece_classwise=0.10, ece_top_label=0.12, nll=0.5, brier=0.2),
        row("baseline", 2, accuracy=0.83, ece_classwise=0.12, ece_top_label=0.14, nll=0.5, brier=0.2),
        row(
            "baseline",
            1,
            "temperature (dev)",
            accuracy=0.85,
            ece_classwise=0.01,
            ece_top_label=0.12,
            nll=0.5,
            brier=0.2,
        ),
        row(
            "baseline",
            2,
            "temperature (dev)",
            accuracy=0.83,
            ece_classwise=0.01,
            ece_top_label=0.14,
            nll=0.5,
            brier=0.2,
        ),
    ]
    return {"task": task, "task_metric": "accuracy", "rows": rows}


def best_of(table, key):
    return [r.entries[0].value for r, e in zip(table.rows, table.column(key), strict=True) if e.best]


def test_summary_has_mean_and_spread_in_the_order_of_the_paper():
    table = tables.summary_table(document())
    assert [e.value for e in table.column("method")] == ["baseline", "baseline + temperature (dev)", "hidden"]
    hidden = table.column("ece_classwise")[2]
    assert hidden.value == pytest.approx(0.04)
    assert hidden.spread == pytest.approx(np.std([0.05, 0.03], ddof=1))
    assert hidden.text() == "0.040 ± 0.014"


def test_post_hoc_rows_follow_their_method_those_fitted_on_dev_last():
    steps = ("temperature (dev)", "scaling-binning (train)", None, "scaling-binning (dev)", "temperature (train)")
    table = tables.summary_table(document(rows=[row("baseline", posthoc=step, accuracy=0.8) for step in steps]))
    shown = [e.value.removeprefix("baseline").removeprefix(" + ") for e in table.column("method")]
    assert shown == ["", steps[1], steps[4], steps[3], steps[0]]


def test_summary_marks_the_best_by_the_direction_of_the_metric():
    table = tables.summary_table(document())
    assert best_of(table, "accuracy") == ["baseline", "baseline + temperature (dev)"]
    assert best_of(table, "ece_classwise") == ["baseline + temperature (dev)"]
    assert best_of(table, "nll") == ["hidden"]
    assert best_of(table, "brier") == [], "all read the same: nobody has won"
    assert best_of(table, "published") == []


def test_every_ece_heading_says_which_one():
    many = document() | {
        "rows": [row("baseline", **dict.fromkeys((*NAMES, "smooth_ece", "ece_top_label_debiased"), 0.1))]
    }
    for table in (tables.summary_table(many), tables.seed_table(many), tables.paper_table([many])):
        titles = [c.title for c in table.columns if "ECE" in c.title]
        assert titles
        assert all(re.search("class-wise|top-label|Published", title) for title in titles), titles


def test_one_seed_keeps_its_interval_and_no_spread():
    table = tables.summary_table(document(rows=[row("baseline", accuracy=0.8)]))
    assert table.column("accuracy")[0].text() == "0.800 [0.790, 0.810]"
    assert not table.column("accuracy")[0].best
    assert "95% interval" in table.notes[0]


def test_unequal_numbers_of_seeds_are_shown():
    rows = [row("baseline", s, accuracy=0.8) for s in (1, 2, 3)] + [row("hidden", 1, accuracy=0.7)]
    assert [e.value for e in tables.summary_table(document(rows=rows)).column("n_seeds")] == [3, 1]
    assert "n_seeds" not in [c.key for c in tables.summary_table(document()).columns]


def test_what_the_figures_warn_of_is_said_once_and_fits_are_told():
    rows = [
        row("baseline", 1, step, ece_classwise=0.1) | {"note": "T = 1.5" if step else ""}
        for step in (None, "temperature (dev)")
    ]
    for stored in rows:
        stored["metrics"]["ece_classwise"]["notes"] = ["9 rows are few for 20 bins."]
    assert tables.summary_table(document("mine", rows)).notes[1:] == ("9 rows are few for 20 bins.",)
    assert [e.text() for e in tables.seed_table(document("mine", rows)).column("note")] == ["–", "T = 1.5"]


def test_detection_table_has_a_row_for_each_model_and_score():
    figures = {"auroc": 0.9, "aupr": None, "fpr_at_95_recall": 0.2}
    table = tables.detection_table(
        {"detection": {"hidden-seed1": {"noise by energy": figures, "ood_x by entropy": {}}}}
    )
    assert [e.text() for e in table.rows[0].entries] == ["hidden-seed1", "noise by energy", "0.900", "–", "0.200"]
    assert [c.better for c in table.columns] == [0, 0, 1, 1, -1]
    for odd in ({}, {"detection": None}, {"detection": {"a": 3}}, {"detection": {"a": {"b": 1}}}):
        assert not tables.detection_table(odd).rows


def test_a_failed_cell_is_shown_and_an_unknown_metric_kept():
    rows = [row("baseline", accuracy=0.8, own_score=3.5), {"method": "hidden", "seed": 1, "error": "loss is NaN"}]
    table = tables.summary_table(document(rows=rows))
    assert table.column("accuracy")[1].text() == "failed"
    assert tables.seed_table(document(rows=rows)).column("own_score")[0].value == 3.5


def test_missing_values_are_dashes_and_never_best():
    rows = [row("baseline", accuracy=0.8), {"method": "hidden", "seed": 1, "metrics": {"accuracy": {"value": None}}}]
    rows += [{"method": "scalar", "seed": 1, "metrics": {"accuracy": float("nan")}}]
    table = tables.summary_table(document(rows=rows))
    assert [e.text() for e in table.column("accuracy")] == ["0.800 [0.790, 0.810]", "–", "–"]
    json.loads(tables.to_json(table))


@pytest.mark.parametrize("rows", [None, []])
def test_an_empty_document_gives_empty_tables_in_every_format(rows):
    empty = {"rows": rows}
    for table in (
        tables.summary_table(empty),
        tables.seed_table(empty),
        tables.paired_table(empty),
        tables.paper_table([]),
    ):
        assert not table.rows
        tables.to_markdown(table), tables.to_latex(table), tables.to_json(table)
        Console(file=io.StringIO()).print(tables.to_rich(table))


@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        ([], "list"),
        ({"rows": {}}, None),
        ({"rows": {"a": 1}}, "not a list"),
        ({"rows": ["x"]}, r"rows\[0\]"),
        ({"rows": [{"seed": 1}]}, "'method'"),
        ({"rows": [{"method": "a", "metrics": [1]}]}, "'metrics'"),
        ({"rows": [{"method": "a", "metrics": {"nll": "high"}}]}, "'nll' is 'high'"),
        ({"paired": "x"}, "'paired'"),
        ({"paired": [1]}, r"paired\[0\]"),
        ({"seeds": 3}, "'seeds'"),
    ],
)
def test_damaged_documents_are_named(damaged, what):
    if what is None:
        assert tables.check_document(damaged) is damaged
        return
    with pytest.raises(EbmcalError, match=what):
        tables.check_document(damaged, "runs/x/metrics.json")


def test_published_numbers_are_those_of_the_paper():
    assert tables.PUBLISHED["baseline"]["rte"] == (0.724, 0.279)
    assert tables.PUBLISHED["sharp-hidden"]["mnli_mm"] == (0.872, 0.031)
    assert tables.PUBLISHED["temperature (dev)"]["average"] == (0.802, 0.072)
    for method, sets in tables.PUBLISHED.items():
        for index in range(2):
            mean = np.mean([pair[index] for name, pair in sets.items() if name != "average"])
            assert mean == pytest.approx(sets["average"][index], abs=0.0016), method


def test_published_figures_stand_beside_ours_only_for_their_tasks():
    table = tables.summary_table(document())
    assert [e.value for e in table.column("published_ece")] == [0.279, 0.235, 0.148]
    assert "published" not in [c.key for c in tables.summary_table(document("mine")).columns]
    assert "published" not in [c.key for c in tables.summary_table(document(), published=False).columns]
    assert tables.published_set("CoLA") == "cola"
    assert tables.published_set("average") is None
    assert tables.published_set("rte", "ood_news") is None


def test_paper_table_groups_tasks_and_keeps_dev_rows_out_of_the_contest():
    mnli = document(
        "mnli", [row("baseline", accuracy=0.8, ece_classwise=0.2), row("hidden", accuracy=0.7, ece_classwise=0.1)]
    )
    mnli["rows"] += [row("hidden", test_set="test_mismatched", accuracy=0.6, ece_classwise=0.1)]
    table = tables.paper_table([document(), mnli], published=False)
    assert [c.group for c in table.columns] == [
        "",
        "RTE",
        "RTE",
        "MNLI",
        "MNLI",
        "MNLI(mm)",
        "MNLI(mm)",
        "Average",
        "Average",
    ]
    assert [r.entries[0].value for r in table.rows] == ["baseline", "hidden", "temperature (dev)"]
    assert best_of(table, "RTE:ece_classwise") == ["hidden"], "temperature (dev) is lower and does not compete"
    averages = [e.number for e in table.column("average:performance")]
    assert averages[1] == pytest.approx((0.83 + 0.7 + 0.6) / 3)
    assert averages[0] is None, "no average over fewer test sets than the others have"


def test_paper_table_averages_the_published_rows_over_the_same_sets():
    table = tables.paper_table([document("rte"), document("wnli")])
    theirs = {r.entries[0].value: r for r in table.rows if r.section == "published"}
    assert len(theirs) == 9
    assert theirs["baseline, published"].entries[-1].number == pytest.approx((0.279 + 0.058) / 2)


def test_paper_table_can_show_the_other_ece():
    table = tables.paper_table([document()], ece="ece_top_label", published=False)
    assert table.columns[2].title == "ECE top-label"
    assert table.rows[0].entries[2].number == pytest.approx(0.13)


def nasty_table():
    columns = (Column("m", "Me|thod"), Column("a", "acc_$", better=1, group="A&B"))
    rows = (
        TableRow((Entry("<b>|x_1*"), Entry(-0.0001))),
        TableRow((Entry("50% ~ {#}\\^"), Entry(0.98765)), section="other"),
    )
    return mark_best(Table("A $title$ [x](y)", columns, rows, ("note_1 <i>",)))


def test_markdown_escapes_and_has_one_line_a_row():
    lines = tables.to_markdown(nasty_table()).splitlines()
    body = [line for line in lines if line.startswith("|")]
    assert len(body) == 4
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in body)
    assert "\\<b>" in body[2]
    assert "0.000" in body[2]
    assert "-0.000" not in body[2]
    assert "**0.988**" in body[3]


def test_latex_is_balanced_escaped_and_in_the_layout_of_the_paper():
    text = tables.to_latex(nasty_table())
    assert r"\textbf{50\% \textasciitilde{} \{\#\}\textbackslash{}\textasciicircum{}}" in text
    assert r"\multicolumn{1}{c|}{\textbf{A\&B}}" in text
    assert r"\textbf{.988}" in text, "bold, no leading zero"
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert not re.search(r"(?<!\\)[#%]", text)
    assert text.count(r"\hline") == 4, "top, under the heads, between sections, bottom"


def test_latex_drops_leading_zeros_of_spread_and_interval():
    columns = (Column("m", "Method"), Column("a", "acc."))
    entries = [Entry(0.5, spread=0.01), Entry(-0.5, low=-0.6, high=0.7), Entry(10.05)]
    text = tables.to_latex(Table("", columns, tuple(TableRow((Entry("x"), e)) for e in entries)))
    assert r".500 $\pm$ .010" in text
    assert "-.500 [-.600, .700]" in text
    assert "10.050" in text


def test_rich_shows_every_figure_and_takes_markup_as_text():
    out = io.StringIO()
    Console(file=out, width=120).print(
        tables.to_rich(mark_best(Table("[red]t", nasty_table().columns, nasty_table().rows)))
    )
    assert "[red]t" in out.getvalue()
    assert "0.988 *" in out.getvalue()


def test_json_holds_values_not_texts():
    data = json.loads(tables.to_json(tables.summary_table(document())))
    hidden = data["rows"][2]
    assert hidden["method"] == "hidden"
    assert hidden["nll"] == {"value": 0.4, "spread": 0.0, "best": True}
    assert [c["key"] for c in data["columns"]][:3] == ["method", "accuracy", "ece_classwise"]


def test_paired_table_names_metric_and_interval():
    test = {
        "method": "hidden",
        "against": "baseline",
        "seed": 1,
        "metric": "nll",
        "difference": -0.1,
        "low": -0.2,
        "high": 0.01,
    }
    table = tables.paired_table({"paired": [test | {"p_value": 0.00012, "p_holm": 0.2, "rows_needed": 1300}]})
    assert [e.text(c.digits) for e, c in zip(table.rows[0].entries, table.columns, strict=True)] == [
        "hidden",
        "baseline",
        "1",
        "NLL",
        "-0.100 [-0.200, 0.010]",
        "0.00012",
        "0.2",
        "some 1,300 rows",
    ]


def test_nested_dictionaries_become_facts_and_matrices():
    splits = {
        "train": {"rows": 10, "duplicates": {"count": 1, "first_rows": [3, 4]}},
        "test": {"rows": 5, "truncated": True, "set_aside": {}, "label_counts": {"not_so": 5}},
    }
    facts, matrix, inner = nested_tables({"n": 0.25, "splits": splits, "settings": {"k": 8}}, "Noise")
    assert [e.text() for e in facts.rows[0].entries] == ["n", "0.250"]
    assert [c.title for c in matrix.columns] == ["What", "train", "test"]
    cells = {r.entries[0].value: [e.text() for e in r.entries[1:]] for r in matrix.rows}
    assert cells["duplicates: first rows"] == ["3, 4", "–"]
    assert cells["truncated"] == ["–", "yes"]
    assert "set aside" not in cells, "rows that hold nothing are left out"
    assert cells["label counts: not_so"] == ["–", "5"], "names of the user's stay as they are"
    assert inner.title == "Settings"


def test_record_table_has_a_row_for_each_record():
    table = record_table({"a": {"seconds": 1.5}, "b": {"steps": 3, "deep": {"x": None}}}, "Training", "Model")
    assert [c.title for c in table.columns] == ["Model", "seconds", "steps", "deep: x"]
    assert [e.text(None) for e in table.rows[1].entries] == ["b", "–", "3", "–"]


def test_energy_examples_are_the_ends_with_both_posteriors():
    rows = make_predictions(50, 1.4)
    baseline = make_predictions(50, 4.0, energies=False)
    found = energy_examples(rows, baseline.rows(np.arange(50)[::-1]), n=3)  # another order: matched by id
    order = np.argsort(rows.energies)
    assert [e.energy for e in found] == pytest.approx(rows.energies[[*order[:3], *order[-3:]]].tolist())
    assert [e.end for e in found] == ["lowest"] * 3 + ["highest"] * 3
    assert found[0].text == NASTY_TEXTS[0]
    first = int(order[0])
    assert [s.before for s in found[0].shifts] == pytest.approx(baseline.probabilities()[first].tolist())
    assert [s.after for s in found[0].shifts] == pytest.approx(rows.probabilities()[first].tolist())
    assert found[0].label == LABELS[rows.labels[first]]


@pytest.mark.parametrize("n_rows", [1, 2, 3, 7])
def test_no_example_comes_twice(n_rows):
    rows = make_predictions(n_rows)
    found = energy_examples(rows, n=5)
    assert len(found) == n_rows
    assert sorted(e.energy for e in found) == sorted(rows.energies.tolist())


def test_energy_examples_need_energies_and_texts():
    assert energy_examples(make_predictions(5, energies=False)) == []
    assert energy_examples(Predictions([0], ("a", "b"), probs=[[0.5, 0.5]], energies=[1.0])) == []


def test_many_labels_show_the_true_one_and_the_favoured():
    probs = np.full((1, 20), 0.01)
    probs[0, 7] = 1 - 0.19
    names = tuple(f"c{i}" for i in range(20))
    rows = Predictions([13], names, probs=probs, energies=[0.0], texts=["t"])
    shown = [s.label for s in energy_examples(rows)[0].shifts]
    assert len(shown) == 4
    assert {"c7", "c13"} <= set(shown)


def test_a_baseline_of_other_rows_or_classes_is_not_compared():
    rows = make_predictions(4)
    other = Predictions([0], ("a", "b"), probs=[[0.5, 0.5]])
    assert matching_rows(rows, other) is None
    part = matching_rows(rows, make_predictions(3))
    assert np.isnan(part[3]).all()
    assert not np.isnan(part[:3]).any()
    lone = [e for e in energy_examples(rows, make_predictions(3)) if e.shifts[0].before is None]
    assert len(lone) == 1


def test_noise_examples_put_hidden_words_beside_their_masks():
    records = [
        {
            "masked": "<M> young <M> of charm",
            "hidden": ["as a", "woman"],
            "noise": "of a young man",
            "noise_pair": None,
        },
        {"masked": "one <M> <SEP> two", "hidden": ["x"], "noise": "a", "noise_pair": "b"},
        {"masked": "no mask here", "hidden": ["lost"], "noise": ""},
    ]
    first, pair, odd = noise_examples(records)
    assert masked_text(first) == "<M> (as a) young <M> (woman) of charm"
    assert masked_text(pair) == "one <M> (x)  ‖  two"
    assert odd.pieces == (("no mask here", False), ("lost", True))
    table = noise_example_table([first, pair])
    assert [e.text() for e in table.column("noise")] == ["of a young man", "a ‖ b"]


def test_example_tables_cut_long_texts():
    table = energy_example_table(energy_examples(make_predictions(30)), "hidden")
    assert max(len(e.text()) for e in table.column("text")) <= 301
    assert "→" not in table.column("posterior")[0].text(), "no baseline, no arrow"
    tables.to_markdown(table)


def test_detection_of_some_texts_alone():
    found = {"hidden-seed1": {"noise by energy": {"auroc": 0.9}, "ood_books by energy": {"auroc": 0.8}}}
    assert [row.entries[1].value for row in tables.detection_table({"detection": found}, of="ood_").rows] == [
        "ood_books by energy"
    ]
