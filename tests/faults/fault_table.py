"""Every fault that is injected, what happens then, and the proof; docs/faults.md is made from it.

Run with: python tests/faults/fault_table.py
"""

import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"

HEAD = """# When something goes wrong

What happens after each fault. A test injects every one of them and proves what is said here; the
page is made from the test's own table by `python tests/faults/fault_table.py`.

**Undone**, below, means: weights, optimizer state and buffers are bit for bit what they were before
the predicted steps, and the update of the verifying step did not happen. The verdict is `undone`,
the full step ticks 1, the reason is in the ledger, and predicted steps **pause** for 16 full steps;
for twice as many after each further alarm, and for good after the fourth.

**Falls back** means: the rest of the run is the user's own training, bit for bit, with one warning
and the reason in the ledger. A predictor or update that fails must never cost the user a run.
One that gives a result of a wrong *form* raises a `PredictorError` in the first full step instead:
[why](decisions/0006-failures.md).
"""


@dataclass(frozen=True)
class Fault:
    """One entry.

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
            lines.append(f"\n## {group}\n\n")
        entry = f"- **{fault.fault[:1].upper()}{fault.fault[1:]}.** {fault.happens}"
        # An address that is broken in two is none.
        whole = {"break_long_words": False, "break_on_hyphens": False}
        lines.append(textwrap.fill(entry, 100, subsequent_indent="  ", **whole) + "\n")
    return "".join(lines)


if __name__ == "__main__":
    # Under its own name, so that the table's entries are of the same class.
    sys.modules["fault_table"] = sys.modules["__main__"]
    sys.path += [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "ranks")]
    PAGE.write_text(page(), encoding="utf-8")
