"""The contract that every registered horizon rule keeps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import HORIZON_CASES
from hybrid_predict import AlignmentHorizon, ConfigError, FixedHorizon
from hybrid_predict.horizons import HORIZONS, make_horizon
from hybrid_predict.testing.horizons import KINDS, REJECTION, check_course, run

ALIGNMENTS = st.lists(st.floats(-1, 1), min_size=len(KINDS), max_size=len(KINDS))
EVENTS = st.lists(st.one_of(st.just(REJECTION), ALIGNMENTS), max_size=40)

every_rule = pytest.mark.parametrize("name", HORIZON_CASES)


def test_table_covers_every_horizon_rule():
    assert {name: type(case.rule) for name, case in HORIZON_CASES.items()} == HORIZONS


@every_rule
@given(events=EVENTS, low=ALIGNMENTS, rise=st.floats(0, 2))
def test_rule_keeps_its_contract_and_its_bounds_per_kind(name, events, low, rise):
    case = HORIZON_CASES[name]
    for horizons in check_course(case.rule, events, low, rise):
        for kind, horizon in zip(KINDS, horizons, strict=True):
            least, most = case.bounds[kind]
            assert least * (1 - 1e-9) <= horizon <= most * (1 + 1e-9)


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
