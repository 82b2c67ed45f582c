"""The script that measures fast loops with and without the plug-in, at toy size."""

from __future__ import annotations

import pytest

from benchmarks.fast_loop import ON_CPU, Size, measure, ways

TOY = Size(width=4, blocks=1, batch=4, compiler="eager")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_every_way_is_measured_with_and_without_the_plug_in() -> None:
    found = measure("cpu", TOY, blocks=2, length=4)
    assert [row["way"] for row in found["rows"]] == ["none", *ON_CPU, "together"]
    for row in found["rows"]:
        full, predicted = row["held"]
        assert full == 12 and predicted > 0, row["way"]
        assert row["ratio"] > 0 and row["plain_ms"] > 0
    assert found["rows"][0]["speed"] == 1.0


def test_a_cuda_device_has_more_ways() -> None:
    assert ways("cuda").keys() - ways("cpu").keys() == {"pinned", "unread"}
    assert set(ways("cuda")["together"]) == {*ON_CPU, "pinned", "unread"}
