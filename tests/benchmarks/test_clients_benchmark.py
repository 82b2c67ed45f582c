"""The benchmark of published packages, with a client of its own in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning_models import Net, Ungated, loader

from benchmarks import clients, load
from benchmarks.clients import CLIENTS, QUIET, Client, __main__, environments, plan, table
from benchmarks.clients import train as run
from benchmarks.clients.kept import KeptBatches
from benchmarks.digests import code_digest
from benchmarks.plan import Selection
from hybrid_predict import HybridPredict
from hybrid_predict.errors import ConfigError


def train(data: Any, length: int, callbacks: Sequence[Any]) -> Any:
    trainer = L.Trainer(
        max_steps=length, callbacks=list(callbacks), enable_checkpointing=False, **QUIET
    )
    trainer.fit(Net(), data)
    return trainer


SMALL = Client(
    package="lightning",
    trains="a small net",
    metric="loss",
    length=30,
    unit="steps",
    data=lambda seed: loader(20),
    train=train,
    quality=lambda trained, data: float(
        trained.global_step + sum(p.sum() for p in trained.model.parameters())
    ),
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "client", lambda name: SMALL)
    monkeypatch.setattr(run, "quiet", lambda: None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.slow
def test_every_arm_is_trained_with_its_own_length(seed: int) -> None:
    told, rows = run.train_seed("small", seed)
    assert told["length"] == 30 and told["version"]
    by_arm = {row["arm"]: row for row in rows}
    assert list(by_arm) == list(run.ARMS)
    assert {arm: row["full_steps"] + row["predicted_steps"] for arm, row in by_arm.items()} == {
        "full": 30, "short": 20, "corrected": 20, "hybrid": 30, "auto": 30,
    }  # fmt: skip
    assert by_arm["full"]["ratio"] == 1.0 and by_arm["full"]["skill"] is None
    assert len({row["quality"] for row in rows}) >= 3, "arms are trained apart"
    assert by_arm["full"]["code"] != by_arm["hybrid"]["code"] == by_arm["auto"]["code"]


def test_a_loop_of_its_own_trains_with_the_settings_of_the_callback() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    adam = torch.optim.Adam(net.parameters())
    callback = HybridPredict(full_steps=3, predict_steps=1)
    engine = clients.engine_for(callback, net, adam, 30)
    assert callback.ledger is engine.ledger
    assert engine.config.full_steps == 3 and engine.schedule.total == 30


@pytest.mark.parametrize("name", CLIENTS)
def test_what_a_client_requires_has_a_version(name: str) -> None:
    assert all(set("=<>") & set(each) for each in clients.client(name).requires)


def test_a_results_file_has_what_its_runs_have() -> None:
    committed = load("clients.json")
    found = {(row["client"], row["seed"]): row for row in plan.seeds(committed)}
    again = plan.compiled(found)
    assert sorted(again["rows"], key=str) == sorted(committed["rows"], key=str)
    assert {**again, "rows": 0} == {**committed, "rows": 0}
    wanted = plan.ClientsPlan(Selection())
    assert set(wanted.keys({})) == found.keys() == {wanted.key(row) for row in found.values()}


def test_a_seed_holds_if_its_arms_with_the_plug_in_are_of_the_present_code() -> None:
    wanted = plan.ClientsPlan(Selection())
    row = {"rows": [{"arm": arm, "code": code_digest("hybrid")} for arm in run.ARMS]}
    assert wanted.holds(row)
    row["rows"][0]["code"] = "old"  # of a run without the plug-in
    assert wanted.holds(row)
    row["rows"][1]["code"] = "old"
    assert not wanted.holds(row)


def test_a_client_has_an_environment_of_its_own_which_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(environments.venv, "create", lambda place, **_: place.mkdir(exist_ok=True))
    monkeypatch.setattr(
        environments.subprocess, "run", lambda command, **_: calls.append(list(map(str, command)))
    )
    python = environments.interpreter(SMALL, tmp_path)
    assert python == tmp_path / "lightning" / "bin" / "python"
    assert environments.interpreter(SMALL, tmp_path) == python
    _, call = calls
    assert call[:4] == [str(python), "-m", "pip", "install"]
    assert any(each.startswith("torch==") and "+" not in each for each in call)
    environments.interpreter(replace(SMALL, requires=("numpy<9",)), tmp_path)
    assert len(calls) == 4 and "numpy<9" in calls[-1]


@pytest.mark.parametrize("cuda", [False, True])
def test_parts_for_cuda_are_removed_beside_a_torch_for_cpus(tmp_path: Path, cuda: bool) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    audio = packages / "torchaudio" / "lib" / "_torchaudio.abi3.so"
    vision = packages / "torchvision" / "_meta_registrations.py"
    runtime = packages / "torch" / "lib" / ("libc10_cuda.so" if cuda else "libc10.so")
    for path in (audio, vision, runtime):
        path.parent.mkdir(parents=True)
        path.write_text("x", "utf-8")
    environments.drop_unloadable(tmp_path)
    assert (audio.exists(), vision.read_text("utf-8")) == ((True, "x") if cuda else (False, ""))


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
    told = {**SMALL.to_dict(), "lower": lower}
    environment = {"torch": "2", "python": "3"}
    return {"environment": environment, "clients": {"small": told}, "rows": rows}


@pytest.mark.parametrize(
    ("hybrid", "lower", "worse"),
    [([1.5, 1.61, 1.4], True, True), ([1.5, 1.61, 1.4], False, False),
     ([0.9, 1.3, 0.8], True, False), ([0.5, 0.59, 0.4], False, True)],
)  # fmt: skip
def test_a_client_that_is_worse_is_told_so(hybrid: list[float], lower: bool, worse: bool) -> None:
    assert ("worse**" in table.qualities(made(hybrid, lower))) == worse


@pytest.mark.parametrize(
    ("quality", "losses", "surely"), [(0.5, 0, "none"), (1.01, 1, "none"), (1.5, 1, "1")]
)
def test_clients_that_end_worse_are_counted(quality: float, losses: int, surely: str) -> None:
    text = table.headline(made([quality] * 3))
    assert "data with 3 paired seeds, the default ends" in text
    assert f"in {losses} in the mean, significantly in {surely}, and takes 2.00" in text


def test_a_run_without_a_number_is_left_out_of_its_pair() -> None:
    text = table.qualities(made([None, 1.2, 1.0]))
    assert "+0.1 [+0.1, +0.1]" in text


def test_an_unknown_client_is_named() -> None:
    with pytest.raises(ConfigError, match="one of scvi"):
        __main__.main(["nobody"])


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_can_be_looked_at_without_its_package(name: str) -> None:
    found = clients.client(name)
    assert found.length > 0 and found.unit in ("epochs", "steps") and found.metric and found.trains


def test_a_loop_by_epochs_drops_the_batches_of_predicted_steps() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    callback, adam = Ungated(speedup=1.5), torch.optim.Adam(net.parameters())
    kept = KeptBatches(clients.engine_for(callback, net, adam, 6 * 10))
    batches, seen = [torch.randn(8, 4) for _ in range(10)], []
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
