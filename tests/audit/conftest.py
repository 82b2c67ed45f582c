"""Finished audits, which many tests read."""

import shutil
from pathlib import Path

import pytest
from audit_task import Task, config

from hybrid_predict.audit import audit


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """An audit of two seeds; tests only read it."""
    folder = tmp_path_factory.mktemp("audit with space")
    task = Task()
    return audit(task, config(), folder), task, folder


@pytest.fixture(autouse=True)
def every_audit_undrawn(undrawn):
    """But those of ``finished``."""


@pytest.fixture
def audited(finished, tmp_path):
    """A copy of its folder."""
    return Path(shutil.copytree(finished[2], tmp_path / "audited"))
