"""The callback for the Trainer of Hugging Face transformers."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NoReturn, final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hybrid_predict.config import HybridConfig, check_names
from hybrid_predict.engine import HybridEngine
from hybrid_predict.errors import (
    CheckpointError,
    ConfigError,
    MissingExtraError,
    UnsupportedSetupError,
    reading,
)
from hybrid_predict.integrations.options import checked_folder, configuration
from hybrid_predict.integrations.reporter import Reporter, numbers, show
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.model.traces import OwnHook
from hybrid_predict.ranks import processes
from hybrid_predict.runs.log import RunLog

try:
    from transformers import TrainerCallback, TrainerState, TrainingArguments
    from transformers.trainer_callback import DefaultFlowCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
    from transformers.training_args import ParallelMode
except ImportError as error:
    raise MissingExtraError("HybridPredictCallback", "huggingface") from error

FILE = "hybrid_predict.pt"  # with the plug-in's state, in each checkpoint folder
_IN_EVERY_LOG = tuple(f"hybrid_predict/{name}" for name in ("steps", "predicted_steps", "skill"))

_UNSEEN = (
    "HybridPredict does not see the loss in the model's output: gradients alone decide whether "
    "predicted steps stand, and names and shapes the kinds of parameters. Set kinds={...} if one "
    "is wrong."
)

logger = logging.getLogger(__name__)


class HybridPredictCallback(TrainerCallback):
    """Trains the Trainer's model in fewer full steps: corrected updates, predicted steps.

    Model, optimizer and scheduler are not modified. ``max_steps``, or the steps in
    ``num_train_epochs``, is the run's length; the scheduler is stepped as many times. The Trainer's
    ``global_step`` counts full steps, one per optimizer step as always. The Trainer stops when the
    run is done, after about ``max_steps / speedup`` full steps; with ``speedup="auto"`` the run
    decides after how many. Callbacks that are listed behind this one get its numbers in ``logs``,
    and with ``report_to="mlflow"`` the Trainer's MLflow run gets all that Lightning's would.

    Args:
        speedup: See :class:`HybridConfig`; None uses the value in ``config``.
        config: A configuration, or its fields by name; the other arguments override it.
        log_dir: Folder of the run's log, which ``hybrid-predict report`` and ``watch`` read.
            ``auto`` is the Trainer's ``output_dir``; None writes no log.
        **fields: All other fields of :class:`HybridConfig` but ``total_steps``.

    Raises:
        ConfigError: If an argument is unknown or invalid.
        UnsupportedSetupError: At the start of training, if the set-up is not supported.
        CheckpointError: If a resumed run's state is damaged, or missing and needed.
    """

    def __init__(
        self,
        speedup: float | Literal["auto"] | None = None,
        *,
        config: HybridConfig | Mapping[str, Any] | None = None,
        log_dir: str | None = "auto",
        **fields: Any,
    ) -> None:
        known = HybridConfig.__dataclass_fields__
        for name in TrainingArguments.__dataclass_fields__.keys() & fields.keys() - known.keys():
            expected = "no such argument, because the Trainer has it"
            raise ConfigError(name, expected, fields[name], f"Set TrainingArguments({name}=...).")
        check_names(type(self).__name__, fields, {"speedup", "config", "log_dir", *known})
        self.config = configuration(config, speedup=speedup, **fields)
        if self.config.total_steps is not None:
            remedy = "Set TrainingArguments(max_steps=...) or num_train_epochs."
            expected = "None, because the Trainer determines it"
            raise ConfigError("total_steps", expected, self.config.total_steps, remedy)
        self.log_dir = checked_folder(log_dir)
        self.engine: HybridEngine | None = None
        self._reporter: Reporter | None = None
        self._training = False
        self._start = 0
        self._losses: list[Tensor] = []  # of the open full step, by batch
        self._per_token = False
        self._hook: Any = None

    @property
    def state_dict(self) -> NoReturn:
        """Refuse the Trainer of Lightning, which looks for this when it is made."""
        expected = "HybridPredict, from hybrid_predict"
        raise UnsupportedSetupError("callbacks", expected, type(self).__name__)

    @property
    def ledger(self) -> SavingsLedger:
        """Ledger of the current or last run."""
        return self.engine.ledger if self.engine is not None else SavingsLedger()

    @property
    def history(self) -> RunLog:
        """Log of the current or last run, since it was started or resumed."""
        return self._reporter.log if self._reporter is not None else RunLog()

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **kwargs: Any
    ) -> None:
        """Attach to model and optimizer, and load the state of a resumed run."""
        self._end()  # of a run that an error has ended, which the Trainer does not tell
        self.engine = self._reporter = None
        if not self.config.enabled or model is None:
            return
        refuse(args)
        saved = _load(args, state) if state.global_step else None
        ahead = _steps_ahead(state, kwargs.get("lr_scheduler"))
        if saved is None and ahead:
            raise CheckpointError(
                f"resume_from_checkpoint: expected the file {FILE} of this run, which had {ahead} "
                "predicted steps, but found none. Resume from a folder in output_dir, or also set "
                "TrainingArguments(resume_from_checkpoint=...) to the folder."
            )
        self._start = saved[0] if saved else state.global_step
        config = self.config.with_length(state.max_steps - self._start)
        # The Trainer's optimizer is accelerate's, around the torch optimizer.
        optimizer = kwargs["optimizer"]
        engine = HybridEngine(model, getattr(optimizer, "optimizer", optimizer), config)
        if saved is not None:
            try:
                engine.load_state_dict(saved[1])
            except CheckpointError:
                engine.detach()
                raise
        self.engine = engine
        self._training = True
        if state.is_world_process_zero:
            place = args.output_dir if self.log_dir == "auto" else self.log_dir
            folder = None if place is None else Path(place)
            self._reporter = Reporter(engine, show, folder, mlflow_runs(args))
        if not args.torch_compile:
            self._hook = model.register_forward_hook(OwnHook(self._keep_loss), with_kwargs=True)
        control.should_training_stop |= engine.done

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open a full step before the first batch of its accumulation window."""
        if self.engine is not None and not self.engine.done:
            self._losses.clear()
            self.engine.before_step()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pass the mean loss of the accumulation window to the engine."""
        if self.engine is None or not self._losses:
            return
        share = 1.0 / len(self._losses)
        if self._per_token:
            share = float(processes.size()) if args.average_tokens_across_devices else 1.0
        loss = self._losses[0] if len(self._losses) == 1 else torch.stack(self._losses).sum()
        self.engine.observe_loss(loss if share == 1.0 else loss * share)

    def on_optimizer_step(
        self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **kwargs: Any
    ) -> None:
        """Close a full step right after its update, and step the scheduler for predicted steps."""
        if self.engine is not None and self.engine.in_step:
            first = state.is_world_process_zero and self.ledger.full_steps == 0
            if first and not self._losses:
                logger.warning(_UNSEEN)
            record = self.engine.after_step()
            if self._reporter is not None:
                self._reporter.step(record, state.global_step + 1)  # the Trainer counts it later
                predicted = self._reporter.predicted
                if record.step == 1 and predicted and not args.disable_tqdm:
                    text = "HybridPredict: the Trainer and its progress bar count full steps alone"
                    least = f"{state.max_steps - predicted:,} of {state.max_steps:,}"
                    show(f"{text}, so they may end after {least}.")
            if _counts_steps(lr_scheduler):
                for _ in range(record.ticks - 1):  # the Trainer steps it for the full step
                    lr_scheduler.step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the Trainer if the run is done, as at its own last step: evaluate, save, stop."""
        if self.engine is not None and self.engine.done:
            last = replace(state, max_steps=state.global_step)
            DefaultFlowCallback().on_step_end(args, last, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add a few numbers behind the metrics that are logged, and all to those at the end."""
        if self.engine is None or logs is None or not logs.keys() & {"loss", "train_loss"}:
            return
        known = numbers(self.ledger)
        if "train_loss" not in logs:
            known = {name: known[name] for name in _IN_EVERY_LOG if name in known}
        logs.update(known)
        state.log_history[-1].update(known)
        if self._reporter is not None:
            self._reporter.log_row()

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Pass the metric of the best model, else the loss, to the engine."""
        if self.engine is None or not self._training:
            return
        metric = "eval_" + (args.metric_for_best_model or "loss").removeprefix("eval_")
        if (value := (metrics or {}).get(metric)) is not None:
            larger = bool(args.greater_is_better)
            self.engine.observe_validation(value, metric, larger_is_better=larger)
            control.should_training_stop |= self.engine.done

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the state to resume from in the checkpoint folder."""
        if self.engine is None or args.save_only_model:
            return
        saved = {"run": _course(state), "start": self._start, "engine": self.engine.state_dict()}
        folder = _folder(args, state)
        if not args.should_save:
            return
        if folder.is_dir():
            torch.save(saved, folder / FILE)
        else:
            text = "HybridPredict cannot save its state: the folder %s does not exist."
            logger.warning(text, folder)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Detach from the model, and end the run's log."""
        self._end()

    def _keep_loss(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        engine = self.engine
        if engine is None or not engine.in_step or not torch.is_grad_enabled():
            return
        loss = output.get("loss") if isinstance(output, Mapping) else None
        if isinstance(loss, Tensor):
            engine.observe_graph(loss)
            self._losses.append(loss.detach())
            # The Trainer lets a model divide by the tokens of the window, and of all ranks.
            self._per_token = kwargs.get("num_items_in_batch") is not None

    def _end(self) -> None:
        self._training = False
        if self.engine is not None:
            self.engine.detach()
            if self._reporter is not None:
                self._reporter.close("finished" if self.engine.done else "stopped")
        if self._hook is not None:
            self._hook.remove()


@final
class MLFlowLogger:
    """Logs to an MLflow run that the Trainer has begun, like Lightning's logger of this name."""

    def __init__(self, mlflow: Any, run_id: str) -> None:
        self.run_id = run_id
        self.experiment = mlflow.MlflowClient()
        self._mlflow = mlflow

    def log_hyperparams(self, values: Mapping[str, Any]) -> None:
        """Log parameters."""
        self._mlflow.log_params(dict(values), run_id=self.run_id)

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics at a full step."""
        self._mlflow.log_metrics(dict(values), step=step, run_id=self.run_id)


def mlflow_runs(args: TrainingArguments) -> list[MLFlowLogger]:
    """Return a logger to the run that the Trainer has begun in MLflow, if it reports to it."""
    mlflow = sys.modules.get("mlflow") if "mlflow" in (args.report_to or ()) else None
    run = None if mlflow is None else mlflow.active_run()
    if mlflow is not None and run is None:  # a Trainer begins no second run
        logger.warning("HybridPredict does not report to MLflow: the Trainer has no active run.")
    return [] if run is None else [MLFlowLogger(mlflow, run.info.run_id)]


def refuse(args: TrainingArguments) -> None:
    """Raise UnsupportedSetupError if the arguments ask for what is not supported."""
    asked = {
        "deepspeed": args.deepspeed,
        "fsdp": args.fsdp,
        "nn.DataParallel": args.parallel_mode is ParallelMode.NOT_DISTRIBUTED,
        # Its checkpoints are saved without a word to callbacks.
        "enable_jit_checkpoint": getattr(args, "enable_jit_checkpoint", False),
    }
    for name, value in asked.items():
        if value:
            expected = "a single device, or DistributedDataParallel"
            remedy = "Leave it out; torchrun starts several processes, if you want them."
            raise UnsupportedSetupError("TrainingArguments", expected, name, remedy)


def _counts_steps(scheduler: Any) -> bool:
    return not (isinstance(scheduler, ReduceLROnPlateau) or type(scheduler).__name__ == "GreedyLR")


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _course(state: TrainerState) -> str:
    """Identify a run by its course, to distinguish checkpoints of different runs."""
    course = [state.global_step, state.total_flos, state.log_history]
    return sha256(json.dumps(course, sort_keys=True).encode()).hexdigest()


def _load(args: TrainingArguments, state: TrainerState) -> tuple[int, Any] | None:
    named = args.resume_from_checkpoint
    folders = [Path(named)] if isinstance(named, str) else []  # callbacks are not told which
    for path in (folder / FILE for folder in (*folders, _folder(args, state))):
        if path.is_file():
            with reading(str(path)):
                saved: Any = torch.load(path, map_location="cpu", weights_only=True)
                if saved["run"] == _course(state):
                    return saved["start"], saved["engine"]
            logger.warning("HybridPredict does not read %s: it belongs to another run.", path)
    return None


def _steps_ahead(state: TrainerState, scheduler: Any) -> int:
    """Return the predicted steps of a run that is resumed, as its scheduler has counted them."""
    steps = getattr(scheduler, "last_epoch", 0) if _counts_steps(scheduler) else 0
    return max(0, steps - state.global_step) if state.global_step else 0
