"""The table and the picture of how hard noise was."""

import pytest

from ebmcal.plots import draw_hardness, prepare_hardness
from ebmcal.tables import hardness_table

DOCUMENT = {
    "noise": {
        "splice": {"share": 0.8, "words": 19.5, "words_of_data": 21.0, "unknown_words": 0.1, "probe": 0.63},
        "far": {"share": 0.2, "words": 22.0, "words_of_data": 21.0, "probe": 0.92, "thrown_away": {"empty": 3}},
    },
    "training": {
        "baseline-seed1": {"told_apart_at_the_end": None},
        "hidden-seed1": {
            "noise_rounds": 3.0,
            "told_apart_by_source": {"splice": 0.8, "far": 1.0},
            "told_apart_held_out": {"splice": 0.58, "far": 0.98},
        },
        "hidden-seed2": {
            "noise_rounds": 3.0,
            "told_apart_by_source": {"splice": 0.9, "far": 1.0},
            "told_apart_held_out": {"splice": 0.52, "far": 1.0},
        },
    },
}


def test_sources_and_methods_with_means_over_seeds():
    table = hardness_table(DOCUMENT)
    assert [entry.value for entry in table.column("source")] == ["splice", "far"]
    assert [entry.value for entry in table.column("training")] == pytest.approx([0.85, 1.0])
    assert [entry.value for entry in table.column("held_out")] == pytest.approx([0.55, 0.99])
    assert table.column("thrown_away")[1].value == "3 empty"


def test_too_easy_too_hard_and_reuse_are_said():
    notes = " ".join(hardness_table(DOCUMENT).notes)
    assert "far is too easy for hidden" in notes
    assert "splice is hardly told from held-out data by hidden (55%; 85% in training, much of it by heart)" in notes
    assert "Each text of splice was used 3.0 times" in notes


@pytest.mark.parametrize("noise", [None, {}, {"n_samples": 5, "settings": {"top_k": 20}}])
def test_no_noise_or_an_older_document_is_an_empty_table(noise):
    assert not hardness_table({"noise": noise, "training": {}}).rows


def test_the_picture_has_a_line_for_each_source_and_method():
    data = prepare_hardness(DOCUMENT)
    assert [row.name for row in data] == ["splice, hidden", "far, hidden"]
    assert len(draw_hardness(data).collections) == 3  # probe, training, held-out
    assert "no noise" in draw_hardness([]).texts[0].get_text()
