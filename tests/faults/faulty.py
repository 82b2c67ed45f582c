"""Parts that fail, and what must hold after each failure."""

import copy
import linecache
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from loops import Bench, loaded, make_config, same_bits, save

import hybrid_predict
from hybrid_predict import MomentumPredictor, SpectralUpdate
from hybrid_predict.config import KINDS

ROOT = str(Path(hybrid_predict.__file__).parent)


def check_consistent(bench):
    """What holds between any two full steps, whatever went wrong before."""
    engine = bench.engine
    assert not engine.in_step
    assert all(torch.isfinite(p).all() for p in bench.model.parameters())
    counts = {float(s["step"]) for s in bench.optimizer.state.values()}
    assert len(counts) <= 1
    assert all(torch.isfinite(v).all() for s in bench.optimizer.state.values() for v in s.values())
    ledger = engine.ledger
    assert ledger.steps == ledger.full_steps + ledger.predicted_steps <= engine.schedule.total


def check_goes_on(bench, steps=4):
    """The run continues, and what is saved of it can be loaded without running code."""
    check_consistent(bench)
    for _ in range(steps):
        bench.step()
        check_consistent(bench)
    fresh = Bench(bench.engine.config)
    fresh.engine.load_state_dict(loaded(save(bench))["engine"])
    assert same_bits(fresh.engine.state_dict(), bench.engine.state_dict())


def check_plain_from_here(bench, words, steps=6):
    """The plug-in's part has ended for the given reason, and the rest is the plain loop's, bit for
    bit."""
    check_consistent(bench)
    (reason,) = [r for r in bench.reasons if r.startswith("fell back to plain training")]
    assert words in reason
    random = torch.get_rng_state()
    plain = Bench(None)
    plain.model.load_state_dict(bench.model.state_dict())
    plain.optimizer.load_state_dict(copy.deepcopy(bench.optimizer.state_dict()))
    plain.taken = bench.taken
    torch.set_rng_state(random)
    plain.train(steps)
    torch.set_rng_state(random)
    records = bench.train(steps)
    assert {(r.predicted, r.ticks, r.phase.value) for r in records} == {(0, 1, "plain")}
    assert same_bits(plain.kept(), bench.kept())


class Log(logging.Handler):
    """Collects what the package logs at warning level."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self):
        logging.getLogger("hybrid_predict").addHandler(self)
        return self

    def __exit__(self, *_):
        logging.getLogger("hybrid_predict").removeHandler(self)


@dataclass(frozen=True, kw_only=True)
class Failing(MomentumPredictor):
    """Raises in its forecasts from a number of displacements on."""

    error: type[BaseException] = ZeroDivisionError
    after: int = 5

    def directions(self, drift, count):
        if count >= self.after:
            raise self.error("no more")
        return drift


@dataclass(frozen=True, kw_only=True)
class FailingUpdate(SpectralUpdate):
    """Raises from its n-th direction on."""

    error: type[BaseException] = ZeroDivisionError
    after: int = 5
    calls: list[None] = field(default_factory=list, compare=False, repr=False)

    def direction(self, *args):
        self._fail()
        return super().direction(*args)

    def _fail(self):
        self.calls.append(None)
        if len(self.calls) >= self.after:
            raise self.error("no more")


@dataclass(frozen=True, kw_only=True)
class Changed(MomentumPredictor):
    """Forecasts along directions that a function changes, from a number of displacements on."""

    change: Callable[[torch.Tensor], torch.Tensor] | None = None
    after: int = 0

    def directions(self, drift, count):
        return [*map(self.change, drift)] if count >= self.after else drift


@dataclass(frozen=True, kw_only=True)
class ReshapedUpdate(SpectralUpdate):
    """Gives directions that a function changes."""

    change: Callable[[list[torch.Tensor]], object] | None = None

    def direction(self, *args):
        return self.change(super().direction(*args))


def with_predictor(predictor, **changes):
    """A run in which one predictor forecasts every parameter, whatever its skill."""
    predictor = replace(predictor, gated=False)
    return Bench(make_config(predictors=dict.fromkeys(KINDS, predictor), **changes))


def with_update(update, **changes):
    """A run in which one update corrects every matrix."""
    kinds = ("hidden", "embedding", "head")
    return Bench(make_config(updates=dict.fromkeys(kinds, update), **changes))


class Interrupt:
    """Raises an error at the n-th line of the package that is run inside the block."""

    def __init__(self, at=-1, error=KeyboardInterrupt):
        self.at, self.error, self.lines, self._entered = at, error, 0, set()

    def _trace(self, frame, event, arg):
        # An interrupt inside the handling of an interrupt is not what is asked for here.
        inside = frame.f_code.co_filename.startswith(ROOT)
        if inside and frame.f_code.co_name not in ("undo", "_contained", "__exit__"):
            if event == "line" and not self._leaves_a_block(frame):
                self.lines += 1
                if self.lines - 1 == self.at:
                    sys.settrace(None)
                    raise self.error
            return self._trace
        return self._trace if inside or event == "call" else None

    def _leaves_a_block(self, frame):
        """Whether a ``with`` line is met again at its end, where Python looks for no signals."""
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if not line.lstrip().startswith("with "):
            return False
        self._entered ^= {(id(frame), frame.f_lineno)}
        return (id(frame), frame.f_lineno) not in self._entered

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)
