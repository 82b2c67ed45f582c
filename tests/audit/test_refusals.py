"""Audits that are refused because their arms could not be compared, and folders of others."""

import pytest
import torch
from audit_task import STEPS, Task, config, keep, kept
from lightning_models import Net, loader

from hybrid_predict.audit import audit, plan_audit
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.evidence import FULL, SHORT

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


@pytest.mark.parametrize(
    ("call", "options", "source", "words"),
    [
        (audit, {"hybrid": {"warmup_steps": 5}}, None, "other hybrid. Choose another folder"),
        (plan_audit, {"metric": "train_loss"}, None, "other metric"),
        (audit, {}, {"file": "b"}, "other file"),
    ],
)
def test_arms_of_another_audit_are_refused(audited, call, options, source, words):
    task = Task()
    with pytest.raises(ConfigError) as raised:
        call(task, config(**options), audited, source=source)
    assert words in str(raised.value).replace("'", "")
    assert raised.value.argument == str(audited)
    assert task.calls == []


def test_runs_of_another_version_are_refused(audited):
    old = kept(audited)
    for line in old:
        line["depends_on"]["schema"] = 6
    keep(audited, old)
    with pytest.raises(ConfigError, match=r"with other schema.*delete this one"):
        audit(Task(), config(), audited)


def test_model_that_is_not_built_anew_is_refused_before_it_is_trained_on(tmp_path):
    model = Net()

    def make_run(arm):
        return arm.trainer(max_steps=STEPS, accelerator="cpu"), model, (loader(), loader(2))

    with pytest.raises(
        ConfigError, match=r"other weights in short, seed 0, than in full.*Build the model"
    ):
        audit(make_run, config(), tmp_path)
    assert model.batches == STEPS


class Wide(Net):
    def __init__(self):
        super().__init__()
        self.net.append(torch.nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("other", "what"), [({"max_steps": 24}, "lengths"), ({"model": Wide}, "shapes")]
)
def test_arms_of_another_training_are_refused_before_they_are_trained(audited, other, what):
    with pytest.raises(ConfigError, match=f"other {what} in full, seed 2, than in full, seed 0"):
        audit(Task(**other), config(seeds=3), audited)
    assert len(kept(audited)) == 8


def test_schedule_that_is_not_shortened_is_refused(tmp_path):
    class Fixed(Net):
        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    task = Task(Fixed)
    with pytest.raises(ConfigError, match=r"ends at 0 .* full arm and at 0.25 in the short arm"):
        audit(task, config(), tmp_path)
    assert task.calls == [(FULL, 0), (SHORT, 0)]
    assert [line["run"]["arm"] for line in kept(tmp_path)] == [FULL]
