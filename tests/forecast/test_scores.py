"""What windows show about forecasts of the window before, against a replay in 64 bits."""

import copy

import numpy as np
import pytest
import torch
from loops import Bench, hurry, make_config, same_bits

from hybrid_predict.config import KINDS
from hybrid_predict.forecast.window import SAMPLE, Reading, Window, reading
from hybrid_predict.rules.pace import Lagged, Pace, carried, follow
from hybrid_predict.rules.verdict import Slopes
from hybrid_predict.scores import Scores
from hybrid_predict.torch.deltas import WeightDelta

LENGTH = 16
HALF = LENGTH // 2


def displacements(shapes, steps):
    generator = torch.Generator().manual_seed(5)
    return [[torch.randn(s, generator=generator) for s in shapes] for _ in range(steps)]


def forecast_of(moved, at):
    """The forecast of a window that opens after ``at`` displacements."""
    return [0.25 * x for x in moved[at - 1]]


def follow_with(window, moved):
    """The readings of all windows that close."""
    names, found = tuple(map(str, range(len(moved[0])))), []
    for taken, displacement in enumerate(moved, 1):
        if window.add(displacement):
            steps, size, numbers = window.close(None)
            tag = ["hidden", 0, list(names), steps, size]
            found.append(reading(tag, numbers.tolist()))
        if window.due:
            factors = (0.25,) * len(names)
            window.open(WeightDelta(names, tuple(moved[taken - 1]), factors), ())
    return found


