"""The noise of a run: what trainings draw, what is kept from them, what is found again, what is refused."""

import shutil
from functools import partial

import numpy as np
import pytest

from ebmcal.config import parse_noise
from ebmcal.errors import EbmcalError
from ebmcal.judging import Measures, judge_run
from ebmcal.models.loading import load_tokenizer
from ebmcal.models.tokens import encode
from ebmcal.pipeline import stages as pipeline
from ebmcal.pipeline.run_noise import make_noise, noise_wanted
from ebmcal.pipeline.stages import prepare, read_document, run
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.training.plan import plan_of
from ebmcal.training.trainer import JointTrainer
from small_runs import HELD_OUT, Lines, make_small, own_rows, settings, write_csv

HIDDEN = Cell("hidden", 1)
PAGES = [f"page {i} of the book" for i in range(12)]


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch):
    make_small(monkeypatch)
    monkeypatch.setattr(pipeline, "write_report", lambda root: root)
    monkeypatch.setattr(pipeline, "judge_run", partial(judge_run, how=Measures(n_resamples=5)))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("own") / "moods.csv", own_rows())


@pytest.fixture
def make(files, encoder_folder, tmp_path):
    """Makes the noise of a setting; all of a test share a cache."""

    def of(noise, reporter=None, **changes):
        config, data = prepare(settings(files, encoder_folder, tmp_path, noise=noise, **changes), Reporter())
        return make_noise(config, data, reporter or Reporter()), data

    return of


def drawn_by(noise, seed=1):
    """All token sequences that a training draws, by source."""
    config = noise.config
    n = plan_of(config, len(noise.train), seed).n_noise_draws
    found = {}
    for draw in noise.supply(seed).draw(range(n)):
        found.setdefault(draw.source, []).append(tuple(draw.tokens[0].tolist()))
    return found


def tokens_of(noise, rows):
    tokenizer = load_tokenizer(noise.config.encoder)
    return [tuple(ids) for ids, _, _ in encode(rows, tokenizer, noise.config.max_length)]


def held_out_tokens(noise):
    return [tuple(noise.held_out.table[i][0].tolist()) for i in range(len(noise.held_out.texts))]


def test_a_training_draws_each_source_in_its_share(make):
    noise, _ = make("splice 0.75, far 0.25")
    drawn = drawn_by(noise)
    assert {source: len(texts) for source, texts in drawn.items()} == {0: 72, 1: 24}  # of 6 steps × 8 texts × 2
    assert noise.supply(1).names == ("splice", "far")
    assert drawn_by(noise, seed=2) != drawn
    assert drawn_by(make("splice 0.75, far 0.25")[0]) == drawn


def test_held_out_noise_is_made_of_test_texts_in_the_shares(make):
    noise, data = make("splice 0.75, far 0.25")
    assert noise.held_out.ids == [f"splice-{i}" for i in range(15)] + [f"far-{i}" for i in range(5)]
    words = {word for text, _ in data.splits["test"].texts() for word in text.split()}
    assert {word for text, _ in noise.held_out.texts for word in text.split()} <= words
    assert noise.held_out.rows_of("far").tolist() == list(range(15, 20))


@pytest.mark.parametrize("noise", ["splice", "far", "splice:middle", "gaps:tiny", "splice, far, gaps:tiny"])
def test_held_out_noise_is_never_drawn_in_training(noise, make):
    made, _ = make(noise)
    drawn = {text for texts in drawn_by(made).values() for text in texts}
    by_chance = len(drawn & set(held_out_tokens(made)))
    stored = made.sources[-1].store
    # Texts of the tiny LM may come out the same; the rows of its store are others.
    assert by_chance <= (len(made.held_out.rows_of("gaps:tiny")) if stored else 0)
    if stored:
        n = len(made.sources[-1].table)
        rows = [(row["text"], row["text_pair"]) for row in stored.rows(n + HELD_OUT)]
        kept_back = [made.held_out.texts[i] for i in made.held_out.rows_of("gaps:tiny")]
        assert kept_back == rows[n : n + len(kept_back)]


def test_texts_of_a_file_are_drawn_or_kept_back(make, tmp_path):
    pages = write_csv(tmp_path / "pages.csv", [(page,) for page in PAGES], ("text",))
    noise, _ = make(f"splice, far:{pages}")
    kept_back = {noise.held_out.texts[i][0] for i in noise.held_out.rows_of(f"far:{pages}")}
    (_, drawn) = (set(texts) for texts in drawn_by(noise).values())
    pages_drawn = [
        page for page, ids in zip(PAGES, tokens_of(noise, [(p, None) for p in PAGES]), strict=True) if ids in drawn
    ]
    assert kept_back <= set(PAGES)
    assert kept_back
    assert len(pages_drawn) >= 8
    assert not kept_back & set(pages_drawn)


