"""Parts that fail, and what must hold after each failure."""

import copy
import io
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import hybrid_predict
from hybrid_predict import LinearPredictor, MomentumPredictor, SpectralPredictor, WeightDelta
from hybrid_predict.predictors import AbstractPredictor
from loops import Bench, make_config, same_bits

ROOT = str(Path(hybrid_predict.__file__).parent)


def state(bench):
    """Copies of weights, buffers and optimizer state."""
    trace = bench.trace()
    return trace["model"], trace["optimizer"]


def replaced(value, path, new):
    """A copy with another leaf."""
    copied = copy.deepcopy(value)
    place = copied
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return copied


def check_consistent(bench):
    """What holds between any two full steps, whatever went wrong before."""
    engine = bench.engine
    assert not engine.in_step and not engine.mapper.displaced
    assert all(torch.isfinite(p).all() for p in bench.model.parameters())
    counts = {float(s["step"]) for s in bench.optimizer.state.values()}
    assert len(counts) <= 1
    assert all(torch.isfinite(v).all() for s in bench.optimizer.state.values() for v in s.values())
    ledger = engine.ledger
    read = ledger.accepted + ledger.shrunk + ledger.rejected
    assert 0 <= ledger.forecasts - read <= engine.config.lag
    assert ledger.full_steps <= ledger.equivalent_steps <= engine.clock.total


def check_goes_on(bench, steps=4):
    """The run continues, and what is saved of it can be loaded without running code."""
    check_consistent(bench)
    for _ in range(steps):
        bench.step()
        check_consistent(bench)
    buffer = io.BytesIO()
    torch.save(bench.engine.state_dict(), buffer)
    buffer.seek(0)
    fresh = Bench(bench.engine.config)
    fresh.engine.load_state_dict(torch.load(buffer, weights_only=True))
    assert same_bits(fresh.engine.state_dict(), bench.engine.state_dict())


def check_plain_from_here(bench, words, steps=6):
    """Forecasts have stopped for the given reason, and the rest is the plain loop, bit for bit."""
    check_consistent(bench)
    (reason,) = [e["reason"] for e in bench.engine.ledger.events if "handed over" in e["reason"]]
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
    assert {r.horizon for r in records} == {0.0} and {r.ticks for r in records} == {1}
    assert same_bits(state(plain), state(bench))


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
    """Raises in one method from a number of observations on."""

    where: str = "forecast"
    error: type[BaseException] = ZeroDivisionError
    after: int = 5

    def observe(self, state, observed, applied, backend, lengths=None):
        super().observe(state, observed, applied, backend, lengths)
        self._fail("observe", state)

    def forecast(self, state, horizons, *, closed_loop=True):
        self._fail("forecast", state)
        return super().forecast(state, horizons, closed_loop=closed_loop)

    def _fail(self, method, state):
        if method == self.where and state.count >= self.after:
            raise self.error("no more")


@dataclass(frozen=True, kw_only=True)
class FailingUpdate(SpectralPredictor):
    """Raises when it is shown an optimizer's own updates, from a number of observations on."""

    error: type[BaseException] = ZeroDivisionError
    after: int = 5

    def observe(self, state, observed, applied, backend, lengths=None):
        super().observe(state, observed, applied, backend, lengths)
        if state.count >= self.after:
            raise self.error("no more")


@dataclass(frozen=True, kw_only=True)
class Reshaped(MomentumPredictor):
    """Gives forecasts that a function changes, from a number of observations on."""

    change: object = None
    after: int = 0

    def forecast(self, state, horizons, *, closed_loop=True):
        delta = super().forecast(state, horizons, closed_loop=closed_loop)
        return self.change(delta) if state.count >= self.after else delta


@dataclass(frozen=True, kw_only=True)
class WrongWay(LinearPredictor):
    """Forecasts the way back, many times too far."""

    def forecast(self, state, horizons, *, closed_loop=True):
        return super().forecast(state, horizons, closed_loop=closed_loop).scaled(-30.0)


def directions(function):
    """A change of every direction."""
    return lambda d: WeightDelta(d.names, tuple(map(function, d.directions)), d.factors)


def with_predictor(predictor: AbstractPredictor, **changes):
    kinds = ("hidden", "embedding", "head", "vector")
    return Bench(make_config(predictors=dict.fromkeys(kinds, predictor), **changes))


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line of the package that is run inside the block."""

    def __init__(self, at=-1):
        self.at, self.lines = at, 0

    def _trace(self, frame, event, arg):
        # An interrupt inside the handling of an interrupt is not what is asked for here.
        inside = frame.f_code.co_filename.startswith(ROOT)
        if inside and frame.f_code.co_name not in ("retreat", "contained", "__exit__"):
            if event == "line":
                self.lines += 1
                if self.lines - 1 == self.at:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return self._trace
        return self._trace if inside or event == "call" else None

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)


def interrupt_lines(model, every):
    """Ctrl-C at every n-th line of a full step leaves the state before it or the one after it."""

    def prepared():
        bench = Bench(make_config(lag=1), model)
        bench.train(6)
        return bench

    counting, bench = Interrupt(), prepared()
    before = state(bench)
    with counting:
        bench.step()
    after = state(bench)
    assert counting.lines > 300 and not same_bits(before, after)
    seen = set()
    for at in range(0, counting.lines, every):
        bench = prepared()
        with pytest.raises(KeyboardInterrupt), Interrupt(at):
            bench.step()
        bench.engine.detach()
        found = state(bench)
        assert same_bits(found, before) or same_bits(found, after), at
        seen.add(same_bits(found, after))
        assert not bench.model._state_dict_hooks
    assert seen == {True, False}
