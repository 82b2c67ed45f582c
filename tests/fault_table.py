"""Every fault that is injected, what happens then, and the proof; docs/faults.md is made from it.

Run with: python tests/fault_table.py
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"

HEAD = """# When something goes wrong

What happens after each fault. A test injects every one of them and proves its row; the page is
made from the test's own table by `python tests/fault_table.py`. After each of them the parameters
are base weights, the optimizer's state belongs to them, and nothing that was saved is lost.

A forecast that fails must never cost the user a run: forecasts stop, the reason is logged once and
kept in the ledger, and training goes on plain. A predictor whose forecast has a wrong *form* ends
the run with a `PredictorError` after its first full step instead:
[why](decisions/0006-failures.md).
"""


@dataclass(frozen=True)
class Fault:
    """One row.

    Args:
        group: Heading that it stands under.
        fault: What goes wrong.
        happens: What the plug-in does.
        prove: Injects it and asserts; takes pytest's ``tmp_path`` and ``monkeypatch``.
    """

    group: str
    fault: str
    happens: str
    prove: Callable[[Path, object], None]


def page() -> str:
    """The documentation page."""
    from fault_proofs import FAULTS

    lines, group = [HEAD], ""
    for fault in FAULTS:
        if fault.group != group:
            group = fault.group
            lines.append(f"\n## {group}\n\n| fault | what happens |\n|---|---|\n")
        lines.append(f"| {fault.fault} | {fault.happens} |\n")
    return "".join(lines)


if __name__ == "__main__":
    # Under its own name, so that the table's rows are of the same class.
    sys.modules["fault_table"] = sys.modules["__main__"]
    PAGE.write_text(page(), encoding="utf-8")
