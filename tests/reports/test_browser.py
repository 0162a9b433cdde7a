"""The report in headless Chromium: layout at several widths, sorting, folding, dark mode, hostile texts.

A copy of the page gets a script that acts and writes what it saw into the page. Skipped without a browser.
"""

import re

import pytest

from browser import found_in, needs_browser
from ebmcal.reports import write_report
from synthetic_run import HOSTILE_TEXTS, make_run

pytestmark = [needs_browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_report(make_run(tmp_path_factory.mktemp("browser") / "run", seeds=(1,), n=60))


def act(page, tmp_path, script, *flags):
    """The value of a script (the body of a function that returns JSON) in a copy of the page."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    hook = (
        "<pre id='found'></pre><script>let seen; try { seen = "
        f"(() => {{ {script} }})(); }} catch (error) {{ seen = 'error: ' + error; }}"
        "document.getElementById('found').textContent = JSON.stringify(seen);</script></body>"
    )
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("</body>", hook), encoding="utf-8")
    return found_in(copy.as_uri(), tmp_path / "profile", *flags)


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
