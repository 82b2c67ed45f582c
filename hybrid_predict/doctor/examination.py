"""Examines a Trainer: what would be corrected, what a full step and the run would take, and why."""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from hybrid_predict.config import HybridConfig, Speedup
from hybrid_predict.errors import ConfigError
from hybrid_predict.integrations.options import as_call
from hybrid_predict.ledger import duration
from hybrid_predict.policy.overfitting import REMEDY
from hybrid_predict.runs.runtime import collected, preserved, quiet
from hybrid_predict.runs.trial import Trial

Findings = list[tuple[str, str]]
"""Titles and texts."""

Examined = tuple[Trial, Any, str]
"""The trial, the callback that it tried, and by what validation a run that overfits is seen."""


def examine(name: str, speedup: Speedup | None = None) -> tuple[bool, Findings]:
    """Train a few full steps of what a file or a function builds, with the callback.

    Writes nothing, and restores random states. ``name`` is an audit's YAML file, or
    ``file.py:function`` or ``module:function`` of a function that returns a Trainer of Hugging Face
    transformers; or the Trainer of Lightning, the model and, unless the model has its own, the
    data. Without ``speedup``, that of the file or the Trainer's own callback counts.

    Returns:
        Whether the callback would change the training, and findings.

    Raises:
        ConfigError: If nothing can be built from it.
    """
    messages: list[str] = []
    with tempfile.TemporaryDirectory() as folder, preserved(), quiet(), collected(messages):
        trial, plugin, judged = _examined(name, Path(folder), speedup)
    plan = trial.plan
    idle = trial.plain
    if not idle and plan is None:
        idle = "training did not start: give data, and parameters to train"
    # What made the run fall back is said in the line on what to change.
    warned = [text for text in messages if not trial.plain or trial.plain not in text]
    further = [("warning", text) for text in warned]
    rows = _three_lines(trial, idle)
    if idle or plan is None:
        return False, [*rows, ("change", idle), *further]
    paste = as_call(type(plugin).__name__, plugin.config)
    _, *told = plan.words.items()
    return True, [
        *rows,
        ("paste", f"Trainer(..., callbacks=[{paste}])"),
        *further,
        *told,
        ("overfitting", f"is judged by {judged}; {REMEDY}"),
    ]


def tried(kind: Any, callbacks: Sequence[Any], speedup: Speedup | None) -> Any:
    """Return a callback like the first one of its kind among a Trainer's, which writes nothing."""
    configs: list[HybridConfig] = [c.config for c in callbacks if isinstance(c, kind)]
    config = configs[0] if configs else HybridConfig()
    config = config if speedup is None else config.with_speedup(speedup)
    return kind(config=replace(config, enabled=True), log_dir=None)


def _examined(name: str, folder: Path, speedup: Speedup | None) -> Examined:
    if name.endswith((".yaml", ".yml")):
        from hybrid_predict.doctor.lightning import examine_file

        return examine_file(name, folder, speedup)
    built = _called(name)
    trainer, *others = built if isinstance(built, tuple) and built else [built]
    if hasattr(trainer, "callback_handler") and not others:
        from hybrid_predict.doctor.huggingface import examine_trainer

        return examine_trainer(trainer, folder, speedup)
    if hasattr(trainer, "fit") and others and hasattr(others[0], "training_step"):
        from hybrid_predict.doctor.lightning import examine_built

        return examine_built(name, built, speedup)
    expected = (
        "a function that returns Trainer, model and data of Lightning, in this order, or the "
        "Trainer of Hugging Face alone"
    )
    got = [type(each).__name__ for each in (trainer, *others)]
    remedy = "Let it end with: return trainer, model, train_dataloader"
    raise ConfigError("CONFIG", expected, ", ".join(got), remedy)


def _called(name: str) -> Any:
    """Return what a function returns that ``file.py:function`` or ``module:function`` names."""
    place, _, function = name.rpartition(":")
    path = Path(place)
    if path.suffix == ".py":
        sys.path.insert(0, str(path.parent))
        place = path.stem
    try:
        made = resolve_name(f"{place}:{function}")
        inspect.signature(made).bind()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        expected = "FILE.py:FUNCTION, a function without arguments that returns the Trainer"
        remedy = f"Python says: {type(error).__name__}: {error}."
        raise ConfigError("CONFIG", expected, name, remedy) from error
    return made()


def _three_lines(trial: Trial, idle: str) -> Findings:
    """Tell what is corrected, the seconds of a full step and of the run; and what loses time.

    ``idle`` is why the callback would do nothing, if so.
    """
    plan = trial.plan
    corrects = "nothing" if plan is None or idle else plan.words["corrects"]
    if plan is None or trial.seconds is None:
        why = "not timed: too few full steps were trained"
        return [("corrects", corrects), ("full step", why), ("run", why)]
    plain, helped = trial.seconds
    least = helped * (plan.steps - plan.predicted)
    times = duration(helped * plan.steps)
    if plan.predicted and not idle:
        times = f"{duration(least)} (all planned predicted steps made) to {times} (none made)"
    told = f"{times} in place of {duration(plain * plan.steps)}; validation is not counted"
    rows = [
        ("corrects", corrects),
        ("full step", f"takes {duration(helped)} in place of {duration(plain)} (a few were timed)"),
        ("run", f"takes {told}"),
    ]
    if least > plain * plan.steps and not idle:
        text = (
            "full steps are too short here to save time. Larger batches make them longer; or train "
            f"fewer: below {int(plan.steps * plain / helped):,} of the {plan.steps:,} steps time "
            "is saved, if corrected updates reach your quality in them"
        )
        rows.append(("change", text))
    return rows
