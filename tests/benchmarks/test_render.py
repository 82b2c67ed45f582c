"""Sentences of pages that are made from results files."""

import pytest

from benchmarks import render


@pytest.mark.parametrize(
    ("rounds", "load", "cores", "said"),
    [
        (1, 1.9, 2, "One start of each command. Meanwhile 2 processes competed for 2 cores."),
        (
            3,
            1.2,
            1,
            "Medians over 3 starts of each command. Meanwhile 1 process competed for 1 core.",
        ),
    ],
)
def test_times_of_commands_are_told_for_one_start_and_for_many(rounds, load, cores, said):
    rows = [{"command": "doctor", "first_output_seconds": 0.1, "seconds": 2.0}]
    data = {"commands": rows, "command_rounds": rounds, "load": load, "cores": cores}
    assert render.first_output(data).splitlines()[0] == said
