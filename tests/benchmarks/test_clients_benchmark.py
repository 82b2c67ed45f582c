"""The benchmark of published packages, with a client of its own in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning_models import Net, Ungated, loader

from benchmarks import load
from benchmarks.clients import QUIET, About
from benchmarks.clients import train as run
from benchmarks.clients.kept import Steps
from benchmarks.plan import Selection
from benchmarks.studies import clients


def train(data: Any, length: int, callbacks: Sequence[Any]) -> Any:
    trainer = L.Trainer(
        max_steps=length, callbacks=list(callbacks), enable_checkpointing=False, **QUIET
    )
    trainer.fit(Net(), data)
    return trainer


TOLD = About("lightning", "a small net", "loss", 30, unit="steps")
SMALL = SimpleNamespace(
    data=lambda seed: loader(20),
    train=train,
    quality=lambda trained, data: float(
        trained.global_step + sum(p.sum() for p in trained.model.parameters())
    ),
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "import_module", lambda name: SMALL)
    monkeypatch.setattr(run, "CLIENTS", {"small": TOLD})
    monkeypatch.setattr(run, "quiet", lambda: None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_every_arm_is_trained_with_its_own_length() -> None:
    made = run.train_seed("small", 0)
    rows = made["rows"]
    told = made["about"]
    assert told["length"] == 30 and told["version"]
    by_arm = {row["arm"]: row for row in rows}
    assert list(by_arm) == list(run.ARMS)
    assert {arm: row["full_steps"] + row["predicted_steps"] for arm, row in by_arm.items()} == {
        "full": 30, "short": 20, "corrected": 20, "hybrid": 30, "auto": 30,
    }  # fmt: skip
    assert by_arm["full"]["ratio"] == 1.0 and by_arm["full"]["skill"] is None
    assert len({row["quality"] for row in rows}) >= 3, "arms are trained apart"
    assert by_arm["full"]["code"] != by_arm["hybrid"]["code"] == by_arm["auto"]["code"]


def test_a_results_file_has_what_its_runs_have() -> None:
    committed = load("clients.json")
    found = {(row["client"], row["seed"]): row for row in clients.seeds(committed)}
    again = clients.compiled(Selection(), list(found.values()), True, None)
    assert sorted(again["rows"], key=str) == sorted(committed["rows"], key=str)
    assert again["clients"] == committed["clients"]
    wanted = clients.ClientsPlan(Selection())
    assert set(wanted.keys({})) == found.keys() == {wanted.key(row) for row in found.values()}


def row(arm: str, seed: int, quality: float | None, ratio: float = 1.0) -> dict[str, Any]:
    return {"client": "small", "arm": arm, "seed": seed, "quality": quality, "full_steps": 20,
            "predicted_steps": 10, "seconds": 2.0, "ratio": ratio, "code": "a"}  # fmt: skip


def made(hybrid: list[float | None], lower: bool = True) -> dict[str, Any]:
    arms = {
        "full": [1.0, 1.1, 0.9],
        "short": [2.0] * 3,
        **dict.fromkeys(("corrected", "hybrid", "auto"), hybrid),
    }
    rows = [row(arm, k, q, 1 + k) for arm, values in arms.items() for k, q in enumerate(values)]
    told = {"package": TOLD.package, **asdict(TOLD), "version": "1", "lower": lower}
    environment = {"torch": "2", "python": "3"}
    return {"environment": environment, "clients": {"small": told}, "rows": rows}


@pytest.mark.parametrize(
    ("hybrid", "lower", "worse"),
    [([1.5, 1.61, 1.4], True, True), ([1.5, 1.61, 1.4], False, False),
     ([0.9, 1.3, 0.8], True, False), ([0.5, 0.59, 0.4], False, True)],
)  # fmt: skip
def test_a_client_that_is_worse_is_told_so(hybrid: list[float], lower: bool, worse: bool) -> None:
    assert ("worse**" in clients.qualities(made(hybrid, lower))) == worse


def test_a_loop_by_epochs_drops_the_batches_of_predicted_steps() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    callback = Ungated(speedup=1.5)
    adam = torch.optim.Adam(net.parameters())
    kept = Steps([callback], net, adam, 6 * 10)
    batches = [torch.randn(8, 4) for _ in range(10)]
    assert list(Steps([], net, adam, 60).over(batches)) == batches, "plain training has them all"
    seen = []
    for _ in range(6):
        over = kept.over(batches)
        assert len(over) == 10
        for batch in over:
            seen.append(batch)
            kept.see(net(batch).square().mean()).backward()
            adam.step()
            adam.zero_grad()
    ledger = callback.ledger
    assert kept.engine.done and ledger.steps == 60 and ledger.predicted_steps > 10
    assert len(seen) == ledger.full_steps, "each predicted step has dropped a batch"
