"""Flip labels of a real task and count how many of them `run.label_issues` finds, next to cleanlab.

    python benchmarks/label_issues.py results/label_issues --data DIR

Both read the same out-of-fold predictions of a cross-fitted baseline. Committed are `label_issues.csv` (one row per
task and method), and `rows.csv`: for every row, whether its label was flipped and its out-of-fold P(given label).
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from cleanlab.filter import find_label_issues

import ebmcal

#: Share of labels that are flipped, and of rows that a person would check.
FLIPPED, CHECKED = 0.05, 0.10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="Directory with glue/ and intents/.")
    parser.add_argument("--runs", type=Path, default=Path("runs/label_issues"))
    parser.add_argument("--task", choices=("sst2", "clinc150"), default="sst2")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    name = f"{options.task}-{options.rows}-seed{options.seed}"
    train, test = read(options.task, options.data)
    train = train.sample(options.rows, random_state=options.seed).reset_index(drop=True)
    labels = np.array(sorted(train["label"].unique()), dtype=object)
    train["flipped"] = flip(train, labels, options.seed)
    run = ebmcal.run(
        train[["id", "text", "label"]], test=test, calibration="cross-fit", folds=5, id_column="id",
        methods=["baseline"], epochs=options.epochs, seeds=options.seed, output=options.runs / name, progress=False,
    )  # fmt: skip
    p = run.predictions("baseline", "out_of_fold")
    rows = pd.DataFrame({"id": p.ids.astype(str), "p_given": p.probs[np.arange(len(p)), p.labels]})
    rows = rows.merge(train.assign(id=train["id"].astype(str)), on="id", validate="one_to_one")
    assert len(rows) == len(train)
    ranked = find_label_issues(p.labels, p.probs, return_indices_ranked_by="self_confidence", n_jobs=1)
    suspects = {
        "ebmcal": run.label_issues["id"].astype(str).tolist(),
        "cleanlab": [str(p.ids[i]) for i in ranked],
        "lowest P(given label)": rows.sort_values("p_given")["id"].tolist(),
    }
    is_flipped = rows.set_index("id")["flipped"]
    accuracy = float((p.predicted == p.labels).mean())
    about = {"task": options.task, "rows": options.rows, "seed": options.seed, "oof_accuracy": accuracy}
    found = pd.DataFrame([about | {"method": m, **scores(ids, is_flipped)} for m, ids in suspects.items()])
    options.target.mkdir(parents=True, exist_ok=True)
    _append(options.target / "label_issues.csv", found)
    _append(options.target / "rows.csv", rows.assign(**about)[["task", "rows", "seed", "id", "flipped", "p_given"]])
    print(found.to_string(index=False))


def read(task: str, data: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test rows with the columns id, text and label."""
    if task == "clinc150":
        train, test = (pd.read_csv(data / "intents" / f"clinc150_{part}.csv") for part in ("train", "test"))
        train, test = (t.rename(columns={"intent": "label"}) for t in (train, test))
    else:
        train, test = (pd.read_csv(data / "glue" / "SST-2" / f"{p}.tsv", sep="\t", quoting=3) for p in ("train", "dev"))
        train, test = (t.rename(columns={"sentence": "text"}) for t in (train, test))
        train, test = (t.assign(label=t["label"].map({0: "negative", 1: "positive"})) for t in (train, test))
        test = test.iloc[len(test) // 2 :]
    train = train.drop_duplicates("text")
    train, test = (t.assign(id=[f"{name}-{i}" for i in t.index]) for name, t in (("train", train), ("test", test)))
    return train, test[["id", "text", "label"]]


def flip(train: pd.DataFrame, labels: np.ndarray, seed: int) -> np.ndarray:
    """Give a random share of the rows another label, in place; returns which."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(train), round(FLIPPED * len(train)), replace=False)
    for i in chosen:
        train.loc[i, "label"] = rng.choice(labels[labels != train.loc[i, "label"]])
    return np.isin(np.arange(len(train)), chosen)


def scores(ids: list[str], is_flipped: pd.Series) -> dict[str, float]:
    """Precision and recall of all suspects, and the share of flipped labels among the first tenth of the rows."""
    n_checked = round(CHECKED * len(is_flipped))
    n_flipped = int(is_flipped.sum())
    return {
        "suspects": len(ids),
        "precision": float(is_flipped[ids].mean()),
        "recall": float(is_flipped[ids].sum() / n_flipped),
        "recall_top_10_percent": float(is_flipped[ids[:n_checked]].sum() / n_flipped),
    }


def _append(path: Path, rows: pd.DataFrame) -> None:
    """Add rows to a table; rows of the same task, size and seed are replaced."""
    if path.exists():
        old, keys = pd.read_csv(path), ["task", "rows", "seed"]
        is_new = old[keys].apply(tuple, axis=1).isin(rows[keys].apply(tuple, axis=1))
        rows = pd.concat([old[~is_new], rows])
    rows.to_csv(path, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
