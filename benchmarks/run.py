"""All speed benchmarks in one go: prints the tables and collects the ratios in `results.json`.

    make bench                             # half an hour on two idle cores
    python benchmarks/run.py --gather      # only collects what the scripts have written

Each script runs in its own process and writes its own JSON file.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = ("metrics", "calibrators", "training", "sampling", "serving", "bulk_prediction")
KEPT = ("name", "ratio", "goal", "reference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gather", action="store_true")
    gather, results = parser.parse_args().gather, []
    for name in SCRIPTS:
        print(f"\n{name}", flush=True)
        if not gather:
            subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)
        rows = json.loads((HERE / f"{name}.json").read_text())
        results += [{key: row.get(key) for key in KEPT} | {"script": name} | row for row in rows]
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    rated = [row for row in results if row["ratio"] is not None and row["goal"]]  # a peer may not be installed
    missed = [f"{row['name']} ({row['ratio']:.2f} of {row['goal']})" for row in rated if row["ratio"] < row["goal"]]
    print(f"\n{len(results)} ratios in {HERE / 'results.json'}; below their goal: {'; '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