@pytest.mark.parametrize("shapes", [[(3, 4), (5,)], [(300, 400)]], ids=["whole", "sampled"])
def test_the_forecast_of_the_window_before_meets_the_next_displacements(shapes):
    moved = displacements(shapes, 4 * LENGTH)
    found = follow_with(Window(LENGTH, moved[0], paced=True), moved)
    opened = [HALF // 4, HALF // 2, HALF, LENGTH, 2 * LENGTH, 3 * LENGTH]
    assert [one.steps for one in found] == [HALF // 4, HALF // 2, HALF] + 3 * [LENGTH]
    assert not found[0].late.any()
    for one, before, start in zip(found[1:], opened, opened[1:], strict=False):
        old = forecast_of(moved, before)
        for k, late in enumerate(one.late):
            total = sum(x[k].double() for x in moved[start : start + one.steps])
            wanted = float((total * old[k].double()).sum())
            whole = old[k].numel() <= SAMPLE
            scale = float(total.norm() * old[k].double().norm())
            assert abs(late - wanted) < (1e-5 if whole else 0.01) * scale


@pytest.mark.parametrize("paced", [False, True])
@pytest.mark.parametrize("cut", [1, 5, HALF, LENGTH - 1, LENGTH, LENGTH + 3, 2 * LENGTH + 1])
def test_a_window_continues_bit_for_bit_after_a_resume(cut, paced):
    moved = displacements([(3, 4), (5,)], 4 * LENGTH)
    window = Window(LENGTH, moved[0], paced=paced)
    early = follow_with(window, moved[:cut])
    again = Window(LENGTH, moved[0], paced=paced)
    again.load_state_dict(copy.deepcopy(window.state_dict()))
    both = [follow_with(one, moved[cut:]) for one in (window, again)]
    assert len(early) + len(both[0]) == (6 if paced else 4)
    assert same_bits(*([one.packed() for one in found] for found in both))
    assert same_bits(window.state_dict(), again.state_dict())


class Group:
    """A group as scores see it."""

    def __init__(self, decay, names=("a",)):
        self.decay, self.names = decay, names

    def fit(self, one):
        return one.square


def read(late, names=("a",), steps=LENGTH, dot=3.0, drift=2.0):
    columns = np.array([[[9.0, dot], [dot, 4.0]]])
    numbers = np.array([[0.1], [drift], [late]])
    return Reading("hidden", 0, names, steps, columns, *numbers)


def naive(before, now, decay):
    m = carried(decay, before.steps, now.steps)
    forecast, drift = before.square, float(before.drift.sum())
    early = m * float(before.gram[:, 0, 1].sum()) / before.steps
    return Lagged(float(now.late.sum()) / now.steps, early, (1 - m) * forecast, (1 - m) * drift)


def test_a_pace_follows_the_products_with_the_window_before():
    scores, group = Scores(paced=True), Group(0.9)
    first, second = read(0.0, steps=HALF), read(20.0)
    scores.add([first], [group])
    assert scores.paces["hidden", 0] == Pace()
    scores.add([second], [group])
    wanted = follow(Pace(), naive(first, second, 0.9))
    assert scores.paces["hidden", 0] == pytest.approx(wanted)
    assert wanted.advance > 0


def test_tensors_of_one_kind_are_summed():
    scores, groups = Scores(paced=True), [Group(0.9), Group(0.5, ("b",))]
    first = [read(0.0), read(0.0, ("b",), dot=1.0)]
    second = [read(20.0), read(-5.0, ("b",))]
    scores.add(first, groups)
    scores.add(second, groups)
    sides = zip(first, second, (0.9, 0.5), strict=True)
    sums = Lagged(*np.sum([naive(*side) for side in sides], 0).tolist())
    assert scores.paces["hidden", 0] == pytest.approx(follow(Pace(), sums))


def test_worth_is_of_the_predicted_steps_since_the_last_window():
    scores, group = Scores(paced=True), Group(0.0)
    slow, fine = Slopes(*[0.0] * len(Slopes._fields)), Slopes(*[0.0] * len(Slopes._fields))
    slow = slow._replace(product=-0.01, own_product=-1.0)
    fine = fine._replace(product=-2.0, own_product=-1.0)
    found = []
    for slopes in (fine, fine, slow, None, None):
        if slopes:
            scores.weigh(slopes, 2, refuted=False)
        scores.add([read(20.0 if found else 0.0)], [group])
        found.append(scores.paces["hidden", 0].advance)
    assert found[0] == 0 and found[2] < found[1] and found[3] > found[2]


def test_every_optimizer_has_a_pace_of_its_own():
    scores, groups = Scores(paced=True), [Group(0.9), Group(0.9, ("b",))]
    often, seldom = read(20.0), read(-20.0, ("b",))._replace(owner=1)
    scores.add([often, seldom], groups)
    for _ in range(2):
        scores.add([often], groups)
    assert scores.paces["hidden", 0].windows == 2 and scores.paces["hidden", 1] == Pace()
    scores.weigh(Slopes(-0.01, 1.0, -1.0, 1.0), 1, refuted=False)
    scores.add([often], groups)
    assert scores.paces["hidden", 0].verifying == 0 and scores.paces["hidden", 1].verifying == 1
    assert scores.summary["hidden"]["advance"] == scores.paces["hidden", 0].advance > 0


def test_a_number_needs_no_pace():
    scores = Scores()
    for _ in range(3):
        scores.add([read(20.0)], [Group(0.9)])
    assert not scores.paces and scores.skills["hidden"].windows == 3
    assert "advance" not in scores.summary["hidden"]


@pytest.mark.parametrize("late", [0.0, np.nan, np.inf])
def test_a_window_without_one_before_it_changes_no_pace(late):
    """A group that was split and put together again has windows of its own anew."""
    scores, group = Scores(paced=True), Group(0.9)
    for value in (0.0, 20.0, 20.0):
        scores.add([read(value)], [group])
    before = scores.paces["hidden", 0]
    scores.add([read(late)], [group])
    assert scores.paces["hidden", 0] == before and before.advance > 0
    scores.add([read(20.0)], [group])
    assert scores.paces["hidden", 0].windows == before.windows + 1


def test_a_group_that_is_not_predicted_any_more_has_no_latest_window():
    scores, group = Scores(paced=True), Group(0.9)
    scores.add([read(0.0)], [group])
    scores.add([read(20.0)], [])
    assert scores.paces["hidden", 0] == Pace()


def test_scores_continue_after_a_resume():
    scores, again, group = Scores(paced=True), Scores(paced=True), Group(0.9)
    slopes = Slopes(*[0.0] * len(Slopes._fields))._replace(product=-1.0, own_product=-1.0)
    for value in (0.0, 20.0):
        scores.add([read(value)], [group])
    scores.weigh(slopes, 3, refuted=False)
    again.load_state_dict(copy.deepcopy(scores.state_dict()))
    assert same_bits(again.state_dict(), scores.state_dict())
    for one in (scores, again):
        one.add([read(20.0)], [group])
    assert same_bits(again.state_dict(), scores.state_dict())


def windows(bench):
    return [group.memory.window for group in bench.engine._groups.predicted]


def test_after_layers_were_frozen_for_a_while_paces_wait_for_two_windows():
    bench = Bench(make_config(total_steps=400, speedup="auto"))
    groups = bench.engine._groups
    bench.train(60)
    assert all(window._before for window in windows(bench))
    layer, *_ = bench.model.children()
    layer.requires_grad_(False)
    bench.step()
    layer.requires_grad_(True)
    bench.step()
    assert not any(window._before for window in windows(bench)[:1])
    before = copy.deepcopy(groups.scores.paces)
    first = groups.scores.skills["hidden"].windows
    while groups.scores.skills["hidden"].windows == first:
        bench.step()
    changed = {key for key in before if groups.scores.paces[key] != before[key]}
    assert changed <= {("head", 0)}
    bench.train(40)
    assert groups.scores.paces["hidden", 0].windows > before["hidden", 0].windows


def test_only_kinds_with_a_pace_move():
    bench = Bench(make_config(total_steps=400, speedup="auto"))
    hurry(bench.engine, advance=1.0)
    bench.engine._groups.scores.paces["head", 0] = Pace()
    bench.train(2)
    records = bench.train(6)
    moved = {name for r in records if r.gradients for name in r.gradients.alignments}
    kinds = dict(zip(bench.engine.mapper.names, bench.engine.mapper.kinds, strict=True))
    assert {kinds[name] for name in moved} == set(KINDS) - {"head", "embedding"}
