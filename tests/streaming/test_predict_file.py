"""`predict_file` and `ebmcal predict`: whatever comes in goes out in order, with the user's columns and our figures."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("torch")

import pyarrow as pa
import pyarrow.parquet as pq

from ebmcal.calibrators import TemperatureScaling, attach
from ebmcal.calibrators.weights import model_fingerprint
from ebmcal.cli.predict import predict
from ebmcal.decisions import Rule, attach_rule
from ebmcal.decisions.conformal import p_values
from ebmcal.decisions.in_model import calibrator_fingerprint
from ebmcal.decisions.risk import Promise
from ebmcal.decisions.rule import Abstention, LabelSets, Unusual
from ebmcal.decisions.scores import Score
from ebmcal.ensemble import Ensemble
from ebmcal.errors import EbmcalError
from ebmcal.model import load
from ebmcal.predictions import Predictions
from ebmcal.streaming import job, predict_file
from tiny_models import SENTENCES, save_encoder

NAMES = ("bad", "fair", "good")
TEXTS = SENTENCES[:50]


def save_model(folder):
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)}}
    return save_encoder(folder, hidden_dropout_prob=0.2, **names)


def temperature(seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(200, 3))
    return TemperatureScaling().fit(3 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = save_model(tmp_path_factory.mktemp("model") / "m")
    attach(folder, temperature(seed=0))
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return load(folder)


@pytest.fixture(scope="module")
def rule(folder, model):
    """A rule that answers half of the texts and finds a tenth of them unusual."""
    p = model.predict(TEXTS)
    promise = Promise(float(np.median(p.confidences())), 0.1, 0.9, 50, 25, 0, 0.09)
    return Rule(
        NAMES, 50, Abstention(Score("confidence"), promise), LabelSets("split", 0.9, (0.7,) * 3),
        Unusual(0.1, np.sort(p.energies.astype(float))), calibrated_by=p.meta["calibrator"],
        model=model_fingerprint(folder), calibrator=calibrator_fingerprint(model.calibrator),
    )  # fmt: skip


@pytest.fixture
def table(tmp_path):
    """The same rows as files of every kind; one column is named like one of ours."""
    columns = {"key": [f"k{i}" for i in range(50)], "text": TEXTS, "energy": ["none"] * 50}
    pq.write_table(pa.table(columns | {"size": pa.array(range(50), pa.int16())}), tmp_path / "new.parquet")
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for name, delimiter in (("new.csv", ","), ("new.tsv", "\t")):
        with open(tmp_path / name, "w", newline="") as handle:
            writer = csv.DictWriter(handle, list(columns), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "new.txt").write_text("\n".join(TEXTS) + "\n")
    return tmp_path


def read(path):
    if path.suffix == ".csv":
        with open(path, newline="") as handle:
            return list(csv.DictReader(handle))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return pq.read_table(path).to_pylist()


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "txt"])
def test_every_input_gives_the_figures_of_predict(kind, table, model, rule):
    done = predict_file(model, table / f"new.{kind}", table / "out.jsonl", rule=rule)
    rows, want = read(table / "out.jsonl"), model.predict(TEXTS)
    decisions = rule.decide(want)
    assert [row["text"] for row in rows] == TEXTS
    assert [row["predicted"] for row in rows] == want.labels_.tolist()
    for c, name in enumerate(NAMES):
        np.testing.assert_allclose([row[f"prob_{name}"] for row in rows], want.probs[:, c], atol=1e-6)
    np.testing.assert_allclose([row["energy"] for row in rows], want.energies, atol=1e-5)
    np.testing.assert_allclose([row["unusual_p"] for row in rows], p_values(want.energies, rule.unusual.scores))
    assert [row["decision"] for row in rows] == decisions.columns()["decision"]
    assert [tuple(row["label_set"]) for row in rows] == decisions.sets
    assert all(("below" in row["reason"]) == (row["decision"] == "abstain") for row in rows)
    assert (done.n_rows, done.n_errors, done.n_before) == (50, 0, 0)
    assert done.n_abstained == (~decisions.answers).sum() > 0
    assert done.n_unusual == decisions.unusual.sum() > 0
    if kind != "txt":
        assert [row["key"] for row in rows] == [f"k{i}" for i in range(50)]
        assert {row["input_energy"] for row in rows} == {"none"}
    assert not (table / "out.jsonl.part").exists()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_every_output_can_be_evaluated(suffix, table, model, rule):
    labels = [NAMES[i % 3] for i in range(50)]
    pq.write_table(pa.table({"id": [f"k{i}" for i in range(50)], "text": TEXTS, "mood": labels}), table / "in.parquet")
    predict_file(model, table / "in.parquet", table / f"out{suffix}", label_column="mood", rule=rule)
    p = Predictions.read(table / f"out{suffix}")
    want = model.predict((TEXTS, labels))
    assert p.labels.tolist() == want.labels.tolist()
    assert p.label_names == NAMES
    assert p.ids.tolist() == [f"k{i}" for i in range(50)]
    np.testing.assert_allclose(p.probs, want.probs, atol=1e-6)
    np.testing.assert_allclose(p.energies, want.energies, atol=1e-5)
    if suffix == ".parquet":
        assert p.meta["calibrator"] == want.meta["calibrator"]
        rule.decide(p)


def test_types_of_parquet_come_back(table, model):
    predict_file(model, table / "new.parquet", table / "out.parquet")
    found = pq.read_table(table / "out.parquet")
    assert found.schema.field("size").type == pa.int16()
    assert found.column("size").to_pylist() == list(range(50))


def test_raw_logits_and_ids(table, model, folder):
    predict_file(model, table / "new.txt", table / "out.parquet", calibrated=False)
    p = Predictions.read(table / "out.parquet")
    np.testing.assert_allclose(p.logits, model.predict(TEXTS, calibrated=False).logits, atol=1e-5)
    assert p.ids.tolist() == [str(i) for i in range(50)]
    assert "calibrator" not in p.meta


def test_pairs(tmp_path, model):
    rows = [{"a": text, "b": "was never dull"} for text in TEXTS[:5]]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    predict_file(model, tmp_path / "pairs.jsonl", tmp_path / "o.jsonl", text_column="a", text_pair_column="b")
    want = model.predict([(row["a"], row["b"]) for row in rows])
    np.testing.assert_allclose([row["energy"] for row in read(tmp_path / "o.jsonl")], want.energies, atol=1e-5)


BAD_LINES = {
    "csv": ('id,text\n1,fine\n2,fine,film\n3\n4,"a film"x\n5,\n6,dull\n', ["1", None, None, None, "5", "6"]),
    "jsonl": (
        '{"id": "1", "text": "fine"}\n{"id": "2", \n\n[1]\n{"id": "4", "text": null}\n{"id": "5"}\n'
        '{"id": "6", "text": ["x"]}\n{"id": "7", "text": "dull", "more": 1}\n',
        ["1", None, None, "4", "5", "6", "7"],
    ),
}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("kind", BAD_LINES)
def test_bad_rows_keep_their_place(kind, suffix, tmp_path, model):
    content, ids = BAD_LINES[kind]
    (tmp_path / f"bad.{kind}").write_text(content)
    done = predict_file(model, tmp_path / f"bad.{kind}", tmp_path / f"out{suffix}")
    rows = read(tmp_path / f"out{suffix}")
    assert [row.get("id") or None for row in rows] == ids
    good = [i for i, row in enumerate(rows) if row.get("predicted")]
    assert good == ([0, 5] if kind == "csv" else [0, 6])
    assert done.n_errors == len(rows) - len(good) == sum(bool(row.get("error")) for row in rows)
    assert done.first_error in {row.get("error") for row in rows}
    if kind == "csv":
        assert "'text' is empty" in rows[4]["error"]
    else:
        assert str(rows[-1]["more"]) == "1"
    with pytest.raises(EbmcalError, match=r"bad\.(csv|jsonl), (line|row) \d+.*--strict"):
        predict_file(model, tmp_path / f"bad.{kind}", tmp_path / f"strict{suffix}", strict=True)
    assert not (tmp_path / f"strict{suffix}").exists()


def test_bytes_that_are_no_utf8_come_back_replaced(tmp_path, model):
    (tmp_path / "odd.csv").write_bytes(b"id,text,note\n1,caf\xe9 film,\xff\n")
    for suffix in (".csv", ".jsonl", ".parquet"):
        predict_file(model, tmp_path / "odd.csv", tmp_path / f"out{suffix}")
        assert read(tmp_path / f"out{suffix}")[0]["note"] == "\N{REPLACEMENT CHARACTER}"
    predict_file(model, tmp_path / "odd.csv", tmp_path / "latin.csv", encoding="latin-1")
    assert [read(tmp_path / "latin.csv")[0][name] for name in ("text", "note")] == ["café film", "ÿ"]
    with pytest.raises(EbmcalError, match="There is no encoding 'martian'"):
        predict_file(model, tmp_path / "odd.csv", tmp_path / "mars.csv", encoding="martian")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_killed_job_goes_on_and_ends_in_the_same_bytes(suffix, table, model, rule, monkeypatch):
    monkeypatch.setattr(job, "CHUNK_ROWS", 12)
    predict_file(model, table / "new.csv", table / f"whole{suffix}", rule=rule)
    calls = []

    class Killed(Ensemble):  # asks its only member, until it is killed
        def predict_rows(self, texts, *, calibrated=True):
            calls.append(len(texts))
            if len(calls) == 4:
                raise KeyboardInterrupt
            return self.members[0].predict_rows(texts, calibrated=calibrated)

    output = table / f"out{suffix}"
    killed = Killed([model])
    with pytest.raises(KeyboardInterrupt):
        predict_file(killed, table / "new.csv", output, rule=rule)
    assert not output.exists()
    with open(table / f"out{suffix}.part" / "done.jsonl", "a") as handle:
        handle.write('{"rows": 1')  # half a line
    with pytest.raises(EbmcalError, match="another job: model differ"):
        predict_file(model, table / "new.csv", output, rule=rule)
    done = predict_file(killed, table / "new.csv", output, rule=rule)
    assert calls[4:] == [1, 12, 12, 2]  # a trial text, then what was left
    assert (done.n_rows, done.n_before) == (50, 24)
    assert output.read_bytes() == (table / f"whole{suffix}").read_bytes()


def test_another_job_may_begin_anew_if_told(table, model, monkeypatch):
    monkeypatch.setattr(job, "CHUNK_ROWS", 12)
    (table / "new.csv").write_text((table / "new.csv").read_text() + '"open,quote\n')
    with pytest.raises(EbmcalError, match="never closed"):
        predict_file(model, table / "new.csv", table / "out.csv")
    (table / "new.csv").write_text("text\nfine\n")
    with pytest.raises(EbmcalError, match="another job: input size"):
        predict_file(model, table / "new.csv", table / "out.csv")
    assert predict_file(model, table / "new.csv", table / "out.csv", overwrite=True).n_rows == 1


def test_a_chunk_at_a_time_is_read(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(job, "CHUNK_ROWS", 10)
    taken = []

    class Pipe(io.BufferedReader):
        pass

    class Slow(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            if len(taken) == 40:
                return 0
            line = TEXTS[len(taken)].encode() + b"\n"
            taken.append(len(capsys.readouterr().out.splitlines()))
            buffer[: len(line)] = line
            return len(line)

    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": Pipe(Slow(), buffer_size=512)}))
    assert predict_file(model, "-").n_rows == 40
    assert sum(taken) >= 10  # rows were out before the last were in


@pytest.mark.parametrize(
    ("source", "output", "options", "words"),
    [
        ("new.csv", "new.csv", {}, "is the input"),
        ("new.csv", "there.csv", {}, "there already.*--overwrite"),
        ("new.csv", "out.xlsx", {}, "out.xlsx"),
        ("new.csv", ".", {}, "is a folder"),
        ("new.csv", "out.csv", {"text_column": "body"}, "'body'"),
        ("new.csv", "out.csv", {"label_column": "mood"}, "'mood'"),
        ("new.csv", "out.csv", {"label_column": "key"}, "no row could be read.*'k0' is none of bad, fair, good"),
        ("new.csv", "out.csv", {"input_format": "yaml"}, "input format 'yaml'"),
        ("absent.csv", "out.csv", {}, "absent.csv"),
        ("empty.csv", "out.csv", {}, "empty"),
        ("header.csv", "out.csv", {}, "no rows"),
        ("binary.parquet", "out.csv", {}, "binary.parquet"),
        ("no_json.jsonl", "out.csv", {}, "no JSON object at all"),
    ],
)
def test_what_is_refused_before_any_work(source, output, options, words, table, model):
    (table / "there.csv").write_text("mine")
    (table / "empty.csv").touch()
    (table / "header.csv").write_text("text\n")
    (table / "binary.parquet").write_bytes(bytes(100))
    (table / "no_json.jsonl").write_text("x\ny\n")
    before = (table / "new.csv").read_bytes()
    with pytest.raises(EbmcalError, match=words):
        predict_file(model, table / source, table / output, **options)
    assert (table / "there.csv").read_text() == "mine"
    assert (table / "new.csv").read_bytes() == before


def test_figures_do_not_depend_on_neighbours(model, folder):
    """Packed against padded, in any order, alone or together: the same to 1e-5 in the logits."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    texts = [*TEXTS, "a", " ".join(TEXTS[:5])]
    want = model.predict(texts, calibrated=False).logits
    order = np.random.default_rng(0).permutation(len(texts))
    mixed = model.predict([texts[i] for i in order], calibrated=False).logits
    np.testing.assert_allclose(mixed, want[order], atol=1e-5)
    alone = np.concatenate([model.predict([text], calibrated=False).logits for text in texts[::7]])
    np.testing.assert_allclose(alone, want[::7], atol=1e-5)
    theirs, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=model.max_length, return_tensors="pt")
    np.testing.assert_allclose(theirs.eval()(**inputs).logits.detach().numpy(), want, atol=1e-5)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The same classes in another order, and a sharper last layer."""
    folder = save_model(tmp_path_factory.mktemp("other") / "m")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "good", "1": "bad", "2": "fair"}
    config["label2id"] = {name: int(i) for i, name in config["id2label"].items()}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_an_ensemble_averages(table, model, other):
    members = [model, load(other)]
    both = Ensemble(members)
    p = both.predict(TEXTS)
    want = np.mean([m.predict(TEXTS).in_order(NAMES).probs for m in members], axis=0)
    np.testing.assert_allclose(p.probs, want)
    predict_file(both, table / "new.csv", table / "out.jsonl")
    rows = read(table / "out.jsonl")
    np.testing.assert_allclose([row["prob_good"] for row in rows], want[:, 2], atol=1e-6)
    assert max(row["disagreement"] for row in rows) > 0
    copied = replace(model, folder=table)
    np.testing.assert_allclose(Ensemble([model, copied]).predict_rows(TEXTS)[1], 0, atol=1e-12)
    with pytest.raises(EbmcalError, match="given twice"):
        Ensemble([model, model])
    two = load(save_encoder(table / "two", num_labels=2))
    with pytest.raises(EbmcalError, match="same classes"):
        Ensemble([model, two])


def test_dropout_passes_differ_and_are_drawn_by_their_seed(model):
    passes = Ensemble([model], mc_dropout=4)
    first, disagreement = passes.predict_rows(TEXTS[:8])
    assert (disagreement > 0).all()
    np.testing.assert_array_equal(passes.predict(TEXTS[:8]).probs, first.probs)
    assert not np.allclose(first.probs, model.predict(TEXTS[:8]).probs, atol=1e-6)
    assert not model.classifier.training
    with pytest.raises(EbmcalError, match="2 passes or more"):
        Ensemble([model], mc_dropout=1)


def run(*arguments, stdin=None):
    app = typer.Typer()
    app.command()(predict)
    result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_command(table, folder, other, rule, model):
    attach_rule(folder, rule)
    try:
        result = run(folder, table / "new.csv", "-o", table / "out.csv")
        assert "50 rows, calibrated by temperature" in result.stdout
        assert "abstained from" in result.stdout
        lines = run(folder, stdin="a fine film\n\n").stdout.splitlines()
        assert [json.loads(line)["text"] for line in lines] == ["a fine film", ""]
        assert json.loads(lines[0])["decision"] in ("answer", "abstain")
        assert "is empty" in json.loads(lines[1])["error"]
        assert run(folder, table / "new.csv", "--no-rule").stdout.startswith("id,label,key,text,input_energy,predicted")
        averaged = run(folder, other, "-", stdin="fine\n")
        assert "disagreement" in json.loads(averaged.stdout)
        assert "decision" not in json.loads(averaged.stdout)
        assert "is for that model alone and not for the average" in averaged.stderr
        assert "alone" not in run(folder, other, "-", "--no-rule", stdin="fine\n").stderr
        rule.write(table / "rule.json")
        with pytest.raises(EbmcalError, match="not for an average"):
            run(folder, other, "-", "--rule", table / "rule.json", stdin="fine\n")
        with pytest.raises(EbmcalError, match="given twice"):
            run(folder, folder / ".." / folder.name, "-", stdin="fine\n")
        attach(folder, temperature(seed=1))
        with pytest.raises(EbmcalError, match="another calibrator"):
            run(folder, table / "new.csv")
    finally:
        attach(folder, model.calibrator)
        (folder / "decision_rule.json").unlink()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_key_that_comes_late_is_kept(suffix, tmp_path, model):
    lines = [{"text": "fine"}, {"text": "dull", "label": "bad", "note": "n"}, {"text": "a joy", "label": "good"}]
    (tmp_path / "late.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for number, options in enumerate([{}, {"label_column": "label"}]):
        output = tmp_path / f"out{number}{suffix}"
        predict_file(model, tmp_path / "late.jsonl", output, **options)
        rows = read(output)
        assert [row.get("label") or None for row in rows] == [None, "bad", "good"]
        assert [row.get("note") or None for row in rows] == [None, "n", None]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_label_that_comes_late_in_a_pipe_is_kept(form, model, monkeypatch, capsys):
    content = b'{"text": "fine"}\n{"text": "dull", "label": "bad", "note": "n"}\n'
    for options in ({}, {"label_column": "label"}):
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": io.BytesIO(content)}))
        predict_file(model, "-", input_format="jsonl", output_format=form, **options)
        out = capsys.readouterr().out
        rows = (
            [json.loads(line) for line in out.splitlines()] if form == "jsonl" else [*csv.DictReader(io.StringIO(out))]
        )
        assert [row["label"] or None for row in rows] == [None, "bad"]
        assert "note" in (rows[1] if form == "jsonl" else rows[1]["other"])


def test_error_rows_are_left_out_aloud(tmp_path, model):
    """By all that read predictions: `Predictions.read` is where they do."""
    (tmp_path / "in.csv").write_text("text,label\nfine,bad\n,good\ndull,good\nx,none\n")
    for suffix in (".csv", ".jsonl", ".parquet"):
        predict_file(model, tmp_path / "in.csv", tmp_path / f"out{suffix}", label_column="label")
        with pytest.warns(UserWarning, match="2 rows have an error and are left out"):
            found = Predictions.read(tmp_path / f"out{suffix}")
        assert [found.label_names[y] for y in found.labels] == ["bad", "good"]


def test_what_takes_no_model_is_refused_before_one_is_loaded(table, folder, rule, monkeypatch):
    def never(*_, **__):
        raise AssertionError("loaded")

    monkeypatch.setattr("ebmcal.model.load", never)
    (table / "there.csv").write_text("mine")
    (table / "there.npz").write_text("mine")
    replace(rule, model="another").write(table / "other.json")
    for arguments, words in (
        (["new.csv", "-o", "out.csv", "--rule", "absent.json"], "does not exist"),
        (["new.csv", "-o", "out.csv", "--rule", "other.json"], "another model"),
        (["new.csv", "-o", "there.csv"], "--overwrite"),
        (["new.csv", "-o", "there.npz"], "--overwrite"),
        (["new.csv", "-o", "out.npz", "--strict"], "--strict is not for it"),
        (["new.csv", "-o", "out.xlsx"], "xlsx"),
        (["new.csv", "--encoding", "martian"], "martian"),
        (["absent.csv", "-o", "out.csv"], "does not exist"),
    ):
        with pytest.raises(EbmcalError, match=words):
            run(folder, *(table / a if "." in a and not a.startswith("-") else a for a in arguments))
    assert (table / "there.npz").read_text() == "mine"
