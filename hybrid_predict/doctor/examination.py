"""Examines a Trainer: what would be corrected, what a full step and the run would take, and why."""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from hybrid_predict.config import HybridConfig, Speedup
from hybrid_predict.errors import ConfigError, HybridPredictError, did_you_mean, summary
from hybrid_predict.integrations.options import as_call
from hybrid_predict.ledger import duration, percent
from hybrid_predict.runs.overview import Overview
from hybrid_predict.runs.runtime import collected, preserved, quiet
from hybrid_predict.runs.trial import Trial

Findings = list[tuple[str, str]]
"""Titles and texts."""

Examined = tuple[Trial, Any, str]
"""The trial, the callback that it tried, and whether a run that overfits would be seen."""

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = sysconfig.get_path("stdlib")
"""Folders of code that is not the user's."""


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
    with (
        tempfile.TemporaryDirectory() as folder,
        preserved(),
        quiet(),
        collected(messages),
        _failing(name),
    ):
        trial, plugin, judged = _examined(name, Path(folder), speedup)
    plan = trial.plan
    # What made the run fall back is said in the line on what to change.
    warned = [text for text in messages if not trial.plain or trial.plain not in text]
    further = [("warning", text) for text in warned]
    if plan is None or trial.plain:
        change = trial.plain or "training did not start: give data, and parameters to train"
        left = "no gain: the callback would leave this training as it is"
        refused = "refused: with the callback this training would end with an error"
        found = ("finding", left if plan is not None or not trial.plain else refused)
        return False, [found, ("corrects", "nothing"), ("change", change), *further]
    paste = as_call(type(plugin).__name__, plugin.config)
    _, *told = plan.words.items()
    lines = _three_lines(plan, trial.seconds)
    slower = lines[-1][0] == "change"
    return True, [
        *lines,
        ("anyway, paste" if slower else "paste", f"Trainer(..., callbacks=[..., {paste}])"),
        *further,
        *told,
        ("overfitting", judged),
    ]


@contextmanager
def _failing(name: str) -> Iterator[None]:
    """Tell in one line where the user's code has failed inside the block."""
    try:
        yield
    except HybridPredictError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        if frames[-1].filename.startswith(_PACKAGE):
            raise
        theirs = [
            each for each in frames if not each.filename.startswith((_PACKAGE, _LIBRARY, "<"))
        ]
        place = [each for each in theirs if "site-packages" not in each.filename][-1:]
        where = "".join(f" in {Path(each.filename).name}, line {each.lineno}" for each in place)
        remedy = f"It fails{where}: {summary(error)}. Make it train without the callback first."
        raise ConfigError("CONFIG", "a training that runs", name, remedy) from error


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

        return examine_built(built, speedup)
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
    expected = "FILE.py:FUNCTION, such as train.py:build, which returns the Trainer"
    if not place:
        raise ConfigError("CONFIG", expected, name, f"Name a function: {name}:build")
    path = Path(place)
    if path.suffix == ".py":
        sys.path.insert(0, str(path.parent))
        place = path.stem
    try:
        made = resolve_name(f"{place}:{function}")
        inspect.signature(made).bind()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        word = place
        known = {each.stem for each in path.parent.glob("*.py")}
        if place in sys.modules:
            word = function
            known = set(vars(sys.modules[place]))
        remedy = "" if word in known else did_you_mean(word, known)
        remedy = remedy or f"Python says: {type(error).__name__}: {error}."
        raise ConfigError("CONFIG", expected, name, remedy) from error
    return made()


def _three_lines(plan: Overview, seconds: tuple[float, float] | None) -> Findings:
    """Tell what to expect, what is corrected, and what a full step and the run would take.

    ``seconds`` are those of a full step without and with the callback. Where the callback costs
    more time than it can save, a fourth line says what to change.
    """
    corrects = ("corrects", "; ".join(filter(None, [plan.words["corrects"], plan.muon])))
    if seconds is None:
        timed = ("full step", "not timed: too few full steps were trained")
        return [("finding", "unknown: the run is too short to time a full step"), corrects, timed]
    plain, helped = seconds
    before = plain * plan.steps
    longest = helped * plan.steps
    shortest = longest - helped * plan.predicted
    less = 1.0 - shortest / before
    slower = less <= 0.0 or not plan.predicted
    fewer = f"{'up to' if plan.paced else 'about'} {percent(plan.predicted / plan.steps)} fewer"
    found = f"expect {fewer} full steps, {percent(less)} less time, if its predicted steps stand"
    times = f"{duration(shortest)} (all planned predicted steps made) to {duration(longest)} (none)"
    if not plan.predicted:
        times = duration(longest)
    if slower:
        least = "even with all predicted steps" if plan.predicted else "for as many full steps"
        found = f"slower on this model: {percent(max(0.0, -less))} more time {least}"
    per_step = f"takes {duration(helped)} in place of {duration(plain)} (a few were timed)"
    run = f"the run {times} in place of {duration(before)}, without validation"
    rows = [("finding", found), corrects, ("full step", f"{per_step}; {run}")]
    if slower:
        text = (
            "use larger batches: full steps are too short here to save time. Or train for fewer "
            f"than {int(before / helped):,} of the {plan.steps:,} steps: by then corrected updates "
            "may be as good"
        )
        rows.append(("change", text))
    return rows
