"""How often the untouched encoder tells the noise of a study from data, measured again; nothing is trained.

    python benchmarks/probes.py results/noise results/study …

Puts the figure into `probe` of `cells.csv`, for every run of `study.yaml` that has cells. Of a language model's noise
only as many texts are written as are measured.
"""

import argparse
import csv
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from ebmcal.benchmark.spec import load_benchmark
from ebmcal.models.loading import quiet
from ebmcal.pipeline.run_noise import make_noise
from ebmcal.pipeline.stages import prepare
from ebmcal.progress import Console
from study import write_csv


def measure(folder: Path) -> None:
    path = folder / "cells.csv"
    with open(path, encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    with TemporaryDirectory() as aside:
        for task in load_benchmark(folder / "study.yaml", Path(aside)).tasks:
            noisy = [row for row in rows if row["run"] == task.name and row["noise"]]
            if noisy:
                config, data = prepare(task.config.model_copy(update={"noise_samples": 1}), Console())
                facts = make_noise(config, data, Console()).facts
                probe = round(statistics.fmean(source["probe"] for source in facts.values()), 4)
                print(f"{folder.name}, {task.name}: {noisy[0]['probe']} -> {probe}", flush=True)
                for row in noisy:
                    row["probe"] = str(probe)
                write_csv(path, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    with quiet():
        for folder in parser.parse_args().folders:
            measure(folder)
