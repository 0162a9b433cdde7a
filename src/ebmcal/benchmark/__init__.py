"""`ebmcal benchmark`: tasks × methods × seeds from one YAML file, and the paper's tables of what came out.

`spec` reads the file, `runs` does what is not done yet, each task in a run folder of its own, through
`ebmcal.pipeline.stages`; `outcomes` gathers the run folders, `writing` makes tables of them and writes them.
"""

from ebmcal.benchmark.outcomes import Outcome, gather
from ebmcal.benchmark.runs import cell_state, run_benchmark
from ebmcal.benchmark.spec import Benchmark, BenchmarkTask, load_benchmark
from ebmcal.benchmark.writing import paper_tables, write_results

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
