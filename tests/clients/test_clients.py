"""Every client of the benchmark whose package is installed trains a short run.

``python -m benchmarks.clients NAME`` runs this for a client in an environment of its own.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from benchmarks.clients import CLIENTS
from benchmarks.clients import train as run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SHARE = 0.1
"""Length of the runs as a share of the full one."""


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_trains_as_many_steps_as_without_the_plug_in(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        version(CLIENTS[name].package)
    except PackageNotFoundError:
        pytest.skip(f"{CLIENTS[name].package} is not installed")
    arms: dict[str, Any] = {"full": None, "hybrid": {}, "off": {"enabled": False}}
    monkeypatch.setattr(run, "ARMS", arms)
    monkeypatch.chdir(tmp_path)  # some packages write logs
    by_arm = {row["arm"]: row for row in run.train_seed(name, 0, list(arms), SHARE)["rows"]}
    full, hybrid, off = (by_arm[arm] for arm in arms)
    assert hybrid["full_steps"] + hybrid["predicted_steps"] == full["full_steps"] > 1
    assert off["quality"] == full["quality"], "disabled, the plug-in changes nothing"
    assert hybrid["quality"] != full["quality"]
