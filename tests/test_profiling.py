"""Operations are counted like torch counts them, also where a loss differentiates inside."""

import pytest
from torch.utils.flop_counter import FlopCounterMode

from hybrid_predict.profiling import FlopProfile
from hybrid_predict.tasks import TASKS


def counted(name: str, reference: bool) -> int | None:
    task = TASKS[name].tiny()
    model, batch = task.model(0), next(task.batches(0))
    if reference:
        with FlopCounterMode(display=False) as mode:
            task.loss(model, batch).backward()
        return mode.get_total_flops()
    profile = FlopProfile()
    profile.start(model)
    task.loss(model, batch).backward()
    return profile.stop()


@pytest.mark.parametrize("name", ["gpt-0.2m", "cnn"])
def test_the_count_is_torch_s_own(name: str) -> None:
    found = counted(name, reference=False)
    assert found
    assert found == counted(name, reference=True)


def test_a_loss_that_differentiates_inside_is_counted_too() -> None:
    assert counted("pinn", reference=False)
