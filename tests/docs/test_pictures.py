"""Pictures can be read: described in words, in light and in dark, and by the colour-blind."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from ebmcal.plots.svg import VARIABLES

ROOT = Path(__file__).parents[2]
CSS = (ROOT / "docs" / "assets" / "site.css").read_text("utf-8")
README = {scheme: ROOT / "docs" / "assets" / f"reliability-{scheme}.svg" for scheme in ("light", "dark")}
#: What pictures stand on: Material's pages, and GitHub's.
PAPER = {"light": ("#ffffff",), "dark": ("#1e2129", "#0d1117")}
#: Fill of the caps of error bars, which are lines: nobody sees it.
UNSEEN = {"#1f77b4"}
COLOUR = re.compile(r"(?:fill|stroke): (#[0-9a-f]{6})")
VARIABLE = re.compile(r"var\(--fig-(\w+),#[0-9a-f]{6}\)")

#: Linear RGB as those see it who lack one kind of cone (Machado et al. 2009).
BLINDNESS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    """Linear RGB of `#rrggbb`."""
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """WCAG's ratio, 1 to 21."""
    dark, light = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def distance(one, other, blindness):
    """CIE 1976 difference of two colours to somebody with this blindness."""

    def lab(colour):
        seen = np.clip(np.array(BLINDNESS[blindness]) @ linear(colour), 0, 1)
        x, y, z = np.cbrt(np.maximum(TO_XYZ @ seen / TO_XYZ.sum(axis=1), 0.009))
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    return float(np.linalg.norm(lab(one) - lab(other)))


def palettes():
    """Names and colours of each scheme of the site: the page's, else the picture's own."""
    parts = CSS.split("[data-md-color-scheme")
    light, dark = (dict(re.findall(r"--fig-(\w+): (#[0-9a-f]{6})", part)) for part in parts)
    own = {name: colour for colour, name in VARIABLES.items()}
    return {"light": own | light, "dark": own | light | dark}


@pytest.fixture(scope="module")
def pictures(site):
    """Every picture of the site."""
    found = [
        svg for text in site.values() for svg in re.findall(r"<figure class=\"picture\">(<svg.*?</svg>)", text, re.S)
    ]
    assert len(found) >= 4
    return found


def test_contrast_by_hand():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#6a737d", "#6a737d") == 1
    assert distance("#ff0000", "#857a00", "deuteranopia") < 15 < distance("#ff0000", "#0000ff", "deuteranopia")


def test_pictures_are_described(pictures, site):
    words = [re.match(r"<svg[^>]*aria-label=\"([^\"]*)\"", svg)[1].split() for svg in pictures]
    assert min(map(len, words)) >= 6
    images = [tag for text in site.values() for tag in re.findall(r"<img [^>]*>", text)]
    assert all(re.search(r" alt=\"[^\"]+\"", tag) for tag in images)


def test_pictures_follow_the_scheme_of_the_page(pictures):
    for svg in pictures:
        assert not set(COLOUR.findall(svg)) - UNSEEN
        assert set(VARIABLE.findall(svg)) <= set(palettes()["light"])


@pytest.mark.parametrize("scheme", PAPER)
def test_colours_stand_out_from_the_paper(scheme, pictures):
    for name in {name for svg in pictures for name in VARIABLE.findall(svg)}:
        least = {"grid": 1.2, "ink": 7, "muted": 4.5}.get(name, 3)  # lines behind, text, small text, bars and lines
        assert min(contrast(palettes()[scheme][name], paper) for paper in PAPER[scheme]) >= least, name


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_colours_of_a_picture_are_told_apart(blindness, pictures):
    """Those that stand for something; each series has a dash, marker or hatch of its own besides."""
    for scheme, palette in palettes().items():
        for svg in pictures:
            used = {palette[name] for name in VARIABLE.findall(svg)} - {palette["grid"], palette["muted"]}
            near = [pair for pair in itertools.combinations(used, 2) if distance(*pair, blindness) < 15]
            assert not near, scheme


@pytest.mark.parametrize("scheme", README)
def test_the_picture_of_the_readme(scheme):
    svg, page = README[scheme].read_text("utf-8"), (ROOT / "README.md").read_text("utf-8")
    assert "aria-label=" in svg
    assert README[scheme].relative_to(ROOT).as_posix() in page
    assert len(re.search(r"<img [^>]*alt=\"([^\"]+)\"", page)[1].split()) >= 6
    seen = set(COLOUR.findall(svg)) - UNSEEN
    faint = [colour for colour in seen if contrast(colour, PAPER[scheme][-1]) < 3]
    assert len(faint) <= 1  # the grid
    assert len(seen) >= 4
