"""Every fault of the table is injected and does what the page says."""

import pytest

from fault_proofs import FAULTS
from fault_table import PAGE, page


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.group}: {f.fault}")
def test_fault_does_what_the_page_says(fault, tmp_path, monkeypatch):
    fault.prove(tmp_path, monkeypatch)


def test_page_and_table_agree():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tests/faults/fault_table.py"


def test_every_entry_is_about_another_fault():
    assert len({(fault.group, fault.fault) for fault in FAULTS}) == len(FAULTS) > 40
