"""Numbers on a device are read later, when their copies on the host are complete."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from hybrid_predict.torch.buffers import BufferTracker
from hybrid_predict.torch.host import HostCopy


class OnDevice(torch.Tensor):
    """Says that it is on a CUDA device; copies to the host arrive when an event says so."""

    is_cuda = True
    under_way: ClassVar[list] = []

    def to(self, device, non_blocking=False):
        assert device == "cpu" and non_blocking
        values = self.as_subclass(torch.Tensor)
        host = torch.zeros_like(values)
        self.under_way.append((host, values.clone()))
        return host


class Event:
    """Counts how often the host waits, and completes the copies that were made before it."""

    waited = 0

    def record(self, stream):
        self.copies = list(OnDevice.under_way)

    def synchronize(self):
        Event.waited += 1
        for host, values in self.copies:
            host.copy_(values)


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(Event, "waited", 0)
    monkeypatch.setattr(OnDevice, "under_way", [])


@pytest.mark.parametrize("changes", [True, False])
def test_a_comparison_on_the_device_is_read_later_and_complete(device, changes):
    model = nn.Linear(4, 4)
    model.register_buffer("large", torch.zeros(10_000).as_subclass(OnDevice))
    tracker = BufferTracker(model)
    for step in range(1, 9):
        tracker.watch()
        assert bool(Event.waited) is (step >= 4)  # compared in step 2, read in step 4
        if changes and step == 1:
            model.large.data.add_(1.0)
    assert tracker.state_dict() == [":large"] * changes


def test_a_copy_is_waited_for_only_when_it_is_read(device):
    copies = [HostCopy(torch.full((2,), float(k)).as_subclass(OnDevice)) for k in range(3)]
    assert not Event.waited
    assert copies[1].read().tolist() == [1.0, 1.0]
    assert Event.waited == 1
