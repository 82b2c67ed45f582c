"""Audits that are refused because their arms could not be compared, and folders of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml
from audit_task import STEPS, Task, config, keep, kept
from lightning_models import Net, loader

from hybrid_predict import ConfigError
from hybrid_predict.audit import audit, plan_audit
from hybrid_predict.runs.evidence import FULL, HYBRID, SHORT
from hybrid_predict.runs.runtime import locked

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


@pytest.mark.parametrize(
    ("options", "source", "said"),
    [
        ({"hybrid": {"warmup_steps": 5}}, {}, "other hybrid. Choose another folder"),
        ({"metric": "train_loss"}, {}, "other metric"),
        ({}, {"file": "b"}, "other file"),
    ],
)
def test_arms_of_another_audit_are_refused(tmp_path, options, source, said):
    audit(Task(), config(seeds=1), tmp_path, source={"file": "a"})
    task = Task()
    for call in (audit, plan_audit):
        with pytest.raises(ConfigError) as raised:
            call(task, config(**options), tmp_path, source={"file": "a", **source})
        assert said in str(raised.value).replace("'", "")
        assert raised.value.argument == str(tmp_path)
    assert task.calls == []


def test_unreadable_arm_is_told_and_trained_again(tmp_path, caplog):
    audit(Task(), config(seeds=1), tmp_path)
    torn = (tmp_path / "runs.jsonl").read_text()[:-9]
    (tmp_path / "runs.jsonl").write_text(torn)
    task = Task()
    assert len(audit(task, config(seeds=1), tmp_path).results["runs"]) == 4
    assert task.calls == [(HYBRID, 0)]
    assert "line 4 is not a finished run" in caplog.text
    again = Task()
    audit(again, config(seeds=1), tmp_path)
    assert again.calls == []


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"schema": 2, "runs": [{"arm": "full"}]}'])
def test_results_of_others_are_refused_unless_they_are_to_go(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    task = Task()
    with pytest.raises(ConfigError, match=r"results.*--overwrite"):
        audit(task, config(seeds=1), tmp_path)
    assert (task.calls, (tmp_path / "results.json").read_text()) == ([], text)
    assert not audit(task, config(seeds=1), tmp_path, overwrite=True).partial
    assert len(task.calls) == 4


def test_damaged_results_are_made_anew_from_the_arms(tmp_path):
    results = audit(Task(), config(seeds=1), tmp_path).results
    (tmp_path / "results.json").write_text("{")
    task = Task()
    assert audit(task, config(seeds=1), tmp_path).results["runs"] == results["runs"]
    assert task.calls == []


def test_folder_that_cannot_be_made_is_told():
    with pytest.raises(ConfigError, match="folder: expected a folder that can be written to"):
        audit(Task(), config(), f"{__file__}/below")


def test_model_that_is_not_built_anew_is_refused_before_it_is_trained_on(tmp_path):
    model = Net()

    def make_run(arm: Any) -> Any:
        return arm.trainer(max_steps=STEPS, accelerator="cpu"), model, (loader(), loader(2))

    with pytest.raises(ConfigError, match=r"others in short than in full, seed 0.*Build the model"):
        audit(make_run, config(), tmp_path)
    assert model.batches == STEPS


class Wide(Net):
    def __init__(self) -> None:
        super().__init__()
        self.net.append(torch.nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"max_steps": 24}, "number of steps"),
        ({"max_steps": STEPS, "max_epochs": 9}, "max_steps or max_epochs"),
        ({"model": Wide}, "names or shapes of parameters"),
    ],
    ids=str,
)
def test_arms_of_another_training_are_refused_before_training_and_in_the_folder(
    tmp_path, other, said
):
    audit(Task(), config(seeds=1), tmp_path / "one")
    with pytest.raises(ConfigError, match=f", seed 0, with other {said}") as raised:
        audit(Task(**other), config(seeds=2), tmp_path / "one")
    assert raised.value.argument == str(tmp_path / "one")
    assert len(kept(tmp_path / "one")) == 4
    audit(Task(**other), config(seeds=1), tmp_path / "two")
    first = kept(tmp_path / "two")[0]
    first["run"]["seed"] = 1
    keep(tmp_path / "one", [*kept(tmp_path / "one"), first])
    with pytest.raises(ConfigError, match=f"with other {said}"):
        audit(Task(), config(seeds=2), tmp_path / "one")


def test_schedule_that_is_not_shortened_is_refused(tmp_path):
    class Fixed(Net):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    task = Task(Fixed)
    with pytest.raises(ConfigError, match=r"ends at 0 .* full arm and at 0.25 in the short arm"):
        audit(task, config(), tmp_path)
    assert task.calls == [(FULL, 0), (SHORT, 0)]
    assert [line["run"]["arm"] for line in kept(tmp_path)] == [FULL]


def test_two_audits_in_one_folder_are_refused(tmp_path):
    class Nested(Task):
        def __call__(self, arm: Any) -> Any:
            with pytest.raises(ConfigError, match="folder: expected one that no other run is"):
                audit(Task(), config(), tmp_path)
            return super().__call__(arm)

    assert len(audit(Nested(), config(seeds=1), tmp_path).results["runs"]) == 4
    with locked(tmp_path):
        pass


def test_source_may_be_anything_that_yaml_holds(tmp_path):
    text = "{when: 2020-01-02, at: 2020-01-02T03:04:05, 1: one, two: [{3: !!set {b, a}}], "
    text += "none: .nan, raw: !!binary aGk=}"
    source = {"file": yaml.safe_load(text)}
    audit(Task(), config(seeds=1), tmp_path, source=source)
    task = Task()
    result = audit(task, config(seeds=1), tmp_path, source=source)
    assert task.calls == []
    assert result.results["depends_on"]["file"] == {
        "when": "2020-01-02", "at": "2020-01-02T03:04:05", "1": "one", "two": [{"3": ["a", "b"]}],
        "none": None, "raw": "6869",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="other file"):
        audit(task, config(), tmp_path, source={"file": {**source["file"], 1: "two"}})
