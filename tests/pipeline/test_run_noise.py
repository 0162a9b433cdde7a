"""The noise of a run: what trainings draw, what is kept from them, what is found again, what is refused."""

import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from ebmcal.errors import EbmcalError
from ebmcal.judging import Measures, judge_run
from ebmcal.models.loading import load_tokenizer
from ebmcal.models.tokens import encode
from ebmcal.noise.supply import Fresh
from ebmcal.noise_setting import parse_noise
from ebmcal.pipeline import stages as pipeline
from ebmcal.pipeline.run_noise import make_noise, n_held_out, noise_wanted
from ebmcal.pipeline.stages import prepare, read_document, run, train_only
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.training.plan import plan_of
from ebmcal.training.trainer import JointTrainer
from small_runs import HELD_OUT, Lines, make_small, own_rows, settings, write_csv
from tiny_models import SENTENCES

HIDDEN = Cell("hidden", 1)
PAGES = SENTENCES[:12]


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch):
    make_small(monkeypatch)
    monkeypatch.setattr(pipeline, "write_report", lambda root: root)
    monkeypatch.setattr(pipeline, "judge_run", partial(judge_run, how=Measures(n_resamples=5)))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Texts that share no word: whose words a noise text has is plain to see."""
    rows = [(" ".join(f"w{i}.{j}" for j in range(3 + i % 7)), label) for i, (_, label) in enumerate(own_rows())]
    return write_csv(tmp_path_factory.mktemp("own") / "moods.csv", rows)


@pytest.fixture
def make(files, encoder_folder, tmp_path):
    """Makes the noise of a setting; all of a test share a cache."""

    def of(noise, reporter=None, **changes):
        config, data = prepare(settings(files, encoder_folder, tmp_path, noise=noise, **changes), Reporter())
        return make_noise(config, data, reporter or Reporter()), data

    return of


def n_draws(noise):
    return plan_of(noise.config, len(noise.train), seed=1).n_noise_draws


def written_by(noise, seed=1):
    """The texts that a training draws from each online source, by its name."""
    supply = noise.supply(seed)
    numbers = [draw.source for draw in supply.draw(range(n_draws(noise)))]
    supplies = getattr(supply, "supplies", [supply])
    fresh = {s.names[0]: (s, numbers.count(i)) for i, s in enumerate(supplies) if isinstance(s, Fresh)}
    return {name: [text.row for text in s.write(range(n))] for name, (s, n) in fresh.items()}


def tokens_of(noise, rows):
    tokenizer = load_tokenizer(noise.config.encoder)
    return [tuple(ids) for ids, _, _ in encode(rows, tokenizer, noise.config.max_length)]


def held_out_tokens(noise):
    return [tuple(noise.held_out.table[i][0].tolist()) for i in range(len(noise.held_out.texts))]


def words_of(rows):
    return {word for row in rows for text in row if text for word in text.split()}


def test_a_training_draws_each_source_in_its_share(make):
    noise, _ = make("splice 0.75, far 0.25")
    drawn = written_by(noise)
    assert {name: len(texts) for name, texts in drawn.items()} == {"splice": 72, "far": 24}  # 6 steps × 8 texts × 2
    assert written_by(noise, seed=2) != drawn
    assert written_by(make("splice 0.75, far 0.25")[0]) == drawn


def test_held_out_noise_is_made_of_test_texts_and_drawn_noise_of_training_texts(make):
    noise, data = make("splice 0.5, splice:middle 0.25, far 0.25")
    names = ["splice"] * 10 + ["splice:middle"] * 5 + ["far"] * 5
    assert [i.rpartition("-")[0] for i in noise.held_out.ids] == names
    assert noise.held_out.rows_of("far").tolist() == list(range(15, 20))
    assert words_of(noise.held_out.texts) <= words_of(data.splits["test"].texts())
    for texts in written_by(noise).values():
        assert words_of(texts) <= words_of(data.splits["train"].texts())
        assert not words_of(texts) & words_of(noise.held_out.texts)


def test_held_out_noise_of_a_store_lies_behind_what_is_drawn(make):
    noise, _ = make("gaps:small, splice")
    source, _ = noise.sources
    assert len(source.table) == 40  # noise_samples
    rows = [(row["text"], row["text_pair"]) for row in source.store.rows(40 + HELD_OUT)]
    kept_back = [noise.held_out.texts[i] for i in noise.held_out.rows_of("gaps:small")]
    assert kept_back == rows[40:50]
    assert [tuple(source.table[i][0]) for i in range(40)] == tokens_of(noise, rows[:40])
    assert noise.rounds(n_draws(noise)) == 48 / 40


def test_texts_of_a_file_are_drawn_or_kept_back(make, tmp_path):
    pages = write_csv(tmp_path / "pages.csv", [(page,) for page in PAGES], ("text",))
    noise, _ = make(f"splice, far:{pages}")
    kept_back = {noise.held_out.texts[i][0] for i in noise.held_out.rows_of(f"far:{pages}")}
    drawn = {text for text, _ in written_by(noise)[f"far:{pages}"]}
    assert kept_back | drawn == set(PAGES)
    assert kept_back
    assert not kept_back & drawn


def test_held_out_tokens_are_those_of_the_held_out_texts(make, tmp_path):
    """One cache, settings that differ in their shares, and a file that has changed under its name."""
    pages = tmp_path / "pages.csv"
    for noise, texts in (
        ("splice 0.8, far 0.2", PAGES),
        ("splice 0.2, far 0.8", PAGES),
        (f"far:{pages}", PAGES),
        (f"far:{pages}", [" ".join(reversed(page.split())) for page in PAGES]),
    ):
        write_csv(pages, [(text,) for text in texts], ("text",))
        made, _ = make(noise)
        assert held_out_tokens(made) == tokens_of(made, made.held_out.texts)


@pytest.mark.parametrize("noise", ["gaps:small 0.5, splice", "gaps:small 0.3, splice, far", "gaps:small"])
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
        ("half:small", "rewrites one sentence of a pair"),
        ("splice, infill:no-such-lm", "no-such-lm"),
    ],
)
def test_noise_that_cannot_be_had_is_refused_before_any_work(noise, words, files, encoder_folder, tmp_path):
    noise = noise.replace("far:", f"far:{tmp_path}/")
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

    given = {"noise": "splice 0.5, far 0.2, gaps:small", "methods": ["hidden"], "posthoc": []}
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
    names = {"splice", "far", "gaps:small"}
    document = read_document(folder)
    assert document["noise_source"] == "splice 0.5, far 0.2, gaps:small 0.3"
    facts = document["training"]["hidden-seed1"]
    assert set(facts["told_apart_by_source"]) == set(facts["told_apart_held_out"]) == set(document["noise"]) == names
    assert all(0 <= value <= 1 for value in facts["told_apart_by_source"].values())
    history = folder.history(HIDDEN).read_text()
    assert all(f"noise_accuracy_{name}" in history for name in names)
    known, noise = (Predictions.read(folder.predictions(HIDDEN, split)) for split in ("test", "noise"))
    far = np.array([str(i).startswith("noise-far-") for i in noise.ids])
    assert far.sum() == round(0.2 * HELD_OUT)
    gap = noise.energies[far][None] - known.energies[:, None]
    wins = (gap > 0).mean() + 0.5 * (gap == 0).mean()
    assert facts["told_apart_held_out"]["far"] == pytest.approx(wins, abs=1e-3)


def test_a_noise_lm_that_reads_labels_is_told_another(make):
    noise, data = make("gaps:small", noise_condition="other", noise_samples=20)
    (source,) = noise.sources
    assert source.card["label_names"] == list(data.label_names)
    train = data.splits["train"]
    own = dict(zip(train.ids.tolist(), (data.label_names[label] for label in train.labels), strict=True))
    rows = list(source.store.rows())
    assert rows
    assert all(row["told"] in data.label_names and row["told"] != own[row["source_id"]] for row in rows)


@pytest.mark.parametrize(("n_test", "n"), [(10, 50), (120, 120), (5000, 500)])
def test_held_out_noise_is_about_as_much_as_there_are_test_rows(n_test, n, monkeypatch):
    monkeypatch.setattr("ebmcal.pipeline.run_noise.HELD_OUT", 500)
    assert n_held_out(SimpleNamespace(splits={"test": range(n_test)})) == n


def test_another_file_of_noise_is_another_run(files, encoder_folder, tmp_path):
    """The config says the same; what the trainings would see does not."""
    far = write_csv(tmp_path / "far.csv", [(f"text {i} from elsewhere",) for i in range(9)], columns=("text",))
    config = settings(files, encoder_folder, tmp_path, noise=f"far:{far}", methods=["hidden"], steps=2)
    train_only(config, Lines())
    write_csv(far, [(f"another text {i}",) for i in range(9)], columns=("text",))
    with pytest.raises(EbmcalError, match=r"of far:.*far\.csv have changed since"):
        train_only(config, Lines())
