"""What can be told of an audit's YAML file without torch, Lightning or the user's own modules."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.config import HybridConfig, check_names
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.objects import OBJECTS

CLASSES = ("model", "data", "optimizer", "lr_scheduler")
"""Sections that describe an object."""

_SECTIONS = (*CLASSES, "trainer", "audit", "seed_everything")


def is_file(name: str) -> bool:
    """Whether a name is that of a file, and not ``module:function``."""
    return ":" not in name or Path(name).exists()


def check_file(file: str | Path) -> None:
    """Check a file's sections, and the names and values of its audit, before slow imports.

    Raises:
        ConfigError: If the file cannot be read, or a name or a value cannot be right.
    """
    if find_spec("yaml") is not None:  # it comes with an extra, which the command asks for
        check_sections(load(file))


def load(file: str | Path) -> dict[str, Any]:
    """The file's content as plain data.

    Raises:
        ConfigError: If it cannot be read, or is no YAML with the sections that it needs.
    """
    import yaml  # type: ignore[import-untyped,unused-ignore]

    path = Path(file)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        remedy = f"The system says: {error.strerror}."
        raise ConfigError("file", "a file that can be read", str(path), remedy) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        remedy = f"The parser says: {error}."
        raise ConfigError("file", "YAML", str(path), remedy) from error
    if not isinstance(content, dict):
        raise ConfigError("file", "YAML with the sections model and trainer", str(path))
    for name in ("model", "trainer"):
        if name not in content:
            remedy = "Write the file as for LightningCLI."
            raise ConfigError("file", f"a section {name}", sorted(map(str, content)), remedy)
    return content


def check_sections(content: Mapping[str, Any]) -> None:
    """Check the names of sections, and names and values of ``audit``, but for its objects.

    Raises:
        ConfigError: If a name is not known, or a value cannot be right.
    """
    check_names("file", map(str, content), _SECTIONS)
    for name in ("trainer", "audit"):
        if not isinstance(content.get(name, {}), Mapping):
            raise ConfigError(name, "names and values", content[name])
    audit = content.get("audit", {})
    check_names("audit", map(str, audit), AuditConfig.__dataclass_fields__)
    hybrid = audit.get("hybrid", {})
    if isinstance(hybrid, Mapping):
        objects = {name: hybrid[name] for name in OBJECTS if name in hybrid}
        HybridConfig(**objects)
        hybrid = {name: value for name, value in hybrid.items() if name not in objects}
    AuditConfig(**{**audit, "hybrid": hybrid})
