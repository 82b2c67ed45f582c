"""Fixtures of the tests of commands."""

from __future__ import annotations

import sys

import pytest
from audit_file import MODULE


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with the user's module in it, as current directory."""
    (tmp_path / "lines.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hybrid-predict", "audit", "file.yaml"])
    monkeypatch.delitem(sys.modules, "lines", raising=False)
    yield tmp_path
    sys.modules.pop("lines", None)
