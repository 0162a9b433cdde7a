"""What a user is told: close matches and missing extras."""

import pytest

from ebmcal.errors import EbmcalError, require_extra, unknown_name


def test_close_matches_come_first():
    text = str(unknown_name("method", "sharp-hiden", ["baseline", "hidden", "sharp-hidden"]))
    assert text.startswith("Unknown method 'sharp-hiden'. Did you mean 'sharp-hidden'")
    assert text.endswith("Known: baseline, hidden, sharp-hidden.")


def test_no_guess_where_nothing_is_near():
    assert str(unknown_name("task", "zzz", ("rte", "mrpc"))) == "Unknown task 'zzz'. Known: rte, mrpc."


def test_a_missing_extra_is_named():
    require_extra("train", "json", "pathlib")
    with pytest.raises(EbmcalError) as caught:
        require_extra("train", "json", "no_such_package", "nor_this")
    assert str(caught.value) == (
        "This needs no_such_package, nor_this, which are not installed. Install with: pip install 'ebmcal[train]'"
    )
