"""Audits that a YAML file of Lightning's own command line describes, with a section ``audit``."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import warnings
from argparse import ArgumentError
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.file_content import CLASSES, check_sections, load
from hybrid_predict.audit.training import preserved
from hybrid_predict.config import check_names
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.objects import find_class


def read_audit(file: str | Path) -> tuple[MakeRun, AuditConfig, dict[str, Any]]:
    """Read an audit from a YAML file.

    Args:
        file: Sections ``model``, ``data`` and ``trainer`` as for ``LightningCLI``, optionally
            ``optimizer`` and ``lr_scheduler``, and ``audit`` with the arguments of
            :class:`AuditConfig`. Inside :func:`importable`, classes are found from the current
            directory too.

    Returns:
        ``make_run``, the configuration, and what of the file finished arms depend on, for
        :func:`audit`.

    Raises:
        ConfigError: If the file cannot be read or Lightning refuses what it says.
    """
    path = Path(file)
    content = load(path)
    with preserved():
        check_content(content)
        parsed = _build(path, None, ["--seed_everything=false"]).config
    config = AuditConfig(**parsed.audit.as_dict())
    lengths = {key: _length(parsed, key) for key in config.scaled}
    for name, changes in config.controls.items():
        _check_keys(parsed, name, changes)

    def make_run(arm: AuditArm) -> Any:
        changed = [f"--seed_everything={arm.seed}"]
        changed += [f"--{key}={arm.scaled(length)}" for key, length in lengths.items()]
        changed += [f"--{key}={json.dumps(value)}" for key, value in arm.changes.items()]
        built = _build(path, arm, changed)
        return built.trainer, built.model, built.datamodule

    used = {k: v for k, v in content.items() if k not in ("audit", "seed_everything")}
    return make_run, config, {"file": used}


def check_content(content: Mapping[str, Any]) -> None:
    """Check the names and classes of a file; Lightning's parser would tell of them less clearly.

    Raises:
        ConfigError: If a name is not known, or a class cannot be imported.
    """
    import lightning.pytorch as pl

    check_sections(content)
    check_names("trainer", content["trainer"], inspect.signature(pl.Trainer).parameters)
    AuditConfig(**content.get("audit", {}))
    for name in CLASSES:
        _check_class(name, content.get(name))
    for name, value in content["trainer"].items():
        for k, one in enumerate(value) if isinstance(value, list) else [(None, value)]:
            _check_class(f"trainer.{name}" if k is None else f"trainer.{name}.{k}", one)


def _check_class(section: str, value: Any) -> None:
    """Check that a class can be imported, and takes its arguments, if the value describes one."""
    from lightning.pytorch import callbacks

    if not isinstance(value, Mapping) or not isinstance(value.get("class_path"), str):
        return  # a name alone, which Lightning looks up
    if hasattr(callbacks, value["class_path"]):
        value = {**value, "class_path": f"{callbacks.__name__}.{value['class_path']}"}
    find_class(section, value)


def _length(parsed: Any, key: str) -> int:
    """The number of steps or epochs that a key of ``audit.scaled`` stands for."""
    value = parsed.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        remedy = "Name a key of the file that holds a number of steps or epochs."
        raise ConfigError("audit.scaled", f"{key} to be a positive integer", value, remedy)
    return value


def _check_keys(parsed: Any, control: str, keys: Iterable[str]) -> None:
    """Raise if a control changes what the file does not set."""
    for key in keys:
        if key.split(".")[0] not in (*CLASSES, "trainer") or key not in parsed:
            remedy = "Name keys that stand in the file's other sections."
            raise ConfigError(f"audit.controls.{control}", "a key of the file", key, remedy)


def _build(path: Path, arm: AuditArm | None, changed: list[str]) -> Any:
    """Lightning's command line with the file's model, data and Trainer for one arm.

    Args:
        path: The YAML file.
        arm: Makes the Trainer; None only parses.
        changed: Further arguments, which override those of the file.
    """
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

    class AuditCLI(LightningCLI):
        """Builds, but lets the arm make the Trainer and runs nothing."""

        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_class_arguments(AuditConfig, "audit")

        def instantiate_classes(self) -> None:
            if arm is not None:
                super().instantiate_classes()

        def instantiate_trainer(self, **kwargs: Any) -> Any:
            assert arm is not None
            options: Mapping[str, Any] = {**self.config_init.get("trainer", {}), **kwargs}
            return arm.trainer(**options)

    with _without_arguments(), warnings.catch_warnings():
        # Lightning uses what newer versions of its parser call deprecated.
        message = "(?s).*(JsonargparseDeprecationWarning|was deprecated in v4)"
        warnings.filterwarnings("ignore", message, DeprecationWarning)
        try:
            return AuditCLI(
                save_config_callback=None,
                seed_everything_default=False,
                parser_kwargs={"exit_on_error": False},
                args=["--config", str(path), *changed],
                run=False,
                load_from_checkpoint_support=False,
            )
        except ArgumentError as error:
            raise _refused(path, str(error)) from error


def _refused(path: Path, said: str) -> ConfigError:
    """What to raise where Lightning's parser refuses a file; its own words only if need be."""
    key = re.search(r'[Kk]ey "([\w.]+)"', said)
    if key is None:
        remedy = f"Lightning says: {said.splitlines()[0]}"
        return ConfigError("file", "a configuration for LightningCLI", str(path), remedy)
    value: Any = load(path)
    for name in key[1].split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return ConfigError(key[1], "a value of the type that it takes", value)


@contextmanager
def importable() -> Iterator[None]:
    """Let modules be found from the current directory, whenever the user's code imports them."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def _without_arguments() -> Iterator[None]:
    """Let Lightning see no arguments of the command line."""
    arguments = sys.argv
    sys.argv = arguments[:1]
    try:
        yield
    finally:
        sys.argv = arguments
