"""Audits in a YAML file of Lightning's own command line, with one more section ``audit``."""

from __future__ import annotations

import json
import warnings
from argparse import ArgumentError
from collections.abc import Callable
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from hybrid_predict.audit.arm import AuditArm, MakeRun, check_length
from hybrid_predict.audit.config import SET_BY_THE_AUDIT, AuditConfig
from hybrid_predict.config import HybridConfig, check_names
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import Predictor
from hybrid_predict.runs.files import given_path
from hybrid_predict.runs.runtime import preserved
from hybrid_predict.updates import AbstractUpdate

_TRAINED = ("model", "data", "trainer", "optimizer", "lr_scheduler")
"""Sections that finished runs depend on."""

_METHODS: dict[str, Any] = {
    "updates": dict[str, str | AbstractUpdate] | None,
    "predictors": dict[str, str | Predictor] | None,
}
"""Fields of ``hybrid`` that may describe objects by their classes."""


def read_audit(file: str | Path) -> tuple[MakeRun, AuditConfig, dict[str, Any]]:
    """Return ``make_run``, the configuration, and what finished runs depend on, from a YAML file.

    It has the sections ``model``, ``data`` and ``trainer`` of ``LightningCLI``, optionally
    ``optimizer`` and ``lr_scheduler``, and ``audit`` with the arguments of :class:`AuditConfig`.
    """
    path = given_path(file)
    expected = "a YAML file with the sections model, data, trainer and audit"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, OSError, ValueError, LookupError) as error:
        remedy = f"Reading it failed with: {error}."
        if ":" in path.name:
            remedy = "Pass what a function makes to hybrid_predict.audit.audit(make_run, config)."
        raise ConfigError("file", expected, str(path), remedy) from error
    given = content.get("audit") or {} if isinstance(content, dict) else None
    if not isinstance(given, dict):
        raise ConfigError("file", expected, str(path))
    check_names("audit", given, AuditConfig.__dataclass_fields__, "keys")
    with preserved():
        builder = _build(path, None, ["--seed_everything=false"])
    parsed = builder.config
    fields = {name: parsed.audit[name] for name in given if name != "hybrid"}
    hybrid = {name: builder.hybrid[name] for name in given.get("hybrid") or {}}
    config = AuditConfig(**fields, hybrid=hybrid)
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


class _Builder(LightningCLI):
    """Builds model, data and the Trainer of an arm from a file, and runs nothing.

    Without an arm it only builds ``hybrid``, the fields of that section.
    """

    arm: AuditArm | None = None

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the section of the audit."""
        options: dict[str, Any] = {"instantiate": False}
        parser.add_class_arguments(AuditConfig, "audit", skip={"hybrid"}, **options)
        skipped = {*_METHODS, *SET_BY_THE_AUDIT}
        parser.add_class_arguments(HybridConfig, "audit.hybrid", skip=skipped, **options)
        for name, method in _METHODS.items():
            parser.add_argument(f"--audit.hybrid.{name}", type=method)

    def instantiate_classes(self) -> None:
        """Build the objects, but for loggers: some write as soon as they are built."""
        if self.arm is None:
            section = Namespace(audit=Namespace(hybrid=self.config.audit.hybrid))
            self.hybrid = self.parser.instantiate_classes(section).audit.hybrid
        else:
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
    try:
        with warnings.catch_warnings():
            # The command's own arguments, in sys.argv, are not for Lightning.
            warnings.filterwarnings("ignore", "LightningCLI's args parameter")
            # Lightning uses what newer versions of its parser call deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            return builder(
                save_config_callback=None,
                seed_everything_default=False,
                parser_kwargs={"exit_on_error": False},
                args=["--config", str(path), *changed],
                run=False,
                load_from_checkpoint_support=False,
            )
    except ArgumentError as error:
        remedy = f"Its parser says: {shorten(str(error), 800)}"
        raise ConfigError("file", "what LightningCLI accepts", str(path), remedy) from error
