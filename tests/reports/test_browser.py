"""The report in headless Chromium: layout at several widths, sorting, folding, dark mode, hostile texts.

A copy of the page gets a script that acts and writes what it saw into the page; `--dump-dom` reads it back. Skipped
without a browser.
"""

import html
import json
import re
import shutil
import subprocess

import pytest

from ebmcal.reports import write_report
from synthetic_run import HOSTILE_TEXTS, make_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH"),
    pytest.mark.slow,
]
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--virtual-time-budget=3000",
]  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_report(make_run(tmp_path_factory.mktemp("browser") / "run", seeds=(1,), n=60))


def act(page, tmp_path, script, *flags):
    """The value of a script (the body of a function that returns JSON) in a copy of the page."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    hook = (
        "<pre id='seen'></pre><script>let seen; try { seen = "
        f"(() => {{ {script} }})(); }} catch (error) {{ seen = 'error: ' + error; }}"
        "document.getElementById('seen').textContent = JSON.stringify(seen);</script></body>"
    )
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("</body>", hook), encoding="utf-8")
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, "--dump-dom", copy.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', shown, re.S)[1]))


TABLE = """
  const table = document.querySelector('#comparison-of-models table');
  const headings = [...table.tHead.rows[0].cells];
  const heading = headings.find((h) => h.textContent.includes('ECE class-wise'));
  const column = (i) => [...table.tBodies[0].rows].map((r) => r.cells[i]);
  const numbers = () => column(heading.cellIndex).map((c) => Number(c.dataset.value));
"""


def test_headings_sort_by_click_in_both_directions(page, tmp_path):
    script = """
      const before = numbers();
      const button = heading.querySelector('button');
      button.focus();
      const focused = document.activeElement === button;
      button.click();
      const up = [numbers(), heading.getAttribute('aria-sort')];
      button.click();
      const down = [numbers(), heading.getAttribute('aria-sort')];
      headings[0].querySelector('button').click();
      const words = column(0).map((c) => c.textContent);
      return {before, up, down, words, focused, left: heading.hasAttribute('aria-sort')};
    """
    seen = act(page, tmp_path, TABLE + script)
    assert seen["up"] == [sorted(seen["before"]), "ascending"]
    assert seen["down"] == [sorted(seen["before"], reverse=True), "descending"]
    assert seen["words"] == sorted(seen["words"])
    assert seen["focused"]
    assert not seen["left"]


def test_long_texts_and_sections_unfold(page, tmp_path):
    script = """
      const section = document.getElementById('energies');
      const before = section.open;
      location.hash = '#energies';
      document.querySelectorAll('details.section').forEach((d) => (d.open = true));
      const long = [...document.querySelectorAll('details.long')].find((d) => d.textContent.includes('long long'));
      const closed = long.getBoundingClientRect().height;
      long.querySelector('summary').click();
      const start = getComputedStyle(long.querySelector('.start')).display;
      return {before, closed, open: long.getBoundingClientRect().height, start};
    """
    seen = act(page, tmp_path, script)
    assert not seen["before"]
    assert seen["open"] > 3 * seen["closed"] > 0
    assert seen["start"] == "none", "the beginning is not shown twice"


def test_hostile_texts_are_shown_and_not_run(page, tmp_path):
    script = """
      const texts = [...document.querySelectorAll('td.words, th.words')].map((cell) => cell.textContent);
      const bold = document.querySelectorAll('main b').length;
      return {title: document.title, scripts: document.scripts.length, texts, bold};
    """
    seen = act(page, tmp_path, script)
    assert seen["title"] == "rte – ebmcal"
    assert seen["scripts"] == 2, "the page's own and the test's"
    assert seen["bold"] == 0
    assert HOSTILE_TEXTS[0] in seen["texts"]


@pytest.mark.parametrize("width", [1200, 500])
def test_nothing_is_wider_than_the_page(page, tmp_path, width):
    script = """
      document.querySelectorAll('details').forEach((d) => (d.open = true));
      const wide = [...document.querySelectorAll('.scroll, .svg')].filter((d) => d.scrollWidth > d.clientWidth + 1);
      const root = document.documentElement;
      return {page: root.scrollWidth <= root.clientWidth + 1, wide: wide.map((d) => d.getAttribute('aria-label'))};
    """
    seen = act(page, tmp_path, script, f"--window-size={width},900")
    assert seen["page"]
    if width == 1200:
        assert seen["wide"] == [], "no table or figure is wider than its container"


def test_first_screen_and_length_at_1200_pixels(page, tmp_path):
    script = """
      const bottom = (q) => document.querySelector(q).getBoundingClientRect().bottom;
      return {facts: bottom('.facts'), commands: bottom('.commands'),
              before: document.querySelector('details.section').getBoundingClientRect().top};
    """
    seen = act(page, tmp_path, script, "--window-size=1200,900")
    assert seen["facts"] < seen["commands"] < 800, "what, how good and what to do are on the first screen"
    assert seen["before"] < 6 * 900, "at most six screens before the collapsed sections"


def test_texts_of_figures_stay_inside_and_apart(page, tmp_path):
    script = """
      document.querySelectorAll('details').forEach((d) => (d.open = true));
      const cut = [], over = [];
      for (const svg of document.querySelectorAll('figure svg')) {
        const frame = svg.getBoundingClientRect();
        const boxes = [...svg.querySelectorAll('text')].map((t) => [t.textContent, t.getBoundingClientRect(), t]);
        for (const [text, box] of boxes) {
          const out = [frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom];
          if (Math.max(...out) > 1) cut.push(svg.getAttribute('aria-label') + ': ' + text);
        }
        const level = boxes.filter((b) => !(b[2].getAttribute('transform') || '').match(/rotate\\(-?[1-8]/));
        for (const [a, p] of level) for (const [b, q] of level) {
          if (p === q || p.left > q.left) continue;
          const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
          const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
          if (wide > 2 && high > 4) over.push(svg.getAttribute('aria-label') + ': ' + a + ' / ' + b);
        }
      }
      return {cut, over};
    """
    assert act(page, tmp_path, script, "--window-size=1300,900") == {"cut": [], "over": []}


@pytest.mark.parametrize(
    ("scheme", "colors"),
    [(1, ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]), (0, ["rgb(21, 24, 28)", "rgb(230, 233, 236)"])],
)
def test_figures_follow_the_colour_scheme(page, tmp_path, scheme, colors):
    script = """
      const text = document.querySelector('figure svg text');
      return [getComputedStyle(document.body).backgroundColor, getComputedStyle(text).fill];
    """
    assert act(page, tmp_path, script, f"--blink-settings=preferredColorScheme={scheme}") == colors
