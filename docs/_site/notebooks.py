"""Pages as notebooks: text as it is, code that is run as cells with what it printed; written with the outputs."""

import json
import re

import figures
import outputs

#: Pages that are notebooks as well.
PAGES = ("tutorials/judging.md", "tutorials/own-data.md")
ALSO = re.compile(r"Also as a \[notebook\]\([\w.-]+\)\.\s*")


def notebook(page):
    """The notebook of a page, as `docs/tutorials/judging.ipynb` has it."""
    markdown = ALSO.sub("", figures.fill((outputs.DOCS / page).read_text("utf-8"), page))
    kept, cells, at = json.loads(outputs.kept_file(page).read_text("utf-8")), [], 0
    for match, ran in zip(outputs.FENCE.finditer(markdown), kept, strict=True):
        cells += [_text(markdown[at : match.start()]), _code(match[3], ran)]
        at = match.end()
    cells.append(_text(markdown[at:]))
    numbered = [{"id": f"cell-{i}", **cell} for i, cell in enumerate(cells) if cell["source"]]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": numbered, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _text(markdown):
    return {"cell_type": "markdown", "metadata": {}, "source": markdown.strip().splitlines(keepends=True)}


def _code(code, ran):
    said = [{"output_type": "stream", "name": "stdout", "text": ran["output"] + "\n"}] if ran["output"] else []
    drawn = [{"output_type": "display_data", "metadata": {}, "data": {"image/svg+xml": s}} for s in ran["pictures"]]
    source = code.rstrip().splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "source": source, "outputs": said + drawn}


def write(page):
    """Write the notebook of a page beside it."""
    (outputs.DOCS / page).with_suffix(".ipynb").write_text(notebook(page), "utf-8")
