"""An interrupt at any line leaves the weights before a full step or after it, and is not lost."""

import ctypes
import signal
import threading
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning_models import Net, fit
from loops import same_bits

from hybrid_predict import FittedPredictor, HybridPredict
from hybrid_predict.errors import raise_interrupt
from hybrid_predict.ledger import FELL_BACK
from hybrid_predict.step import Step
from interrupts import interrupt_and_go_on, interrupt_lines, prepared


@pytest.mark.slow
@pytest.mark.parametrize(("model", "every"), [("mlp", 3), ("conv", 7)])
def test_ctrl_c_at_any_line_leaves_no_mixture(model, every):
    seen = interrupt_lines(model, every)
    assert seen["before"] > seen["between"]


def test_an_update_that_its_hook_has_not_counted_is_undone_with_the_predicted_steps(monkeypatch):
    bench = prepared("mlp")
    before = bench.kept()[0]
    monkeypatch.setattr(Step, "count_update", interrupting)
    with pytest.raises(KeyboardInterrupt):
        bench.step()
    assert not same_bits(bench.kept()[0], before)
    bench.engine.state_dict()
    assert same_bits(bench.kept()[0], before)


@pytest.mark.parametrize("every", [317, pytest.param(7, marks=pytest.mark.slow)])
def test_a_run_goes_on_after_an_interrupt_at_any_line(every):
    interrupt_and_go_on("mlp", every, KeyboardInterrupt)


def interrupting(*_):
    raise KeyboardInterrupt


@contextmanager
def failures_suppressed():
    """Does what the plug-in does with failures of its own."""
    try:
        yield
    except Exception as error:
        raise_interrupt(error)


def late(signum, frame):
    raise TimeoutError("the user's time limit")


class Stopped(Exception):
    """What another thread puts into this one."""


def signalled(*_, **__):
    signal.raise_signal(signal.SIGUSR1)


@pytest.fixture
def handle():
    before = signal.getsignal(signal.SIGUSR1)
    yield partial(signal.signal, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_the_error_of_a_signal_handler_is_an_interrupt(handle):
    handle(late)
    with pytest.raises(TimeoutError), failures_suppressed():
        signalled()
    with failures_suppressed():
        late(1, None)  # called, not interrupted


PLACES = [
    "forecast.predicted.PredictedSteps.take",
    "optimizers.trial._decay",
    "runs.log.append_line",
    "integrations.reporter.overview",
]


class Descent(torch.optim.SGD):
    """A class that is not torch's own, so that a copy of it is tried."""


class Descending(Net):
    def configure_optimizers(self):
        return Descent(self.parameters(), lr=0.01)


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_reaches_the_caller_wherever_failures_are_kept_inside(
    place, handle, monkeypatch, tmp_path
):
    handle(late)
    monkeypatch.setattr(f"hybrid_predict.{place}", signalled)
    predictors = {"hidden": FittedPredictor(gated=False)}
    callback = HybridPredict(2, warmup_steps=4, predictors=predictors, log_dir=tmp_path)
    with pytest.raises(TimeoutError):
        fit([callback], Descending(), max_steps=12, logger=CSVLogger(tmp_path))


def test_an_error_that_another_thread_puts_into_a_step_is_an_interrupt(monkeypatch):
    bench = prepared("mlp")
    put = ctypes.pythonapi.PyThreadState_SetAsyncExc
    arguments = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Stopped)
    monkeypatch.setattr(bench.engine.optimizer, "forget_calls", partial(put, *arguments))
    with pytest.raises(Stopped):
        bench.step()
    assert not bench.engine.ledger.last_event(FELL_BACK)[1]
