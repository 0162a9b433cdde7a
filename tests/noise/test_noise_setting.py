"""The `noise` setting: sources, shares and mistakes."""

import pytest

from ebmcal.errors import EbmcalError
from ebmcal.noise import format_noise, parse_noise


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("splice", [("splice", "", 1)]),
        ("splice 1", [("splice", "", 1)]),
        ("infill:gpt2", [("infill", "gpt2", 1)]),
        ("unrelated:some/file.csv", [("unrelated", "some/file.csv", 1)]),
        ("splice 0.8, unrelated 0.2", [("splice", "", 0.8), ("unrelated", "", 0.2)]),
        ("unrelated 0.2,splice", [("unrelated", "", 0.2), ("splice", "", 0.8)]),
        (" splice ,  plain:small  .5 ,", [("splice", "", 0.5), ("plain", "small", 0.5)]),
        ("splice 0.5, unrelated, plain:a/b", [("splice", "", 0.5), ("unrelated", "", 0.25), ("plain", "a/b", 0.25)]),
        ("splice, unrelated, plain:x", [("splice", "", 1 / 3), ("unrelated", "", 1 / 3), ("plain", "x", 1 / 3)]),
        ("unrelated 0.5, unrelated:a b.csv 0.5", [("unrelated", "", 0.5), ("unrelated", "a b.csv", 0.5)]),
        ("infill:a, infill:b", [("infill", "a", 0.5), ("infill", "b", 0.5)]),
        ("infill:C:\\models\\lm", [("infill", "C:\\models\\lm", 1)]),
        ("mlm:roberta-base", [("mlm", "roberta-base", 1)]),
    ],
)
def test_sources_and_shares(text, parts):
    found = parse_noise(text)
    assert [(part.source, part.argument) for part in found] == [(source, of) for source, of, _ in parts]
    assert [part.share for part in found] == pytest.approx([share for *_, share in parts], abs=1e-8)
    assert sum(part.share for part in found) == pytest.approx(1)
    assert parse_noise(format_noise(found)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "noise names no source"),
        (" , ,", "noise names no source"),
        ("splice, unrelatd", "Unknown noise source 'unrelatd'. Did you mean 'unrelated'"),
        ("gpt2", "Unknown noise source 'gpt2'"),
        ("infill", "needs a language model, for example infill:gpt2"),
        ("infill: 0.5, splice", "needs a language model, for example infill:gpt2"),
        ("mlm", "needs a masked language model, for example mlm:roberta-base"),
        ("splice:middle", "splice takes no argument, got 'middle'"),
        ("splice 0", "a share above 0 and at most 1, got 'splice 0'"),
        ("splice -0.5", "a share above 0"),
        ("splice 1.5", "a share above 0"),
        ("splice nan", "a share above 0"),
        ("splice inf", "a share above 0"),
        ("splice half", "expected SOURCE or SOURCE:NAME"),
        ("splice 0.5", "must add up to 1"),
        ("splice 0.8, unrelated 0.3", "must add up to 1"),
        ("splice 0.8, unrelated 0.1", "must add up to 1"),
        ("splice 1, unrelated", "every source needs a share above 0"),
        ("splice, splice", "names a source twice"),
        ("infill:a 0.2, splice, infill:a 0.2", "names a source twice"),
        ("infill:lm 2", "a share above 0"),
    ],
)
def test_mistakes(text, message):
    with pytest.raises(EbmcalError) as caught:
        parse_noise(text)
    assert message in str(caught.value)
