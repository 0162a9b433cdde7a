"""The web UI: a page next to the API on which a text or a file can be tried. `ebmcal serve MODEL --ui`.

`routes` adds it to the app, `explanation` computes what is shown for a text, `files` evaluates an uploaded file,
`static/` is sent to the browser: plain HTML, CSS and JavaScript without any other source.
"""

from ebmcal.serving.ui.routes import add_ui

__all__ = ["add_ui"]
