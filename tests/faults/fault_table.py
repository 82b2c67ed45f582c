"""The faults that tests inject, what happens then, and the proof; makes docs/faults.md.

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

What happens after each fault. A test injects each of them and checks what this page says;
`python tests/faults/fault_table.py` writes the page from the tests.

**Undone** means: weights, optimizer state and buffers are bit for bit what they were before the
predicted steps, and the update of the verifying step did not happen. The verdict is `undone`, the
full step ticks once, and the reason is in the ledger. Predicted steps **pause** for 16 full steps,
for twice as many after each further alarm, and for good after the fourth.

**Falls back** means: the rest of the run is plain training, bit for bit, with one warning and the
reason in the ledger. So a predictor or update that fails does not end the run. But one whose result
has a wrong *form* raises a `PredictorError` in the first full step:
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
    sys.path += [str(ROOT), *(str(ROOT / "tests" / name) for name in ("", "helpers", "ranks"))]
    PAGE.write_text(page(), encoding="utf-8")
