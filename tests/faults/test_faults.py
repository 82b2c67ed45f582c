"""Every fault of the page ``docs/faults.md`` is injected and does what the page says."""

import re
from pathlib import Path

import pytest

from fault_proofs import PROOFS

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")
TITLES = re.findall(r"^- \*\*(.+?)\.\*\*", re.sub(r"\n  ", " ", PAGE), re.MULTILINE)

SLOW = ("`kill -9` at any moment",)

INTERRUPT = "test_an_interrupt_leaves_nothing_unverified_and_a_save_goes_on_from_there"
REACHES = "test_an_interrupt_reaches_the_caller_wherever_failures_are_kept_inside"

DAMAGED = "faults/test_damaged_states.py::test"

ELSEWHERE = {
    "Only the loss of a verifying step": "engine/test_trainer.py::test_a_bad_loss_is_known",
    "Forecasts that point the wrong way": "engine/test_many_verdicts.py::test_placebos_end",
    "Repeated alarms": "policy/test_limits.py::test_pauses_double",
    "A verifying step without an update": "engine/test_verdicts.py::test_a_step_that_the_gradient",
    "The optimizer itself raises": "engine/test_undo.py::test_an_update_that_raises",
    "The handler of a signal": f"faults/test_interrupts.py::{REACHES}",
    "Ctrl-C in a Trainer": f"integrations/test_lightning_interrupts.py::{INTERRUPT}",
    "SIGTERM in a Trainer": f"integrations/test_lightning_interrupts.py::{INTERRUPT}",
    "SLURM": "integrations/test_lightning_interrupts.py::test_a_signal_to_requeue",
    "One of several": "ranks/test_distributed.py::test_a_failure_on_one_rank",
    "The server is down": "integrations/test_logging.py::test_mlflow_gets_metrics_tags",
    "Truncated": f"{DAMAGED}_an_engine_loads_a_whole_state_or_nothing",
    "The callback's entries": f"{DAMAGED}_the_callback_loads_a_whole_state_or_nothing",
    "`hybrid_predict.pt`": "integrations/test_huggingface.py::test_a_torn_or_foreign_file",
}
"""Tests of other files that prove an entry, by the first words of both."""


@pytest.mark.parametrize(
    "fault", [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in PROOFS]
)
def test_fault_does_what_the_page_says(fault, tmp_path, monkeypatch):
    PROOFS[fault](tmp_path, monkeypatch)


def test_every_entry_of_the_page_has_one_proof():
    keys = [*PROOFS, *ELSEWHERE]
    assert [sum(title.startswith(key) for key in keys) for title in TITLES] == [1] * len(keys)
    for path, test in (place.split("::") for place in ELSEWHERE.values()):
        assert f"def {test}" in (TESTS / path).read_text(encoding="utf-8")
