"""Skill is what a replay of the whole trajectory gives, and its bound is told by few windows."""

import copy
import math

import numpy as np
import pytest
import torch
from loops import Bench, make_config, same_bits
from torch import nn

from hybrid_predict import CheckpointError, HybridConfig, HybridEngine, MomentumPredictor
from hybrid_predict.forecast.window import SAMPLE, Reading, Window, reading, window_length
from hybrid_predict.rules.skill import MEMORY, RESOLUTION, SHORTEST, Skill
from hybrid_predict.torch.deltas import WeightDelta

LENGTH = 20


def products(cosine, moved=1.0, chance=0.0, steps=LENGTH, made=1.0):
    """A reading of one tensor whose forecast and displacement have a given cosine.

    ``moved`` is the length of the mean displacement and ``made`` that of the forecast, in lengths
    of the drift.
    """
    total = steps * moved
    dot = cosine * total * made
    gram = np.array([[total**2, dot], [dot, made**2]])
    chance = np.array([chance * (total * made) ** 2])
    return Reading("hidden", 0, ("w",), steps, gram[None], chance, np.ones(1))


def read(skill, *readings):
    """Show a skill windows, one after the other, whose forecasts stay as long as they were."""
    for one in readings:
        skill.add([one], [one.square])


def test_a_window_is_as_long_as_the_optimizer_remembers():
    assert [window_length(m) for m in (0.0, 0.5, 0.9, 0.95, 0.99)] == [20, 20, 20, 40, 200]


def test_nothing_is_known_before_two_windows():
    skill = Skill()
    read(skill, products(0.9))
    assert not skill.known and not skill.enough
    read(skill, products(0.9))
    assert skill.known and skill.enough
    assert skill.mean == pytest.approx(0.81)
    assert skill.lower == pytest.approx(0.81 - 2 * RESOLUTION / math.sqrt(2))


def test_a_negative_cosine_is_negative_skill():
    skill = Skill()
    for _ in range(3):
        read(skill, products(-0.5))
    assert skill.mean == pytest.approx(-0.25)
    assert not skill.enough


@pytest.mark.parametrize("count", [2, 5, MEMORY])
def test_the_bound_is_two_standard_errors_below_the_mean(count):
    values = np.linspace(0.1, 0.9, count)
    skill = Skill()
    for value in values:
        read(skill, products(math.sqrt(value)))
    assert skill.mean == pytest.approx(values.mean())
    error = values.std(ddof=1) / math.sqrt(count)
    assert skill.lower == pytest.approx(values.mean() - 2 * error)


def test_forecasts_that_chance_explains_have_a_wide_interval():
    skill = Skill()
    for _ in range(4):
        read(skill, products(0.3, chance=0.05))
    assert skill.lower == pytest.approx(0.09 - 1.5 * math.sqrt(3) * 0.05)
    assert not skill.enough


def test_short_forecasts_are_not_made_however_sure():
    skill = Skill()
    read(skill, *[products(0.9, moved=0.25, made=SHORTEST - 0.01)] * 4)
    assert skill.lower > 0.5
    assert not skill.enough
    read(skill, products(0.9, moved=0.25, made=SHORTEST))
    assert skill.enough


def test_the_gate_tests_the_length_of_the_next_step_and_not_that_of_the_window():
    skill = Skill()
    for _ in range(3):
        skill.add([products(0.9)], [0.2**2])
    assert skill.length == pytest.approx(0.2)
    assert skill.lower > 0.5 and not skill.enough


@pytest.mark.parametrize(("moved", "made"), [(0.5, 0.5), (2.0, 0.5), (0.5, 0.1)])
def test_fitted_length_and_error_are_those_of_the_forecast_that_was_made(moved, made):
    skill, cosine = Skill(), 0.6
    read(skill, *[products(cosine, moved=moved, made=made, steps=k) for k in (10, 20, 20)])
    assert skill.length == pytest.approx(made)
    assert skill.fitted == pytest.approx(cosine * moved)
    off = np.array([made, 0.0]) - moved * np.array([cosine, math.sqrt(1 - cosine**2)])
    assert skill.error == pytest.approx(float(off @ off) / moved**2)


def test_a_negated_forecast_is_worse_than_none():
    skill = Skill()
    read(skill, *[products(-0.5, made=0.5)] * 2)
    assert skill.error > 1.0


def test_old_windows_are_forgotten():
    skill = Skill()
    for cosine in [0.9] * 50 + [-0.9] * 50:
        read(skill, products(cosine))
    assert skill.mean < -0.6
    assert skill.windows == 100


def test_windows_without_movement_or_forecast_are_passed_over():
    skill = Skill()
    empty = np.zeros((1, 2, 2))
    read(skill, Reading("hidden", 0, ("w",), LENGTH, empty, np.zeros(1), np.zeros(1)))
    still = products(0.5).gram.copy()
    still[:, 0] = still[:, :, 0] = 0.0
    read(skill, Reading("hidden", 0, ("w",), LENGTH, still, np.zeros(1), np.ones(1)))
    assert skill == Skill()


def test_a_saved_skill_goes_on_and_a_damaged_one_is_refused():
    skill = Skill()
    read(skill, products(0.4))
    assert Skill.from_state(skill.state_dict()) == skill
    with pytest.raises(CheckpointError, match="skill"):
        Skill.from_state({**skill.state_dict(), "mean": math.nan})


def displaced(values, steps=1):
    generator = torch.Generator().manual_seed(5)
    return [
        [torch.randn(v.shape, generator=generator).to(v.dtype) for v in values]
        for _ in range(steps)
    ]


