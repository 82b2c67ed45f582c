"""Ctrl-C at any line leaves the weights before a full step or after it, and a run can go on."""

import pytest

from interrupts import interrupt_and_go_on, interrupt_lines


@pytest.mark.slow
@pytest.mark.parametrize(("model", "every"), [("mlp", 2), ("conv", 5), ("partly-trained", 5)])
def test_ctrl_c_at_any_line_leaves_no_mixture(model, every):
    seen = interrupt_lines(model, every)
    assert seen["before"] > seen["between"]


@pytest.mark.parametrize("every", [211, pytest.param(7, marks=pytest.mark.slow)])
def test_a_run_goes_on_after_ctrl_c_at_any_line(every):
    interrupt_and_go_on("mlp", every)
