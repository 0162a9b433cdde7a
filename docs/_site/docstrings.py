"""Examples in docstrings as code on the API page: `>>>` alone would be a quotation in Markdown."""

import re

import griffe

EXAMPLE = re.compile(r"(?:^|\n)((?:>>> .*)(?:\n(?!\n).+)*)")


class FenceExamples(griffe.Extension):
    """Puts a fence around every example."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = EXAMPLE.sub(r"\n\n```pycon\n\1\n```\n", obj.docstring.value)
