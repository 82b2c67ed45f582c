"""Every fault of the page ``docs/faults.md`` is injected and does what the page says."""

import re
from pathlib import Path

import pytest

from fault_proofs import PROOFS

PAGE = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
TITLES = re.findall(r"^- \*\*(.+?)\.\*\*", re.sub(r"\n  ", " ", PAGE), re.MULTILINE)


SLOW = ("`kill -9` at any moment",)


@pytest.mark.parametrize(
    "fault", [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in PROOFS]
)
def test_fault_does_what_the_page_says(fault, tmp_path, monkeypatch):
    PROOFS[fault](tmp_path, monkeypatch)


def test_every_entry_of_the_page_has_one_proof():
    assert [[key for key in PROOFS if title.startswith(key)] for title in TITLES] == [
        [key] for key in PROOFS
    ]
    assert len(TITLES) > 40
