"""Tries the callback in a Trainer of Hugging Face transformers, which is given away."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import DefaultFlowCallback

from hybrid_predict.config import Speedup
from hybrid_predict.doctor.examination import Examined, tried
from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.integrations.huggingface import HybridPredictCallback
from hybrid_predict.runs.trial import Trial, TrialEnd

_WRITES_NOTHING = {
    "eval_strategy": "no",
    "eval_on_start": False,
    "logging_strategy": "no",
    "logging_first_step": False,
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "disable_tqdm": True,
}
"""Arguments of training in a trial."""


class HuggingFaceTrial(TrainerCallback):
    """Makes a trial of a Trainer's run; ``plugin`` is the callback that it tries."""

    def __init__(self, plugin: HybridPredictCallback) -> None:
        self.trial = Trial()
        self._plugin = plugin

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the callback from reporting, and start the clock."""
        self._plugin._reporter = None
        self.trial.resume(args.device)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the plan and the time of a full step."""
        if self._plugin.engine is not None:
            self.trial.step(self._plugin.engine, args.device)


def examine_trainer(trainer: Any, folder: Path, speedup: Speedup | None) -> Examined:
    """Examine a Trainer without its own callbacks, which may write and log."""
    handler = trainer.callback_handler
    plugin = tried(HybridPredictCallback, handler.callbacks, speedup)
    trying = HuggingFaceTrial(plugin)
    metric = trainer.args.metric_for_best_model or "loss"
    judged = f"is judged by eval_{metric.removeprefix('eval_')}"
    if str(trainer.args.eval_strategy.value) == "no":
        judged = 'goes unnoticed: the Trainer does not evaluate. Set eval_strategy="epoch"'
    vars(trainer.args).update(_WRITES_NOTHING, output_dir=str(folder))
    handler.callbacks = [DefaultFlowCallback(), plugin, trying]
    try:
        with suppress(TrialEnd):
            trainer.train()
    except UnsupportedSetupError as error:
        trying.trial.plain = str(error)
    finally:
        plugin.on_train_end(trainer.args, trainer.state, trainer.control)
    return trying.trial, plugin, judged
