"""The documentation site: builds without a warning, loads nothing from elsewhere, all links lead somewhere."""

import re
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
pytest.importorskip("torch", reason="the tables of methods need it")

LOADS = re.compile(r"<(?:script|img|source|iframe)[^>]* src=\"([^\"]+)\"|<link[^>]*stylesheet[^>]* href=\"([^\"]+)\"")
LINK = re.compile(r"<a [^>]*href=\"([^\"]+)\"")
ANCHOR = re.compile(r" (?:id|name)=\"([^\"]+)\"")


def test_every_link_and_anchor_leads_somewhere(site):
    anchors = {path: set(ANCHOR.findall(text)) for path, text in site.items()}
    wrong = []
    for path, text in site.items():
        if path.name == "404.html":  # its links are from the root of a server
            continue
        for link in map(urlsplit, LINK.findall(text)):
            if link.scheme:
                continue
            target = (path.parent / unquote(link.path)).resolve() if link.path else path
            found = target.exists() and (not link.fragment or unquote(link.fragment) in anchors.get(target, ()))
            wrong += [] if found else [f"{path.name}: {link.geturl()}"]
    assert not wrong


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = {source or sheet for text in site.values() for source, sheet in LOADS.findall(text)}
    assert loaded
    assert not [url for url in loaded if urlsplit(url).scheme or url.startswith("//")]


def test_templates_and_formulas_are_filled(site):
    for path, text in site.items():
        body = re.sub(r"<(code|script)\b.*?</\1>", "", text, flags=re.S)
        assert "{{" not in body, path
        assert "arithmatex" not in body, path


def test_the_reference_has_every_command_setting_and_name(site):
    import ebmcal
    from ebmcal.cli import COMMANDS
    from ebmcal.config import RunConfig

    pages = {path.name: text for path, text in site.items()}
    assert not [name for name in COMMANDS if f"ebmcal {name}" not in pages["commands.html"]]
    assert not [name for name in RunConfig.model_fields if f"<code>{name}</code>" not in pages["settings.html"]]
    assert not [name for name in set(ebmcal.__all__) - {"__version__"} if f'.{name}"' not in pages["api.html"]]
