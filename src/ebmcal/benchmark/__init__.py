"""`ebmcal benchmark`: tasks × methods × seeds from one YAML file, and the paper's tables.

`plan` reads and checks the file, `execution` runs what is not done yet, `results` gathers the run directories and
writes the tables as Markdown, LaTeX, JSON, CSV and HTML.
"""

from ebmcal.benchmark.execution import run_benchmark
from ebmcal.benchmark.plan import Benchmark, BenchmarkTask, load_benchmark
from ebmcal.benchmark.results import Outcome, gather, paper_tables, write_results

__all__ = [
    "Benchmark",
    "BenchmarkTask",
    "Outcome",
    "gather",
    "load_benchmark",
    "paper_tables",
    "run_benchmark",
    "write_results",
]
