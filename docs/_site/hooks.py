"""What MkDocs calls while it builds the site: generated pages, figures in the text, pictures, formulas, links.

A page is Markdown with templates: `{{ figure(...) }}` and its like are filled from files of results (`figures`), code
fences marked `run` get what they printed when they were last run (`outputs`), and links to files of the repository
that lie outside docs/ lead to copies of them in the site.
"""

import re
import sys
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

import figures
import outputs
import pictures
import reference

ROOT = Path(__file__).parents[2]
#: Pages that lie elsewhere in the repository, by their place in the site.
ELSEWHERE = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"\[([^\]]*)\]\((\.\.?/[^)#\s]+|(?:docs|examples|benchmarks|results)\b[^)#\s]*)(#[^)\s]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
PICTURE = re.compile(r'<p><span data-picture="([\w-]+)"></span></p>')


def on_files(files, config):
    """Add the generated pages, the pages from elsewhere, and the files that pages link to."""
    for name, make in reference.PAGES.items():  # in place of a note for those who read docs/ as files
        files.remove(files.get_file_from_path(name))
        files.append(File.generated(config, name, content=make()))
    for name, path in ELSEWHERE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text("utf-8")))
    for page in files.documentation_pages():
        for _, link, _ in LINK.findall(page.content_string):
            target = _in_repository(page.src_uri, link)
            if target and (ROOT / target).is_file() and files.get_file_from_path(_copy(target)) is None:
                files.append(File.generated(config, _copy(target), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Fill the templates, put outputs under code, turn links out of docs/ inwards."""
    where = page.file.src_uri
    markdown = figures.fill(markdown, where)
    markdown = outputs.show(markdown, where)
    return LINK.sub(lambda match: _inwards(where, *match.groups()), markdown)


def on_page_content(html, page, config, files):
    """Formulas as MathML, pictures as inline SVG: neither needs a script or the network."""
    html = FORMULA.sub(lambda m: convert(_plain(m[2]), display="block" if m[1] == "div" else "inline"), html)
    return PICTURE.sub(lambda m: pictures.draw(m[1]), html)


def _plain(text):
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def _copy(path):
    """Where a file of the repository lies in the site; Markdown as text, for it is no page of the site."""
    return f"files/{path}" + (".txt" if path.endswith(".md") else "")


def _start(page):
    return (ROOT / ELSEWHERE[page]).parent if page in ELSEWHERE else (ROOT / "docs" / page).parent


def _in_repository(page, link):
    """The file or folder of the repository outside docs/ that a link of a page means, or None."""
    target = (_start(page) / link).resolve()
    if not target.exists() or not target.is_relative_to(ROOT):
        return None
    path = target.relative_to(ROOT).as_posix()
    return None if path.startswith("docs/") or path in ELSEWHERE.values() else path


def _inwards(page, text, link, anchor):
    """The link as the site has it: to a copy of the file, to the page that it is there, or, of a folder, its name."""
    up, target = "../" * page.count("/"), _in_repository(page, link)
    if target:
        return f"[{text}]({up}{_copy(target)})" if (ROOT / target).is_file() else f"{text} (`{target}`)"
    full, known = (_start(page) / link).resolve(), {source: name for name, source in ELSEWHERE.items()}
    path = full.relative_to(ROOT).as_posix() if full.is_relative_to(ROOT) else ""
    if path in known:
        link = up + known[path]
    elif page in ELSEWHERE and path.startswith("docs/"):
        link = up + path.removeprefix("docs/")
    return f"[{text}]({link}{anchor or ''})"
