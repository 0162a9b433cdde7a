"""Fault injection: kills, damaged files and bad input against the real commands, with figures.

    python -m tests.faults            # or: make faults

What is shared with the tests (`tiny_models`, `fuzz_files`) is found beside this package.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(folder) for folder in (TESTS, TESTS / "data") if str(folder) not in sys.path]
