"""All speed benchmarks in one go: prints the tables and gathers the figures in `results.json`.

    make bench

Each script runs in a process of its own and writes its own JSON; here they are only put together. `profile_step.py`
(where the time goes), `run_memory.py` and `cheaper.py` are experiments of their own.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = ("metrics", "calibrators", "training", "sampling", "step_memory")
KEPT = ("name", "ratio", "goal", "reference")


def main() -> None:
    results = []
    for name in SCRIPTS:
        print(f"\n{name}", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)
        rows = json.loads((HERE / f"{name}.json").read_text())
        results += [{key: row.get(key) for key in KEPT} | {"script": name} | row for row in rows]
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    missed = [f"{r['name']} ({r['ratio']:.2f} of {r['goal']})" for r in results if (r["ratio"] or 0) < (r["goal"] or 0)]
    print(f"\n{len(results)} figures in {HERE / 'results.json'}; below their goal: {'; '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