@pytest.mark.parametrize("shapes", [[(3, 4), (5,)], [(300, 400)]], ids=["whole", "sampled"])
def test_products_are_those_of_whole_tensors(shapes):
    values = [torch.zeros(s, dtype=torch.float64) for s in shapes]
    window = Window(LENGTH, values)
    half = LENGTH // 2
    *early, first = displaced(values, half)
    rest = displaced(values, half)
    assert not any(map(window.add, early))
    assert window.idle and not window.due
    assert not window.add(first)
    assert window.due
    delta = WeightDelta(("a", "b")[: len(values)], tuple(first), tuple([0.5] * len(values)))
    window.open(delta, [first])
    full = [window.add(moved) for moved in rest]
    assert full == [False] * (half - 1) + [True]
    assert window.count == half
    names = list(delta.names)
    found = reading(["hidden", 0, names, half, 1], window.close(None).tolist())
    assert window.idle
    for k in range(len(values)):
        moved = sum(r[k] for r in rest)
        columns = torch.stack([moved, 0.5 * first[k], first[k]]).flatten(1)
        wanted = (columns @ columns.T).numpy()
        share = values[k].numel() / min(values[k].numel(), SAMPLE)
        near = 1e-4 if share == 1 else 0.05
        np.testing.assert_allclose(found.gram[k] / wanted.max(), wanted / wanted.max(), atol=near)
        chance = float((columns[0] * columns[1]).square().sum()) * share
        assert found.chance[k] == pytest.approx(chance, rel=0.1)


def test_the_sample_is_fixed_and_nothing_is_drawn_for_it():
    values = [torch.zeros(300, 400)]
    state = torch.get_rng_state()
    windows = [Window(LENGTH, values) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    for window in windows:
        for moved in displaced(values, 3):
            window.add(moved)
    assert same_bits(windows[0].state_dict(), windows[1].state_dict())
    assert windows[0].state_dict()["drift"][0].numel() == SAMPLE


def test_samples_of_other_tensors_are_refused():
    window = Window(LENGTH, [torch.zeros(3, 4)])
    other = Window(LENGTH, [torch.zeros(3, 5)]).state_dict()
    with pytest.raises(CheckpointError, match="samples of these tensors"):
        window.load_state_dict(other)


def network():
    torch.manual_seed(3)
    layers = nn.Linear(16, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 300)
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(300, 1))


@pytest.mark.parametrize("lag", [0, 3])
def test_skill_is_that_of_a_replay_in_64_bits(lag):
    """The trajectory is saved at every full step; a predicted step moves nothing at coefficient 0,
    but it has a direction, so the replay measures the drift's."""
    model, decay = network(), 0.9
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    predictor = MomentumPredictor(decay=decay, coefficient=1e-6, gated=False)
    config = HybridConfig(
        total_steps=170, speedup=1.2, lag=lag, predictors={"hidden": predictor}, max_overhead=1e9
    )
    engine = HybridEngine(model, optimizer, config)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / 200)
    hidden = [model[k].weight for k in (0, 2, 4)]
    displacements = []
    while not engine.done:
        engine.before_step()
        x = torch.randn(32, 16)
        loss = (model(x) - x.sum(1, keepdim=True).sin()).square().mean()
        loss.backward()
        before = [p.detach().double().clone() for p in hidden]
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        optimizer.zero_grad()
        moved = [(p.detach().double() - b) / rate for p, b in zip(hidden, before, strict=True)]
        displacements.append(torch.cat([m.flatten() for m in moved]))
        record = engine.after_step(loss)
        for _ in range(record.ticks):
            scheduler.step()
    drift, skills, opened, total = 0.0, [], None, 0.0
    for t, moved in enumerate(displacements, 1):
        if opened is not None:
            total = total + moved
            if t % LENGTH == 0:
                cosine = float(opened @ total / opened.norm() / total.norm())
                skills.append(cosine * abs(cosine))
                opened = None
        own = min(decay, 1 - 1 / t)
        drift = own * drift + (1 - own) * moved
        if opened is None and t >= LENGTH // 2:
            opened, total = drift.clone(), 0.0
    assert len(skills) > 5
    assert engine.ledger.skill == pytest.approx(np.mean(skills), abs=0.005)
    assert engine.ledger.skills["hidden"]["windows"] == len(skills)
    assert record.skill == engine.ledger.skill


@pytest.mark.parametrize("at", [5, 10, 20, 22, 43, 60, 83])
@pytest.mark.parametrize("lag", [0, 2])
def test_a_gated_run_resumes_bit_for_bit_inside_a_window(at, lag):
    config = make_config(
        total_steps=140, lag=lag, speedup=1.3, predictors={"hidden": "fitted", "head": "momentum"}
    )
    whole = Bench(config)
    whole.train(at)
    again = Bench(config)
    again.engine.load_state_dict(copy.deepcopy(whole.engine.state_dict()))
    again.model.load_state_dict(whole.model.state_dict())
    again.optimizer.load_state_dict(copy.deepcopy(whole.optimizer.state_dict()))
    again.taken = whole.taken
    random = torch.get_rng_state()
    left = [r.predicted for r in whole.finish()]
    torch.set_rng_state(random)
    assert [r.predicted for r in again.finish()] == left
    assert same_bits(again.trace()["model"], whole.trace()["model"])
    assert again.engine.ledger.skills == whole.engine.ledger.skills
    assert again.engine.ledger.skills["hidden"]["windows"] > 3


def test_a_window_with_numbers_beyond_32_bits_is_passed_over():
    """It would make the bound no number for ever, and the state one that cannot be loaded."""
    skill, sound = Skill(), Skill()
    for chance in (0.0, math.inf, 0.0, math.nan, 0.0):
        read(skill, products(0.9, chance=chance))
        if chance == 0.0:
            read(sound, products(0.9))
    assert skill == sound and skill.enough
    assert Skill.from_state(skill.state_dict()) == skill
