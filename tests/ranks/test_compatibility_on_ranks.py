"""Every row of the compatibility page on two ranks, with DDP and with FSDP2."""

from __future__ import annotations

import re
from typing import Any

import pytest
from torch import distributed as dist

from compatibility.test_compatibility import OUTCOMES, PAGE
from distributed_compatibility import STRATEGIES
from launcher import launch

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]

HEAD = "| set-up | on two ranks | outcome | note |"

TOGETHER, SECONDS = 30, 60
"""Rows of one start of two processes, and time that a row may take."""

SPARSE, AVERAGES = "SparseCPU", "doesn't support sharding|FSDP does not support deepcopy"
CAUSES = {
    "`BatchSizeFinder`": "Batch size finder is not supported with distributed strategies",
    "`training_step` returns `None`": "returning None in distributed training is not supported",
    "layers unfrozen on the way": "the ranks differ",
    "`BackboneFinetuning`": "the ranks differ",
    "lazy modules": "uninitialized parameter",
    "lazy modules that no forward pass has seen": "uninitialized parameter",
    "`LearningRateFinder`": "Could not find a distributed model",
    "`SGD`, fused": "_fused_sgd_.default does not have a sharding strategy",
    "`Adagrad`, fused": "_fused_adagrad_.default does not have a sharding strategy",
    "`Rprop`": "in-place operations that require placement changes",
    "`Adafactor`": "in-place operations that require placement changes",
    "`Muon`": "in-place operations that require placement changes",
    "`SparseAdam`": SPARSE,
    "sparse embedding gradients": SPARSE,
    "complex parameters": "FSDP expects uniform original parameter dtype",
    "`WeightAveraging`": AVERAGES,
    "`EMAWeightAveraging`": AVERAGES,
    "`StochasticWeightAveraging`": "Tensor-likes are not close",
    "`StochasticWeightAveraging` with batch norm": "Tensor-likes are not close",
    "`ModelPruning`": "cannot assign 'torch.FloatTensor' as parameter",
    "`64-true`": "does not support .*64-true",
}
"""What torch or Lightning says where the page says that a row is not applicable."""


def exceptions() -> dict[tuple[str, str], str]:
    """Outcomes that differ from those of one process, by strategy and set-up."""
    table = PAGE.read_text().split(HEAD)[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in x.strip("|").split(" | ")] for x in table.splitlines()[2:]]
    return {(s, row[0]): row[2] for row in rows for s in row[1].lower().split(", ")}


EXCEPTIONS = exceptions()


@pytest.fixture(scope="module", params=STRATEGIES)
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    names, found = list(OUTCOMES), {}
    for start in range(0, len(names), TOGETHER):
        rows = [f"{request.param}: {name}" for name in names[start : start + TOGETHER]]
        modules = [f"distributed_compatibility:{row}" for row in rows]
        found |= launch(modules, tmp_path_factory.mktemp("rows"), seconds=SECONDS * len(rows))
    return found


@pytest.mark.parametrize("name", OUTCOMES)
def test_row_on_two_ranks(results: dict[str, list[Any]], name: str) -> None:
    strategy = next(iter(results)).partition(":")[0]
    expected = EXCEPTIONS.get((strategy, name), OUTCOMES[name])
    for found in results[f"{strategy}: {name}"]:
        if (strategy, name) in EXCEPTIONS and expected == "not applicable":
            assert re.search(CAUSES[name], found), found
        else:
            assert found == expected


def test_every_exception_is_a_row_and_has_a_cause() -> None:
    assert {name for _, name in EXCEPTIONS} <= OUTCOMES.keys()
    failing = {name for (_, name), outcome in EXCEPTIONS.items() if outcome == "not applicable"}
    assert failing == CAUSES.keys()
