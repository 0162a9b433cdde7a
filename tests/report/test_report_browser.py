"""The report in a real browser: tables sort by click and by key, long texts fold, hostile texts stay texts.

Drives headless Chromium through a copy of the page with a script appended, which acts and writes what it saw into the
page; `--dump-dom` reads it back. Skipped where there is no Chromium.
"""

import html
import json
import re
import shutil
import subprocess

import pytest

from ebmcal.report import write_report
from synthetic_run import NASTY_TEXTS, make_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--virtual-time-budget=3000",
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("browser") / "run", seeds=(1,), n=60)
    return write_report(run)


def dump(path, tmp_path, *flags):
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def act(page, tmp_path, script, *flags):
    """Run `script`, an expression that gives something JSON can hold, in a copy of the page; its value."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    hook = (
        "<pre id='seen'></pre><script>let seen; try { seen = "
        f"(() => {{ {script} }})(); }} catch (error) {{ seen = 'error: ' + error; }}"
        "document.getElementById('seen').textContent = JSON.stringify(seen);</script></body>"
    )
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("</body>", hook), encoding="utf-8")
    found = re.search(r'<pre id="seen">(.*?)</pre>', dump(copy, tmp_path, *flags), re.S)
    return json.loads(html.unescape(found.group(1)))


HEADING = """
  const table = document.querySelector('#summary table');
  const headings = [...table.tHead.rows[0].cells];
  const heading = headings.find((h) => h.textContent.includes('ECE class-wise'));
  const column = () => [...table.tBodies[0].rows].map((r) => Number(r.cells[heading.cellIndex].dataset.value));
"""


def test_a_click_sorts_numbers_both_ways(page, tmp_path):
    script = (
        HEADING
        + """
      const before = column();
      heading.querySelector('button').click();
      const up = [column(), heading.getAttribute('aria-sort')];
      heading.querySelector('button').click();
      const down = [column(), heading.getAttribute('aria-sort')];
      headings[0].querySelector('button').click();
      return {before, up, down, left: heading.hasAttribute('aria-sort'), first: headings[0].getAttribute('aria-sort')};
    """
    )
    seen = act(page, tmp_path, script)
    assert seen["up"] == [sorted(seen["before"]), "ascending"]
    assert seen["down"] == [sorted(seen["before"], reverse=True), "descending"]
    assert seen["before"] != seen["up"][0]
    assert (seen["left"], seen["first"]) == (False, "ascending")


def test_empty_cells_stay_last_and_words_sort_as_words(page, tmp_path):
    script = """
      const table = document.querySelector('#summary table');
      const last = [...table.tHead.rows[0].cells].at(-1);
      const column = (i) => [...table.tBodies[0].rows].map((r) => r.cells[i].textContent.trim());
      last.querySelector('button').click();
      const up = column(last.cellIndex);
      last.querySelector('button').click();
      const down = column(last.cellIndex);
      table.tHead.rows[0].cells[0].querySelector('button').click();
      return {up, down, words: column(0)};
    """
    seen = act(page, tmp_path, script)
    assert seen["up"][-1] == seen["down"][-1] == "–"
    assert seen["up"][0] != seen["down"][0]
    assert seen["words"] == sorted(seen["words"])


def test_headings_are_reached_and_used_by_keyboard(page, tmp_path):
    script = (
        HEADING
        + """
      const button = heading.querySelector('button');
      button.focus();
      const focused = document.activeElement === button;
      return {focused, kind: button.type, tab: button.tabIndex, tag: button.tagName};
    """
    )
    assert act(page, tmp_path, script) == {"focused": True, "kind": "button", "tab": 0, "tag": "BUTTON"}


def test_long_texts_fold_and_unfold(page, tmp_path):
    script = """
      document.querySelectorAll('details.model').forEach((d) => (d.open = true));
      const long = [...document.querySelectorAll('details.long')].find((d) => d.textContent.includes('long long'));
      const closed = long.getBoundingClientRect().height;
      long.querySelector('summary').click();
      const start = getComputedStyle(long.querySelector('.start')).display;
      return {closed, open: long.getBoundingClientRect().height, start};
    """
    seen = act(page, tmp_path, script)
    assert seen["open"] > 3 * seen["closed"] > 0
    assert seen["start"] == "none", "the beginning is not shown twice"


def test_hostile_texts_are_shown_and_not_run(page, tmp_path):
    script = """
      const texts = [...document.querySelectorAll('td.text')].map((cell) => cell.textContent);
      const bold = document.querySelectorAll('main b').length;
      return {title: document.title, scripts: document.scripts.length, texts, bold};
    """
    seen = act(page, tmp_path, script)
    assert seen["title"] == "rte – ebmcal"
    assert seen["scripts"] == 2, "the page's own and the test's"
    assert seen["bold"] == 0
    assert NASTY_TEXTS[0] in seen["texts"]
    assert NASTY_TEXTS[1] in seen["texts"]


@pytest.mark.parametrize("width", [1200, 500])
def test_nothing_sticks_out_of_the_page(page, tmp_path, width):
    script = """
      document.querySelectorAll('details').forEach((d) => (d.open = true));
      return {page: document.documentElement.scrollWidth, window: document.documentElement.clientWidth};
    """
    seen = act(page, tmp_path, script, f"--window-size={width},900")
    assert seen["page"] <= seen["window"] + 1


def test_labels_of_figures_stay_inside_and_apart(page, tmp_path):
    """Text of a figure must not be cut off by its edge, and no two tick labels of one axis may overlap."""
    script = """
      document.querySelectorAll('details').forEach((d) => (d.open = true));
      const cut = [], over = [];
      for (const svg of document.querySelectorAll('figure svg')) {
        const frame = svg.getBoundingClientRect();
        const boxes = [...svg.querySelectorAll('text')].map((t) => [t.textContent, t.getBoundingClientRect()]);
        for (const [text, box] of boxes) {
          const out = [frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom];
          if (Math.max(...out) > 1) cut.push(svg.getAttribute('aria-label') + ': ' + text);
        }
        for (const [a, p] of boxes) for (const [b, q] of boxes) {
          if (p === q || p.left > q.left) continue;
          const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
          const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
          if (wide > 2 && high > 4) over.push(svg.getAttribute('aria-label') + ': ' + a + ' / ' + b);
        }
      }
      return {cut, over};
    """
    seen = act(page, tmp_path, script, "--window-size=1300,900")
    assert seen == {"cut": [], "over": []}


def test_dark_pages_have_light_figures(page, tmp_path):
    script = """
      const text = document.querySelector('figure svg text');
      return [getComputedStyle(document.body).backgroundColor, getComputedStyle(text).fill];
    """
    assert act(page, tmp_path, script) == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]
    dark = act(page, tmp_path, script, "--blink-settings=preferredColorScheme=0")
    assert dark == ["rgb(21, 24, 28)", "rgb(230, 233, 236)"]


def test_the_page_as_it_is_runs_its_script_and_asks_for_nothing(page, tmp_path):
    """With its content policy in place: headings became buttons, and nothing was refused."""
    log = tmp_path / "log"
    dom = dump(page, tmp_path, "--enable-logging", f"--log-file={log}", "--v=0")
    assert dom.count('<button type="button">') > 10
    assert "Refused to" not in log.read_text(errors="replace")
