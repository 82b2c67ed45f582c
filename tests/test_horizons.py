"""The contract that every registered horizon rule keeps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import HORIZON_CASES
from hybrid_predict import AlignmentHorizon, ConfigError, FixedHorizon
from hybrid_predict.horizons import HORIZONS, make_horizon

KINDS = ["hidden", "vector", "hidden"]
ALIGNMENTS = st.lists(st.floats(-1, 1), min_size=len(KINDS), max_size=len(KINDS))
EVENTS = st.lists(st.one_of(st.just("reject"), ALIGNMENTS), max_size=40)

every_rule = pytest.mark.parametrize("name", HORIZON_CASES)


def run(rule, events):
    """The states after each event."""
    states = [rule.init(KINDS)]
    for event in events:
        before = list(states[-1])
        if event == "reject":
            states.append(rule.reject(states[-1], KINDS))
        else:
            states.append(rule.update(states[-1], event, KINDS))
        assert states[-2] == before, "the rule changed its argument"
    return states


def test_table_covers_every_horizon_rule():
    assert {name: type(case.rule) for name, case in HORIZON_CASES.items()} == HORIZONS


@every_rule
@given(events=EVENTS)
def test_horizons_keep_their_bounds_per_kind(name, events):
    case = HORIZON_CASES[name]
    for state in run(case.rule, events):
        for kind, horizon in zip(KINDS, case.rule.horizons(state), strict=True):
            low, high = case.bounds[kind]
            assert low * (1 - 1e-9) <= horizon <= high * (1 + 1e-9)


@every_rule
@given(events=EVENTS)
def test_rejection_never_lengthens_a_horizon(name, events):
    rule = HORIZON_CASES[name].rule
    state = run(rule, events)[-1]
    before, after = rule.horizons(state), rule.horizons(rule.reject(state, KINDS))
    assert all(a <= b for a, b in zip(after, before, strict=True))


@every_rule
@given(events=EVENTS, low=ALIGNMENTS, rise=st.floats(0, 2))
def test_better_alignment_never_shortens_a_horizon(name, events, low, rise):
    rule = HORIZON_CASES[name].rule
    state = run(rule, events)[-1]
    high = [min(1.0, c + rise) for c in low]
    worse, better = (rule.horizons(rule.update(state, c, KINDS)) for c in (low, high))
    assert all(w <= b for w, b in zip(worse, better, strict=True))


@every_rule
@given(events=EVENTS)
def test_rule_is_pure_and_repeatable(name, events):
    rule = HORIZON_CASES[name].rule
    assert run(rule, events) == run(rule, events)


@pytest.mark.parametrize(("alignment", "end"), [(1.0, 15.0), (-1.0, 1.0)])
def test_alignment_horizon_reaches_its_bounds(alignment, end):
    rule = HORIZON_CASES["alignment"].rule
    states = run(rule, [[alignment] * 3] * 60)
    assert rule.horizons(states[-1])[0] == pytest.approx(end)


def test_alignment_horizon_stays_where_alignment_meets_the_target():
    rule = AlignmentHorizon(target=0.2)
    state = [math.log1p(4.0)]
    assert rule.horizons(rule.update(state, [0.2], ["vector"])) == pytest.approx([4.0])


def test_rejection_halves_the_logarithm_of_the_gain():
    rule = AlignmentHorizon(floors={"hidden": 0.0})
    assert rule.horizons(rule.reject([math.log1p(8.0)], ["hidden"])) == pytest.approx([2.0])


NOT_POSITIVE = (0.0, -1.0, math.inf, math.nan)


@pytest.mark.parametrize(
    ("cls", "argument", "value", "reported"),
    [(FixedHorizon, "updates", v, "updates") for v in (-1.0, math.inf, math.nan)]
    + [(AlignmentHorizon, name, v, name) for name in ("longest", "rate") for v in NOT_POSITIVE]
    + [(AlignmentHorizon, "target", v, "target") for v in (-1.0, 1.0, math.nan)]
    + [(AlignmentHorizon, "floors", {"head": v}, r"floors\['head'\]") for v in (-1.0, 99.0)],
)
def test_hyperparameters_out_of_range_are_refused(cls, argument, value, reported):
    with pytest.raises(ConfigError, match=f"^{reported}: expected"):
        cls(**{argument: value})


@every_rule
def test_rule_is_found_by_name_and_taken_as_an_object(name):
    assert make_horizon(name) == HORIZONS[name]()
    rule = HORIZON_CASES[name].rule
    assert make_horizon(rule) is rule


@pytest.mark.parametrize("choice", ["adaptive", None, 3])
def test_unknown_rule_is_refused_with_the_known_names(choice):
    with pytest.raises(ConfigError, match="horizon: expected one of alignment, fixed"):
        make_horizon(choice)
