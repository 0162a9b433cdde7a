"""`write_noise`: from texts in memory to a Dataset of noise, kept, found again and grown."""

import pytest
from datasets import Dataset

import ebmcal
from ebmcal.errors import EbmcalError
from small_runs import make_small
from tiny_models import SENTENCES


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch):
    make_small(monkeypatch)
    monkeypatch.setattr("ebmcal.noise.writing.LEARNING_RATE", 2e-2)


def write(texts=SENTENCES[:60], count=30, **changes):
    settings = {"lm": "small", "mode": "gaps", "mask_ratio": 0.2, "steps": 40} | changes
    return ebmcal.write_noise(texts, count=count, **settings)


def test_texts_become_noise_texts():
    noise = write()
    assert isinstance(noise, Dataset)
    assert noise.column_names == ["text"]
    assert len(noise) == 30
    assert all(noise["text"])
    assert len(set(noise["text"]) - set(SENTENCES)) > 20  # written anew, not copied


def test_pairs_keep_their_two_columns(tmp_path):
    pairs = list(zip(SENTENCES[:40], SENTENCES[40:80], strict=True))
    noise = write(pairs, count=5)
    assert noise.column_names == ["text", "text_pair"]
    table = Dataset.from_dict({"premise": [a for a, _ in pairs], "hypothesis": [b for _, b in pairs]})
    named = write(table, count=5, text_column="premise", text_pair_column="hypothesis")
    assert named.to_dict() == noise.to_dict()


def test_the_same_call_gives_the_same_texts_and_more_of_them_begin_alike(tmp_path, monkeypatch):
    first = write(output=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"noise_lm", "noise"}
    monkeypatch.setattr("ebmcal.noise.fitting.run", lambda *_: pytest.fail("the LM was fitted again"))
    more = write(output=tmp_path, count=300)
    assert more["text"][:30] == list(first["text"])
    monkeypatch.setattr("ebmcal.noise.writing.fill.__defaults__", (lambda *_: pytest.fail("texts were made again"),))
    assert write(output=tmp_path)["text"] == list(first["text"])


def test_nothing_is_left_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    write(count=1)
    assert not list(tmp_path.iterdir())


def test_another_seed_gives_other_texts(tmp_path):
    assert write(seed=1, output=tmp_path)["text"] != write(seed=2, output=tmp_path)["text"]


def test_processes_of_a_torchrun_read_what_was_made(tmp_path, monkeypatch):
    monkeypatch.setattr("ebmcal.noise.writing.n_processes", lambda: 2)
    with pytest.raises(EbmcalError, match="not made yet, and several processes cannot make it together"):
        write(output=tmp_path, count=5)
    monkeypatch.setattr("ebmcal.noise.writing.n_processes", lambda: 1)
    made = write(output=tmp_path, count=5)
    monkeypatch.setattr("ebmcal.noise.writing.n_processes", lambda: 2)
    assert write(output=tmp_path, count=5).to_dict() == made.to_dict()


def test_sources_without_a_language_model(monkeypatch):
    monkeypatch.setattr("ebmcal.noise.writing.fit", lambda *_: pytest.fail("a language model was fitted"))
    spliced = write(source="splice", count=200)
    assert len(spliced) == 200
    assert len(set(spliced["text"])) > 100
    assert write(source="splice", count=200).to_dict() == spliced.to_dict()
    assert {word for text in spliced["text"] for word in text.split()} <= {w for s in SENTENCES for w in s.split()}
    pairs = list(zip(SENTENCES[:40], SENTENCES[40:80], strict=True))
    assert write(pairs, source="splice 0.5, far 0.5", count=4).column_names == ["text", "text_pair"]


WRONG = {
    "source": ({"source": "splise"}, "Unknown noise source 'splise'"),
    "a source with an LM": ({"source": "infill:gpt2"}, "only splice and far are made from the texts alone"),
    "count": ({"count": 0}, r"count must be a whole number, 1 or more and .*; 0 came"),
    "both": ({"steps": 0, "mask_ratio": 1.0}, r"steps must be .* 0 came\.\nmask_ratio is a share"),
    "mode": ({"mode": "infil"}, "Unknown noise mode 'infil'"),
    "half": ({"mode": "half"}, "rewrites one sentence of a pair"),
    "lm": ({"lm": "smolm2"}, "smolm2"),
    "no texts": ({"texts": []}, "no rows"),
    "not texts": ({"texts": [1, 2]}, "texts must be strings"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_told(case):
    changes, message = WRONG[case]
    with pytest.raises(EbmcalError, match=message):
        write(**changes)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EbmcalError, match="is a file; give a folder"):
        write(output=tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": True}, ["count must be a whole number", "True came"]),
        ({"count": "3", "seed": -1}, ["'3' came", "seed must be a whole number, 0 or more", "-1 came"]),
        ({"seed": 1.5}, ["seed", "1.5 came"]),
        ({"mask_ratio": "0.4"}, ["mask_ratio is a share", "'0.4' came"]),
        ({"mask_ratio": True}, ["mask_ratio is a share"]),
        ({"max_length": 4}, ["max_length must be a whole number, 8 or more"]),
        ({"steps": 0}, ["steps must be a whole number"]),
        ({"source": 3}, ["source is a word; 3 came"]),
        ({"lm": None}, ["lm is a word; None came"]),
        ({"text_column": 0}, ["text_column is a word; 0 came"]),
        ({"source": "splice:same-label"}, ["splice:same-label chooses texts by their labels, and these have none"]),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(options, words):
    with pytest.raises(EbmcalError) as caught:
        ebmcal.write_noise(["a text", "another"], **{"count": 2, "source": "splice"} | options)
    assert all(word in str(caught.value) for word in words), caught.value
