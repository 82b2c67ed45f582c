"""The package works where its source tree hides the installed one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_callback_can_be_imported_in_the_root_of_a_checkout() -> None:
    code = "import hybrid_predict as h; print(h.HybridPredict.__module__, h.__file__)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    module, file = done.stdout.split()
    assert module == "hybrid_predict.integrations.lightning"
    assert Path(file).parents[1] == ROOT
