"""Headless Chromium for the tests of pages: a script writes what it found into the page, `--dump-dom` returns it."""

import html
import json
import re
import shutil
import subprocess

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--virtual-time-budget=20000",
]  # fmt: skip


def found_in(url, profile, *flags):
    """The JSON in `<pre id="found">` of a page, after its scripts have run."""
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, "--dump-dom", url]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    return json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dom, re.S)[1]))
