"""What the README shows of results, written by code: the table between its marks, the picture in light and dark.

python docs/_site/readme.py          # part of make docs-outputs
"""

import re

import figures
import pictures

#: Between `<!-- table: NAME -->` and `<!-- end -->` of the README.
TABLES = {"study": '{{ include("results/study/tables/headline.md", "The study is not finished.") }}'}
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.S)
#: Colours of the dark picture, in place of those of the light one.
DARK = {"ink": "#e6e8eb", "muted": "#9aa3ad", "grid": "#444b54", "blue": "#56b4e9", "vermillion": "#ff8c42"}


def filled(text):
    """The README with its tables as the results have them."""
    return MARKED.sub(lambda m: f"{m[1]}\n{figures.fill(TABLES[m[2]], 'README.md')}\n\n{m[3]}", text)


def picture(name, dark):
    """A picture as a file of its own, in fixed colours."""

    def colour(match):
        return DARK.get(match[1], match[2]) if dark else match[2]

    svg = re.search(r"<svg.*</svg>", pictures.draw(name), re.S).group()
    return re.sub(r"var\(--fig-(\w+),(#[0-9a-f]{6})\)", colour, svg) + "\n"


def main():
    """Write the tables and the picture."""
    readme = figures.ROOT / "README.md"
    readme.write_text(filled(readme.read_text("utf-8")), "utf-8")
    for scheme in ("light", "dark"):
        path = figures.ROOT / "docs" / "assets" / f"reliability-{scheme}.svg"
        path.write_text(picture("reliability", scheme == "dark"), "utf-8")


if __name__ == "__main__":
    main()
