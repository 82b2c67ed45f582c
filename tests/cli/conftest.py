"""Fixtures of the tests of commands."""

from __future__ import annotations

import sys
from collections.abc import Callable

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
def refused(capsys) -> Callable[..., str]:
    """Run a command that has to end with status 2, and return the line that it prints."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert cli.main(list(arguments)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run
