"""`ebmcal benchmark`: tasks × methods × seeds from one YAML file, and the paper's tables of what came out.

`plan` reads the file, `running` does what is not done yet, each task in a run folder of its own, through
`ebmcal.pipeline.stages`; `results` gathers the run folders, `paper` makes tables of them and `writing` writes them.
"""

from ebmcal.benchmark.paper import paper_tables
from ebmcal.benchmark.plan import Benchmark, BenchmarkTask, load_benchmark
from ebmcal.benchmark.results import Outcome, gather
from ebmcal.benchmark.running import cell_state, run_benchmark
from ebmcal.benchmark.writing import write_results

__all__ = [
    "Benchmark",
    "BenchmarkTask",
    "Outcome",
    "cell_state",
    "gather",
    "load_benchmark",
    "paper_tables",
    "run_benchmark",
    "write_results",
]
