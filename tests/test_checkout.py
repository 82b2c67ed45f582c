"""The source tree shows the whole package, also to tools that only read it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_source_tree_has_the_integrations_inside_the_package() -> None:
    link = ROOT / "hybrid_predict" / "integrations"
    assert link.is_symlink() and os.readlink(link) == os.path.join("..", "integrations")
    code = "import importlib.util as u; print(u.find_spec('hybrid_predict.integrations.lightning'))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert str(link / "lightning.py") in done.stdout
