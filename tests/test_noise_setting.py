"""The setting `noise`: sources and shares, read and spelt; names with commas; what cannot be."""

import pytest

from ebmcal.config import load_config
from ebmcal.errors import EbmcalError
from ebmcal.noise_setting import SPLICE_FORMS, NoisePart, parse_noise, spell_noise


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("splice", [("splice", "", 1)]),
        ("splice 1", [("splice", "", 1)]),
        ("infill:gpt2", [("infill", "gpt2", 1)]),
        ("far:some/file.csv", [("far", "some/file.csv", 1)]),
        ("splice 0.8, far 0.2", [("splice", "", 0.8), ("far", "", 0.2)]),
        ("far 0.2,splice", [("far", "", 0.2), ("splice", "", 0.8)]),
        (" splice ,  gaps:small  .5 ,", [("splice", "", 0.5), ("gaps", "small", 0.5)]),
        ("splice 0.5, far, half:a/b", [("splice", "", 0.5), ("far", "", 0.25), ("half", "a/b", 0.25)]),
        ("splice, far, plain:x", [("splice", "", 1 / 3), ("far", "", 1 / 3), ("plain", "x", 1 / 3)]),
        ("far 0.5, far:a file.csv 0.5", [("far", "", 0.5), ("far", "a file.csv", 0.5)]),
        ("infill:a, infill:b", [("infill", "a", 0.5), ("infill", "b", 0.5)]),
        ("infill:C:\\models\\lm", [("infill", "C:\\models\\lm", 1)]),
        *((f"splice:{form}", [("splice", form, 1)]) for form in SPLICE_FORMS),
    ],
)
def test_sources_and_shares_of_noise(text, parts):
    found = parse_noise(text)
    assert [(part.source, part.of) for part in found] == [(source, of) for source, of, _ in parts]
    assert [part.share for part in found] == pytest.approx([share for *_, share in parts], abs=1e-8)
    assert sum(part.share for part in found) == pytest.approx(1)
    again = parse_noise(spell_noise(found))
    assert again == found  # spelt so, it is the same noise
    assert spell_noise(again) == spell_noise(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "noise names no source"),
        (" , ,", "noise names no source"),
        ("splice, fear", "Unknown noise source 'fear'. Did you mean 'far'"),
        ("gpt2", "Unknown noise source 'gpt2'"),
        ("infill", "needs a language model: infill:gpt2"),
        ("infill: 0.5, splice", "needs a language model: infill:gpt2"),
        ("splice:sane-label", "Unknown form of splice 'sane-label'. Did you mean 'same-label'"),
        ("splice 0", "above 0 and at most 1; 'splice 0' came"),
        ("splice -0.5", "above 0 and at most 1"),
        ("splice 1.5", "above 0 and at most 1"),
        ("splice nan", "above 0 and at most 1"),
        ("splice inf", "above 0 and at most 1"),
        ("splice half", "Unknown noise source 'splice half'"),
        ("splice 0.5", "must add up to 1"),
        ("splice 0.8, far 0.3", "must add up to 1"),
        ("splice 0.8, far 0.1", "must add up to 1"),
        ("splice 1, far", "leave every source something"),
        ("splice, splice", "names a source twice"),
        ("infill:a 0.2, splice, infill:a 0.2", "names a source twice"),
    ],
)
def test_noise_that_cannot_be(text, words):
    with pytest.raises(EbmcalError) as caught:
        parse_noise(text)
    assert words in str(caught.value)
    with pytest.raises(EbmcalError) as caught:  # and as the mistake of a config
        load_config(None, {"noise": text})
    assert words in str(caught.value)


def test_a_part_of_the_noise():
    online, stored = NoisePart("far", "a.csv", 0.5), NoisePart("infill", "gpt2", 0.5)
    assert (online.name, stored.name, NoisePart("splice", "", 1).name) == ("far:a.csv", "infill:gpt2", "splice")
    assert (online.is_online, stored.is_online) == (True, False)


def test_names_of_noise_with_commas_and_numbers(tmp_path, monkeypatch):
    """By quotes, or where the file or folder is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lm, 2").mkdir()
    for text in ('infill:"lm, 2" 0.75, far 0.25', "infill:lm, 2 0.75, far 0.25"):
        parts = parse_noise(text)
        assert [(part.name, part.share) for part in parts] == [("infill:lm, 2", 0.75), ("far", 0.25)]
        assert parse_noise(spell_noise(parts)) == parts
    assert parse_noise("infill:lm, 2")[0].of == "lm, 2"
    assert parse_noise('infill:"a 1", far')[0] == parse_noise('infill:"a 1" 0.5, far')[0]
    with pytest.raises(EbmcalError, match="ends in a number goes in quotes"):
        parse_noise("infill:lm 2")
    with pytest.raises(EbmcalError, match="a quote that is not closed"):
        parse_noise('infill:"lm')
