"""`build_noise` and `generate_noise`: what trainings draw, what is held out, what is reused, what is rejected."""

import pytest
from datasets import Dataset

import ebmcal
from ebmcal import noise as noise_package
from ebmcal.data.splits import Texts
from ebmcal.errors import EbmcalError
from ebmcal.noise import NoiseConfig, build_noise, causal_lm, describe_noise, generation
from ebmcal.noise.generation import NoiseStore
from ebmcal.progress import Reporter
from tiny_models import SENTENCES, save_language_model

PAGES = SENTENCES[:12]


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return str(save_language_model(tmp_path_factory.mktemp("lm") / "small"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Shared, so that the LM is trained once."""
    return tmp_path_factory.mktemp("cache")


def make_dataset(first, n, pairs=False):
    """Texts that share no word with those of another range, so that the origin of noise is known."""
    texts = [" ".join(f"w{i}.{j}" for j in range(3 + i % 7)) for i in range(first, first + n)]
    columns = {"id": [f"r{i}" for i in range(first, first + n)], "text": texts}
    columns |= {"text_pair": texts[1:] + texts[:1]} if pairs else {}
    return Dataset.from_dict(columns | {"label": [i % 2 for i in range(n)]})


TRAIN, TEST = make_dataset(0, 60), make_dataset(1000, 50)

#: Texts that a tiny LM learns to write in a few steps.
EASY = Dataset.from_dict({"id": [str(i) for i in range(120)], "text": SENTENCES, "label": [i % 2 for i in range(120)]})


def make_noise(noise, cache, train=TRAIN, test=TEST, n_draws=96, **changes):
    config = NoiseConfig(
        noise=noise, lm_steps=60, lm_batch_size=8, lm_learning_rate=1e-2, mask_ratio=0.2, max_length=32,
        precision="fp32", **changes,
    )  # fmt: skip
    return build_noise(config, train, test, ("bad", "good"), n_draws=n_draws, cache_dir=cache, reporter=Reporter())


def rows_of(noise, cache, name, n):
    """Rows of the store of a source."""
    return NoiseStore.open(cache / noise.description["sources"][name]["directory"]).rows(n)


def words_of(texts):
    return {word for text in texts for word in text.split()}


def test_a_training_draws_each_source_in_its_share(tmp_path):
    noise = make_noise("splice 0.75, unrelated 0.25", tmp_path)
    drawn = noise.stream(1).draw(range(96))
    spliced = make_noise("splice", tmp_path).stream(1).draw(range(72))
    assert [text for text in drawn if text in spliced] == spliced
    assert noise.stream(2).draw(range(96)) != drawn
    assert make_noise("splice 0.75, unrelated 0.25", tmp_path).stream(1).draw(range(96)) == drawn


def test_held_out_noise_is_made_from_test_texts_and_drawn_noise_from_training_texts(tmp_path):
    noise = make_noise("splice 0.5, unrelated 0.5", tmp_path)
    held_out = noise.held_out
    assert held_out.column_names == ["id", "text", "source"]
    assert held_out["source"][:] == ["splice"] * 25 + ["unrelated"] * 25
    assert held_out["id"][:2] == ["splice-0", "splice-1"]
    assert words_of(held_out["text"]) <= words_of(TEST["text"])
    assert words_of(text for text, _ in noise.stream(1).draw(range(96))) <= words_of(TRAIN["text"])


def test_pairs_stay_pairs(tmp_path):
    train, test = make_dataset(0, 60, pairs=True), make_dataset(1000, 50, pairs=True)
    noise = make_noise("splice, unrelated", tmp_path, train, test)
    assert noise.held_out.column_names == ["id", "text", "text_pair", "source"]
    assert all(pair for _, pair in noise.stream(1).draw(range(20)))


def test_texts_of_a_file_are_drawn_or_held_out(tmp_path):
    path = tmp_path / "pages.csv"
    path.write_text("text\n" + "".join(f'"{page}"\n' for page in PAGES))
    noise = make_noise(f"splice, unrelated:{path}", tmp_path)
    held_out = {row["text"] for row in noise.held_out if row["source"] == f"unrelated:{path}"}
    drawn = {text for text, _ in noise.stream(1).draw(range(200))}
    assert set(PAGES) <= held_out | drawn
    assert held_out
    assert not held_out & drawn


def test_held_out_noise_of_an_lm_comes_after_the_texts_for_training(lm, cache):
    noise = make_noise(f"infill:{lm}", cache, EASY, EASY, n_draws=80)
    rows = [row["text"] for row in rows_of(noise, cache, f"infill:{lm}", 80 + len(noise.held_out))]
    assert sorted(text for text, _ in noise.stream(1).draw(range(80))) == sorted(rows[:80])
    assert noise.held_out["text"][:] == rows[80:]
    facts = noise.description["sources"][f"infill:{lm}"]
    assert facts["n_texts"] == 80
    assert facts["lm"]["perplexity"] < facts["lm"]["perplexity_before"]
    assert 0 < facts["usable_share"] <= 1
    assert noise.description["reuse"] == 1.0
    assert noise.examples[0].keys() == {"source", "masked", "hidden", "text", "text_pair"}


def test_a_limit_on_samples_means_reuse(lm, cache):
    noise = make_noise(f"infill:{lm}, splice", cache, EASY, EASY, n_draws=80, samples=10)
    assert noise.description["sources"][f"infill:{lm}"]["n_texts"] == 10
    assert noise.description["reuse"] == 4.0
    drawn = [text for text, _ in noise.stream(1).streams[0].draw(range(40))]
    assert sorted(drawn[:10]) == sorted(drawn[10:20])  # every text is used once before any is used twice


def test_finished_noise_is_found_again_even_in_a_read_only_cache(lm, cache, monkeypatch):
    expected = make_noise(f"infill:{lm}", cache, EASY, EASY, n_draws=40).stream(1).draw(range(40))
    for name in ("fit_noise_lm", "fill_store", "locked"):
        monkeypatch.setattr(generation, name, lambda *_, **__: pytest.fail("made again"))
    assert make_noise(f"infill:{lm}", cache, EASY, EASY, n_draws=40).stream(1).draw(range(40)) == expected


def test_several_processes_read_finished_noise_but_do_not_make_it(lm, cache, monkeypatch):
    make_noise(f"infill:{lm}", cache, EASY, EASY, n_draws=10)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert make_noise(f"infill:{lm}", cache, EASY, EASY, n_draws=10).stream(1).draw([0])
    with pytest.raises(EbmcalError, match="has not been generated, which takes a single process"):
        make_noise(f"infill:{lm}", cache, EASY, EASY, n_draws=10_000)


def test_a_label_conditioned_lm_reads_other_labels(lm, cache):
    noise = make_noise(f"infill:{lm}", cache, EASY, EASY, n_draws=20, condition="other")
    assert noise.description["sources"][f"infill:{lm}"]["lm"]["label_names"] == ["bad", "good"]
    own = {str(i): ("bad", "good")[i % 2] for i in range(120)}
    rows = rows_of(noise, cache, f"infill:{lm}", 20)
    assert all(row["label"] in ("bad", "good") and row["label"] != own[row["source_id"]] for row in rows)


def test_noise_of_some_training_rows_is_made_from_those_rows(lm, cache):
    some = TRAIN.select(range(0, 60, 3))
    restricted = make_noise("splice, unrelated", cache).restricted_to(some)
    assert words_of(text for text, _ in restricted.stream(1).draw(range(60))) <= words_of(some["text"])
    stored = make_noise(f"infill:{lm}", cache, EASY, EASY, n_draws=60)
    half = EASY.select(range(60))
    rows = {row["text"] for row in rows_of(stored, cache, f"infill:{lm}", 60) if int(row["source_id"]) < 60}
    drawn = {text for text, _ in stored.restricted_to(half).stream(1).draw(range(60))}
    assert drawn == rows
    with pytest.raises(EbmcalError, match="has no text written from these rows"):
        stored.restricted_to(make_dataset(5000, 3)).stream(1)


def test_noise_next_to_data_by_hand():
    """Words of the training texts: a, fine, film, dull, so. Of the noise, `zebra` and `plot` are not among them."""
    train = Texts(Dataset.from_dict({"text": ["A fine film", "a dull film", "so so"]}))
    test = Texts(Dataset.from_dict({"text": ["a fine plot", "dull"]}))
    noise = [("a dull film", None), ("Fine ZEBRA film", None), ("a plot", None), ("so so", None)]
    expected = {"copies": 0.5, "words": 2.5, "unknown_words": 0.2, "words_of_data": 2.0, "unknown_words_of_data": 0.25}
    assert describe_noise(noise, train, test) == expected
    facts = describe_noise([("a film", "so dull"), ("", "")], train, test)
    assert (facts["words"], facts["unknown_words"], facts["copies"]) == (2.0, 0.0, 0.0)
    assert describe_noise([("", None)], train, test)["unknown_words"] == 0.0


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ("unrelated:absent.csv", "absent.csv"),
        ("splice, unrelated:one.csv", "one.csv has 1 text; noise from a file needs at least two"),
        ("splice, infill:no-such-lm", "no-such-lm"),
        ("mlm:minilm", "no masked-LM head"),
    ],
)
def test_unusable_sources_are_rejected(noise, message, lm, tmp_path):
    (tmp_path / "one.csv").write_text("text\na page\n")
    noise = noise.replace("unrelated:", f"unrelated:{tmp_path}/").replace("LM", lm)
    with pytest.raises(EbmcalError) as caught:
        make_noise(noise, tmp_path / "cache")
    assert message in str(caught.value)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("n_test", "expected"), [(10, 50), (120, 120), (5000, 500)])
def test_as_many_held_out_texts_as_test_rows_within_limits(n_test, expected, tmp_path):
    assert len(make_noise("splice", tmp_path, test=make_dataset(1000, n_test)).held_out) == expected


@pytest.fixture
def quick(monkeypatch, lm):
    """A learning rate for tiny LMs."""
    original = NoiseConfig
    monkeypatch.setattr(noise_package, "NoiseConfig", lambda **given: original(**{"lm_learning_rate": 1e-2} | given))
    return {"lm": lm, "mask_ratio": 0.2, "steps": 60}


def generate(texts=SENTENCES, count=30, **options):
    return ebmcal.generate_noise(texts, count=count, **options)


def test_generated_texts_are_new(quick):
    noise = generate(**quick)
    assert isinstance(noise, Dataset)
    assert noise.column_names == ["text"]
    assert len(noise) == 30
    assert all(noise["text"])
    assert len(set(noise["text"]) - set(SENTENCES)) > 5  # not copies


def test_a_larger_call_continues_in_its_directory(quick, tmp_path, monkeypatch):
    first = generate(**quick, output=tmp_path)["text"][:]
    monkeypatch.setattr(causal_lm, "_fit", lambda *_: pytest.fail("trained again"))
    assert generate(**quick, output=tmp_path, count=80)["text"][:30] == first
    monkeypatch.setattr(generation, "fill_store", lambda *_: pytest.fail("generated again"))
    assert generate(**quick, output=tmp_path)["text"][:] == first


def test_nothing_is_left_without_a_directory(quick, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    generate(**quick | {"steps": 0}, count=1, source="splice")
    assert not list(tmp_path.iterdir())


def test_sources_without_a_language_model(monkeypatch):
    monkeypatch.setattr(generation, "fit_noise_lm", lambda *_: pytest.fail("trained an LM"))
    spliced = generate(source="splice", count=200)
    assert len(set(spliced["text"])) > 100
    assert generate(source="splice", count=200).to_dict() == spliced.to_dict()
    assert words_of(spliced["text"]) <= words_of(SENTENCES)
    pairs = {"premise": SENTENCES[:40], "hypothesis": SENTENCES[40:80]}
    columns = {"text_column": "premise", "text_pair_column": "hypothesis"}
    noise = generate(Dataset.from_dict(pairs), source="splice 0.5, unrelated 0.5", count=4, **columns)
    assert noise.column_names == ["text", "text_pair"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "splise"}, "Unknown noise source 'splise'"),
        ({"count": 0}, "count: expected an integer of at least 1, got 0"),
        ({"count": True}, "count: expected an integer of at least 1, got True"),
        ({"steps": -1, "mask_ratio": 1.0}, r"mask-ratio: .*got 1\.0\.\nlm-steps: .*got -1"),
        ({"mode": "infil"}, "Unknown noise mode 'infil'. Did you mean 'infill'"),
        ({"lm": "smolm2"}, "smolm2"),
        ({"source": 3}, "noise: input should be a valid string, got 3"),
        ({"texts": []}, "no rows"),
        ({"texts": [1, 2]}, "expected"),
        ({"max_length": 4}, "max-length: input should be greater than or equal to 8, got 4"),
    ],
)
def test_mistakes_are_named(options, message, lm):
    with pytest.raises(EbmcalError, match=message):
        generate(**{"lm": lm} | options)
