"""Audits in a YAML file of Lightning's own command line, with one more section ``audit``."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped,unused-ignore]
from jsonargparse import ArgumentParser
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from hybrid_predict.audit.arm import AuditArm, MakeRun, check_length
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.training import preserved
from hybrid_predict.config import check_names
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import AbstractPredictor
from hybrid_predict.runs.files import given_path, named
from hybrid_predict.updates import AbstractUpdate

if TYPE_CHECKING:
    from jsonargparse import Namespace

_TRAINED = ("model", "data", "trainer", "optimizer", "lr_scheduler")
"""Sections that finished runs depend on."""

_METHODS: dict[str, Any] = {
    "updates": dict[str, str | AbstractUpdate],
    "predictors": dict[str, str | AbstractPredictor],
}
"""Fields of ``hybrid`` that may describe objects by their classes."""


def read_audit(file: str | Path) -> tuple[MakeRun, AuditConfig, dict[str, Any]]:
    """Return ``make_run``, the configuration, and what finished runs depend on, from a YAML file.

    It has the sections ``model``, ``data`` and ``trainer`` of ``LightningCLI``, optionally
    ``optimizer`` and ``lr_scheduler``, and ``audit`` with the arguments of :class:`AuditConfig`.
    Inside :func:`importable`, classes are found from the current directory too.
    """
    path = given_path("file", file)
    content = _load(path)
    config = AuditConfig(**_with_objects(path, content.get("audit", {})))
    with preserved():
        parsed = _build(path, None, ["--seed_everything=false"]).config
    for key in config.scaled:
        check_length(f"audit.scaled: {key}", parsed.get(key))
    for name, changes in config.controls.items():
        for key in changes:
            if key.split(".")[0] not in _TRAINED or key not in parsed:
                raise ConfigError(f"audit.controls.{name}", "a key of the file", key)

    def make_run(arm: AuditArm) -> Any:
        changed = [f"--seed_everything={arm.seed}"]
        changed += [f"--{key}={arm.scaled(parsed.get(key))}" for key in config.scaled]
        changed += [f"--{key}={json.dumps(value)}" for key, value in arm.changes.items()]
        built = _build(path, arm, changed)
        return built.trainer, built.model, built.datamodule

    return make_run, config, {"file": {k: v for k, v in content.items() if k in _TRAINED}}


def _load(path: Path) -> dict[str, Any]:
    """Return the file's content, with known sections that are mappings."""
    with named("file", "a file that can be read", path):
        text = path.read_bytes()
    try:
        content = yaml.safe_load(text.decode())
        json.dumps(content, default=str)  # refuses what contains itself
    except Exception as error:  # wrong values and deep nesting raise errors of many classes
        raise ConfigError("file", "YAML", str(path), f"The parser says: {error}.") from error
    if not isinstance(content, dict) or not {"model", "trainer"} <= content.keys():
        remedy = "Write the file as for LightningCLI."
        raise ConfigError("file", "YAML with the sections model and trainer", str(path), remedy)
    check_names("file", map(str, content), (*_TRAINED, "audit", "seed_everything"), "sections")
    for name in ("trainer", "audit"):
        if not isinstance(content.get(name, {}), Mapping):
            raise ConfigError(name, "names and values", content[name])
    check_names("audit", map(str, content.get("audit", {})), AuditConfig.__dataclass_fields__)
    return content


def _with_objects(path: Path, audit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section ``audit`` with objects in place of described updates and predictors."""
    hybrid = audit.get("hybrid", {})
    if not isinstance(hybrid, Mapping):
        return dict(audit)  # to be refused
    described = {name: hybrid[name] for name in _METHODS if hybrid.get(name)}
    # What is wrong elsewhere is told before the user's modules are imported.
    others = {name: value for name, value in hybrid.items() if name not in described}
    AuditConfig(**{**audit, "hybrid": others})
    parser = ArgumentParser(exit_on_error=False)
    for name in described:
        parser.add_argument(f"--audit.hybrid.{name}", type=_METHODS[name])
    with _named(path):
        parsed: Namespace = parser.parse_object({"audit": {"hybrid": described}})
        made = parser.instantiate_classes(parsed)
    objects = {name: made[f"audit.hybrid.{name}"] for name in described}
    return {**audit, "hybrid": {**hybrid, **objects}}


class _Builder(LightningCLI):
    """Builds model, data and the Trainer of an arm from a file, and runs nothing.

    Without an arm it only parses.
    """

    arm: AuditArm | None = None

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Let the parser pass over the section that the audit itself reads."""
        parser.add_argument("--audit", type=dict, help="read by the audit itself")

    def instantiate_classes(self) -> None:
        """Build the objects, but for loggers: some write as soon as they are built."""
        if self.arm is not None:
            self.loggers = self.config.trainer.pop("logger")
            super().instantiate_classes()

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Build the Trainer of the arm."""
        assert self.arm is not None
        options = {**self.config_init.get("trainer", {}), **kwargs}
        return self.arm.trainer(**options, logger=self.loggers)


def _build(path: Path, arm: AuditArm | None, changed: list[str]) -> Any:
    """Return Lightning's command line with the file's model, data and Trainer for one arm.

    ``changed`` has arguments that override those of the file.
    """
    builder: Callable[..., Any] = type("AuditCLI", (_Builder,), {"arm": arm})
    arguments = sys.argv
    sys.argv = arguments[:1]  # the command's own are not for Lightning and the user's model
    try:
        with _named(path):
            return builder(
                save_config_callback=None,
                seed_everything_default=False,
                parser_kwargs={"exit_on_error": False},
                args=["--config", str(path), *changed],
                run=False,
                load_from_checkpoint_support=False,
            )
    finally:
        sys.argv = arguments


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn what the parser says of a file into an error in one line that names the key."""
    try:
        with warnings.catch_warnings():
            # Lightning uses what newer versions of its parser call deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    except ArgumentError as error:
        text = str(error)
        key = re.search(r'key "([\w.]+)"', text)
        problem = re.search(r"- (Problem with .*\n.*|Import path .*)", text)
        told = " ".join((problem[1] if problem else text).split())
        remedy = f"Lightning's parser says: {told}."
        expected = "what LightningCLI accepts"
        raise ConfigError(key[1] if key else "file", expected, str(path), remedy) from error


@contextmanager
def importable() -> Iterator[None]:
    """Let modules be found from the current directory inside the block."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before
