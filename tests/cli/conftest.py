"""Shared by the tests of commands."""

import pytest

from ebmcal.cli import main


@pytest.fixture
def command(capsys):
    """Run a command; returns what it prints, standard error first. Fails with another exit code than expected."""

    def call(*arguments, code=0):
        with pytest.raises(SystemExit) as stop:
            main([*map(str, arguments)])
        printed = capsys.readouterr()
        assert (stop.value.code or 0) == code, printed.err
        return printed.err + printed.out

    return call
