"""Audits in a YAML file of Lightning's own command line, with one more section ``audit``."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import warnings
from argparse import ArgumentError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.config import HybridConfig, check_names
from hybrid_predict.errors import ConfigError, did_you_mean
from hybrid_predict.forecast.predictors import AbstractPredictor
from hybrid_predict.runs.files import given_path, read_regular
from hybrid_predict.updates import AbstractUpdate

if TYPE_CHECKING:
    from hybrid_predict.audit.arm import AuditArm, MakeRun

_CLASSES = ("model", "data", "optimizer", "lr_scheduler")
"""Sections that describe an object."""

_MOST_BYTES = 1_000_000
"""Size of the largest file."""

_SECTIONS = (*_CLASSES, "trainer", "audit", "seed_everything")

_METHODS: dict[str, type] = {"updates": AbstractUpdate, "predictors": AbstractPredictor}
"""Fields of ``hybrid`` that may describe an object for each kind, and the class of these."""


def is_file(name: str) -> bool:
    """Whether a name is that of a file, and not ``module:function``."""
    return ":" not in name or os.path.exists(name)


def check_file(file: str | Path) -> None:
    """Check sections, names and values without torch, Lightning or the user's modules."""
    if find_spec("yaml") is not None:  # it is part of an extra, which the command asks for later
        _check_sections(_load(file))


def read_audit(file: str | Path) -> tuple[MakeRun, AuditConfig, dict[str, Any]]:
    """Return ``make_run``, the configuration, and what finished runs depend on, from a YAML file.

    It has the sections ``model``, ``data`` and ``trainer`` of ``LightningCLI``, optionally
    ``optimizer`` and ``lr_scheduler``, and ``audit`` with the arguments of :class:`AuditConfig`.
    Inside :func:`importable`, classes are found from the current directory too.
    """
    from hybrid_predict.audit.arm import check_length
    from hybrid_predict.audit.training import preserved

    path = given_path("file", file)
    content = _load(path)
    with preserved():
        _check_sections(content)
        config = AuditConfig(**_with_objects(content.get("audit", {})))
        _check_classes(content)
        parsed = _build(path, None, ["--seed_everything=false"]).config
    for key in config.scaled:
        remedy = "Name a key of the file that holds a number of steps or epochs."
        check_length(f"audit.scaled: {key}", parsed.get(key), remedy)
    for name, changes in config.controls.items():
        for key in changes:
            if key.split(".")[0] not in (*_CLASSES, "trainer") or key not in parsed:
                remedy = "Name keys of the file's other sections."
                raise ConfigError(f"audit.controls.{name}", "a key of the file", key, remedy)

    def make_run(arm: AuditArm) -> Any:
        changed = [f"--seed_everything={arm.seed}"]
        changed += [f"--{key}={arm.scaled(parsed.get(key))}" for key in config.scaled]
        changed += [f"--{key}={json.dumps(value)}" for key, value in arm.changes.items()]
        built = _build(path, arm, changed)
        return built.trainer, built.model, built.datamodule

    used = {k: v for k, v in content.items() if k not in ("audit", "seed_everything")}
    return make_run, config, {"file": used}


def _load(file: str | Path) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped,unused-ignore]

    path = given_path("file", file)
    text = read_regular(path, "file", _MOST_BYTES)
    try:
        content = yaml.safe_load(text.decode())
        json.dumps(content, default=str)  # refuses what contains itself
    except Exception as error:  # wrong values and deep nesting raise errors of many classes
        remedy = f"The parser says: {error}."
        raise ConfigError("file", "YAML", str(path), remedy) from error
    if not isinstance(content, dict):
        raise ConfigError("file", "YAML with the sections model and trainer", str(path))
    for name in ("model", "trainer"):
        if name not in content:
            remedy = "Write the file as for LightningCLI."
            raise ConfigError("file", f"a section {name}", sorted(map(str, content)), remedy)
    return content


def _check_sections(content: Mapping[str, Any]) -> None:
    """Check names of sections, and names and values of ``audit``, except its objects."""
    check_names("file", map(str, content), _SECTIONS, "sections")
    for name in ("trainer", "audit"):
        if not isinstance(content.get(name, {}), Mapping):
            raise ConfigError(name, "names and values", content[name])
    audit = content.get("audit", {})
    check_names("audit", map(str, audit), AuditConfig.__dataclass_fields__)
    hybrid = audit.get("hybrid", {})
    if isinstance(hybrid, Mapping):
        methods = {name: hybrid[name] for name in _METHODS if name in hybrid}
        HybridConfig(**methods)
        hybrid = {name: value for name, value in hybrid.items() if name not in methods}
    given = {name: value for name, value in audit.items() if name != "directions"}
    AuditConfig(**{**given, "hybrid": hybrid})


def _check_classes(content: Mapping[str, Any]) -> None:
    """Check that classes can be imported and have their arguments; Lightning's errors are vague."""
    import lightning.pytorch as pl

    check_names("trainer", content["trainer"], inspect.signature(pl.Trainer).parameters)
    described = {name: content.get(name) for name in _CLASSES}
    for name, value in content["trainer"].items():
        several = value if isinstance(value, list) else []
        described |= {f"trainer.{name}": value}
        described |= {f"trainer.{name}.{k}": one for k, one in enumerate(several)}
    for name, value in described.items():
        if isinstance(value, Mapping) and isinstance(path := value.get("class_path"), str):
            if hasattr(pl.callbacks, path):
                path = f"{pl.callbacks.__name__}.{path}"
            if "." in path:
                _find_class(name, path, value.get("init_args") or {})


