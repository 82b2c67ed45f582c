"""Fixtures of the tests of commands."""

import sys

import pytest
from audit_file import MODULE

from hybrid_predict import cli


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with the user's module in it, as current directory."""
    (tmp_path / "lines.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hybrid-predict", "audit", "file.yaml"])
    monkeypatch.delitem(sys.modules, "lines", raising=False)
    yield tmp_path
    sys.modules.pop("lines", None)


@pytest.fixture
def refused(capsys):
    """Run a command that has to end with status 2, and return the last line that it prints."""

    def run(*arguments):
        capsys.readouterr()
        assert cli.main(list(arguments)) == 2
        *usage, line = capsys.readouterr().err.splitlines()
        assert not usage or usage[0].startswith("usage: ")  # of argparse
        return line

    return run
