"""What corrected updates send and compute is what docs/distributed.md says."""

from __future__ import annotations

from typing import Any

import pytest
from torch import distributed as dist

from distributed_traffic import network
from hybrid_predict.tensors.shapes import direction_operations
from hybrid_predict.updates.spectral import SpectralUpdate
from launcher import launch

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]

SHAPES = [layer.weight.shape for layer in network()][:-1]

ENTRIES = sum(shape.numel() for shape in SHAPES)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return launch(["distributed_traffic"], tmp_path_factory.mktemp("traffic"))


@pytest.mark.parametrize("setup", ["DDP", "FSDP2", "HSDP"])
def test_two_ranks_share_what_corrected_updates_compute(
    results: dict[str, list[Any]], setup: str
) -> None:
    ranks = results[setup]
    # Torch does not count inverses: here two of each matrix, as it is an early full step.
    inverses = sum(2 * min(shape) ** 3 for shape in SHAPES)
    alone = direction_operations(SHAPES, SpectralUpdate().longest, 1, products=False) - inverses
    assert sum(rank["owned"] for rank in ranks) == len(SHAPES)
    assert sum(rank["operations"] for rank in ranks) == alone
    assert max(rank["operations"] for rank in ranks) <= 0.55 * alone


@pytest.mark.parametrize("setup", ["DDP", "FSDP2", "HSDP"])
def test_two_ranks_together_receive_each_matrix_once(
    results: dict[str, list[Any]], setup: str
) -> None:
    """With FSDP2 half of it on the way to its owner, and half on the way back."""
    received = sum(
        size
        for rank in results[setup]
        for name, size in rank["received"].items()
        if name != "all_reduce"
    )
    # Vectors about whole matrices are sent with their directions.
    assert received / (4 * ENTRIES) == pytest.approx(1.0, rel=0.06 if setup == "DDP" else 1e-9)
