"""A tiny three-class model with a temperature, and the same rows in files of every format."""

import csv
import gzip
import json

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    from prediction_helpers import fitted_temperature, save_model

    from ebmcal.calibration import save_calibrator

    folder = save_model(tmp_path_factory.mktemp("prediction") / "m")
    save_calibrator(folder, fitted_temperature())
    return folder


@pytest.fixture(scope="session")
def model(folder):
    import ebmcal

    return ebmcal.load(folder)


@pytest.fixture
def table(tmp_path):
    """The same rows in every format; the column `energy` has the name of one of ours."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from prediction_helpers import N_ROWS, TEXTS

    columns = {"key": [f"k{i}" for i in range(N_ROWS)], "text": TEXTS, "energy": ["none"] * N_ROWS}
    pq.write_table(pa.table(columns | {"size": pa.array(range(N_ROWS), pa.int16())}), tmp_path / "new.parquet")
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for name, delimiter in (("new.csv", ","), ("new.tsv", "\t"), ("semicolons.csv", ";")):
        with open(tmp_path / name, "w", newline="") as handle:
            writer = csv.DictWriter(handle, list(columns), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "bom.jsonl").write_text((tmp_path / "new.jsonl").read_text(), encoding="utf-8-sig")
    (tmp_path / "new.json").write_text(json.dumps(rows))
    (tmp_path / "new.csv.gz").write_bytes(gzip.compress((tmp_path / "new.csv").read_bytes()))
    (tmp_path / "new.txt").write_text("\n".join(TEXTS) + "\n")
    return tmp_path


@pytest.fixture(scope="session")
def ruled(tmp_path_factory, folder):
    """The same model with an abstention rule: it abstains on some texts, offers label sets and flags OOD texts."""
    import shutil

    from prediction_helpers import fit_rule

    copy = shutil.copytree(folder, tmp_path_factory.mktemp("ruled") / "m")
    return fit_rule(copy)