def test_held_out_tokens_are_those_of_the_held_out_texts(make, tmp_path):
    """One cache, settings that differ in their shares, and a file that has changed under its name."""
    pages = tmp_path / "pages.csv"
    for noise, texts in (
        ("splice 0.8, far 0.2", PAGES),
        ("splice 0.2, far 0.8", PAGES),
        (f"far:{pages}", PAGES),
        (f"far:{pages}", [page.upper() for page in PAGES]),
    ):
        write_csv(pages, [(text,) for text in texts], ("text",))
        made, _ = make(noise)
        assert held_out_tokens(made) == tokens_of(made, made.held_out.texts)


@pytest.mark.parametrize("noise", ["gaps:tiny 0.5, splice", "gaps:tiny 0.3, splice, far", "gaps:tiny"])
@pytest.mark.parametrize("steps", [1, 3, 7])
def test_a_store_is_large_enough_that_no_text_repeats(noise, steps, files, encoder_folder, tmp_path):
    given = {"noise": noise, "noise_samples": None, "steps": steps, "batch_size": 9, "noise_ratio": 1}
    config, data = prepare(settings(files, encoder_folder, tmp_path, **given), Reporter())
    part, *_ = parse_noise(config.noise)
    draws = 9 * steps
    assert draws * part.share <= noise_wanted(config, part, len(data.splits["train"])) < draws * part.share + 1


def test_what_is_known_of_the_sources(make):
    lines = Lines()
    noise, _ = make("splice 0.75, far 0.25", lines)
    assert set(noise.facts) == {"splice", "far"}
    assert [(f["share"], f["online"]) for f in noise.facts.values()] == [(0.75, True), (0.25, True)]
    for name, facts in noise.facts.items():
        assert 0 <= facts["probe"] <= 1
        assert facts["words"] > 1
        said = f"noise: {name} is told from data {facts['probe']:.0%} of the time by the untouched encoder"
        assert said in lines.lines
    assert len(noise.examples) == 40
    assert {row["masked"] for row in noise.examples} == {"splice", "far"}
    assert noise.rounds(100) == 1


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ("far:absent.csv", "absent.csv does not exist"),
        ("splice, far:one.csv", "one.csv has 1 text; it takes two at least"),
        ("half:tiny", "rewrites one sentence of a pair"),
        ("splice, infill:no-such-lm", "no-such-lm"),
    ],
)
def test_noise_that_cannot_be_had_is_refused_before_any_work(
    noise, words, files, encoder_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "one.csv", [("a page",)], ("text",))
    with pytest.raises(EbmcalError) as caught:
        run(settings(files, encoder_folder, tmp_path, noise=noise), Reporter())
    assert words in str(caught.value)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_run_with_fresh_noise_goes_on_to_the_bit(files, encoder_folder, tmp_path):
    """Stopped at step 4 of 6 and called again: the model of a run in one go, and another with another noise seed."""
    real = JointTrainer.micro_loss

    def breaks(self, *args):
        if self.state.global_step == 4:
            raise KeyboardInterrupt
        return real(self, *args)

    given = {"noise": "splice 0.5, far 0.2, gaps:tiny", "methods": ["hidden"], "posthoc": []}
    whole = run(settings(files, encoder_folder, tmp_path / "whole", **given), Reporter())
    shutil.copytree(tmp_path / "whole" / "cache", tmp_path / "broken" / "cache")
    config = settings(files, encoder_folder, tmp_path / "broken", save_steps=3, **given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JointTrainer, "micro_loss", breaks)
        with pytest.raises(KeyboardInterrupt):
            run(config, Reporter())
    lines = Lines()
    resumed = run(config, lines)
    assert any("hidden-seed1: goes on at step 3 of 6" in line for line in lines.lines)
    ours, theirs = ((folder.model(HIDDEN) / "model.safetensors").read_bytes() for folder in (whole, resumed))
    assert ours == theirs
    check_figures(whole)


def check_figures(folder: RunFolder):
    """Each source of a mixture has its figures, from the training and from held-out noise."""
    names = {"splice", "far", "gaps:tiny"}
    document = read_document(folder)
    assert document["noise_source"] == "splice 0.5, far 0.2, gaps:tiny 0.3"
    facts = document["training"]["hidden-seed1"]
    assert set(facts["told_apart_by_source"]) == set(facts["told_apart_held_out"]) == set(document["noise"]) == names
    assert all(0 <= value <= 1 for value in facts["told_apart_by_source"].values())
    history = folder.history(HIDDEN).read_text()
    assert all(f"noise_accuracy_{name}" in history for name in names)
    known, noise = (Predictions.read(folder.predictions(HIDDEN, split)) for split in ("test", "noise"))
    far = np.array([str(i).startswith("noise-far-") for i in noise.ids])
    assert far.sum() == round(0.2 * HELD_OUT)
    wins = (known.energies[:, None] < noise.energies[far][None]).mean()
    assert facts["told_apart_held_out"]["far"] == pytest.approx(wins, abs=1e-3)
