"""`ebmcal run`: all stages for one task."""

import os

from ebmcal.cli.options import with_config
from ebmcal.config import RunConfig

#: Columns a terminal must have to show intervals without wrapping; the report has them always.
WIDE = 160


def run_config(config: RunConfig) -> None:
    """Run, then print the table of results."""
    from rich.console import Console as RichConsole

    from ebmcal.cli.notices import as_notices
    from ebmcal.runs import run
    from ebmcal.tables import compact, detection_table, list_test_sets, paired_table, summary_table, to_rich

    config.require_output()
    with as_notices():
        finished = run(config, progress=True, shared_cache=True)
    document, console = finished.document, RichConsole()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = RichConsole(width=200)  # a file or a pipe has no width to keep to
    wide = console.width >= WIDE
    for test_set in list_test_sets(document):
        table = summary_table(document, test_set=test_set, published=wide)
        console.print(to_rich(table if wide else compact(table), narrow=not wide))
    if document["paired"]:
        console.print(to_rich(paired_table(document)))
    others = detection_table(document, of="ood_")
    if others.rows:
        console.print(to_rich(others))
    for sentence in (document.get("advice") or {}).get("sentences", ()):
        console.print(sentence, highlight=False)
    console.print(f"Open {finished.report} in a browser.", highlight=False, soft_wrap=True)


run = with_config(run_config)