def _with_objects(audit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section ``audit`` with objects in place of described updates and predictors."""
    hybrid = dict(audit.get("hybrid", {}))
    for field, base in _METHODS.items():
        if hybrid.get(field):
            hybrid[field] = {
                kind: _object(f"hybrid.{field}.{kind}", choice, base)
                for kind, choice in hybrid[field].items()
            }
    directions = audit.get("directions", [])
    if isinstance(directions, list):
        directions = [
            _object(f"directions.{k}", choice, AbstractUpdate)
            for k, choice in enumerate(directions)
        ]
    return {**audit, "hybrid": hybrid, "directions": directions}


def _object(name: str, choice: Any, base: type) -> Any:
    """Return the object that a mapping describes by its class and arguments; anything else as is.

    Raises:
        ConfigError: If the class is not derived from ``base``, or does not take the arguments.
    """
    if not (isinstance(choice, Mapping) and "." in str(choice.get("class_path"))):
        return choice
    check_names(name, choice, ("class_path", "init_args"))
    arguments = choice.get("init_args") or {}
    cls = _find_class(name, choice["class_path"], arguments, base)
    try:
        return cls(**arguments)
    except TypeError as error:
        expected = f"arguments of {cls.__name__}"
        raise ConfigError(f"{name}.init_args", expected, arguments, str(error)) from error


def _find_class(name: str, path: str, arguments: Any, base: type | None = None) -> Any:
    """Return the class, or the function that makes objects, that a path names; it is not called.

    Raises:
        ConfigError: If it does not exist, does not take the arguments, or is not derived from
            ``base``. It names the description's place in the file, ``name``.
    """
    if not isinstance(arguments, Mapping):
        raise ConfigError(f"{name}.init_args", "a mapping of arguments", arguments)
    cls = _imported(f"{name}.class_path", path)
    if base is not None and not (isinstance(cls, type) and issubclass(cls, base)):
        remedy = f"Derive a class from {base.__module__}.{base.__name__}."
        raise ConfigError(f"{name}.class_path", f"a subclass of {base.__name__}", path, remedy)
    if not callable(cls):
        raise ConfigError(f"{name}.class_path", "a class", path)
    try:
        parameters = inspect.signature(cls).parameters
    except ValueError:  # classes written in C have none
        return cls
    if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        check_names(f"{name}.init_args", arguments, parameters)
    return cls


def _imported(name: str, path: str) -> Any:
    """Return what a path names in its module."""
    module_name, _, attribute = path.rpartition(".")
    try:
        module = import_module(module_name)
    except (ImportError, TypeError, ValueError) as error:
        remedy = f"Python says: {error}. Start the command in the folder of the module."
        raise ConfigError(name, "a class that can be imported", path, remedy) from error
    if not hasattr(module, attribute):
        remedy = did_you_mean(attribute, dir(module))
        raise ConfigError(name, f"a class of {module_name}", attribute, remedy)
    return getattr(module, attribute)


def _build(path: Path, arm: AuditArm | None, changed: list[str]) -> Any:
    """Return Lightning's command line with the file's model, data and Trainer for one arm.

    ``changed`` has arguments that override those of the file. Without an arm it only parses.
    """
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

    from hybrid_predict.audit.training import CREATED, raise_named

    class AuditCLI(LightningCLI):
        """Builds the objects, with the Trainer of the arm, and runs nothing."""

        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.add_argument("--audit", type=dict, help="read by the audit itself")

        def instantiate_classes(self) -> None:
            if arm is not None:
                # The audit replaces loggers; some begin to write as soon as they are built.
                self.loggers = self.config.trainer.pop("logger")
                super().instantiate_classes()

        def instantiate_trainer(self, **kwargs: Any) -> Any:
            assert arm is not None
            options = {**self.config_init.get("trainer", {}), **kwargs}
            return arm.trainer(**options, logger=self.loggers)

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
            raise _parser_error(path, str(error)) from error
        except ValueError as error:  # also of what its objects raise
            if not isinstance(error, ConfigError):
                raise_named(error, CREATED)
            raise


def _parser_error(path: Path, message: str) -> ConfigError:
    """Return an error that names the key that Lightning's parser refuses."""
    key = re.search(r'[Kk]ey "([\w.]+)"', message)
    if key is None:
        remedy = f"Lightning says: {message.splitlines()[0]}"
        return ConfigError("file", "a configuration for LightningCLI", str(path), remedy)
    value: Any = _load(path)
    for name in key[1].split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return ConfigError(key[1], "a value of the type that it takes", value)


@contextmanager
def importable() -> Iterator[None]:
    """Let modules be found from the current directory inside the block."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def _without_arguments() -> Iterator[None]:
    """Hide the command's own arguments from Lightning and the user's model."""
    arguments = sys.argv
    sys.argv = arguments[:1]
    try:
        yield
    finally:
        sys.argv = arguments
