"""JSON schema of LightningCLI and audit files, for completion in editors."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from inspect import getdoc, signature
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from docstring_parser import parse

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.config import HISTORY_DTYPES, KINDS, HybridConfig
from hybrid_predict.forecast.predictors import PREDICTORS
from hybrid_predict.integrations.lightning import HybridPredict
from hybrid_predict.objects import OBJECTS
from hybrid_predict.updates import UPDATES

Schema = dict[str, Any]

_MARKUP = re.compile(r":\w+:(?=`)|`|\\(?=\w)")

_SIMPLE = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}

_KNOWN: dict[str, Mapping[str, type]] = {"updates": UPDATES, "predictors": PREDICTORS}


def schema() -> Schema:
    """Return the schema of the Trainer's callbacks and of the section ``audit``."""
    paths = ["HybridPredict", "hybrid_predict.HybridPredict"]
    listed = {"$ref": "#/$defs/callback"}
    callbacks = {
        "anyOf": [{"type": "array", "items": listed}, listed, {"type": ["boolean", "null"]}]
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Files for LightningCLI and hybrid-predict audit",
        "type": "object",
        "properties": {
            "trainer": {"type": "object", "properties": {"callbacks": callbacks}},
            "audit": _of_class(AuditConfig),
        },
        "$defs": {
            "callback": {
                "type": ["object", "string"],
                "properties": {"class_path": {"type": "string"}},
                **_when(paths, _of_class(HybridPredict)),
            },
            "HybridConfig": _of_class(HybridConfig),
            **{name: _object(known) for name, known in _KNOWN.items()},
        },
    }


def _when(paths: list[str], arguments: Schema) -> Schema:
    """Restrict ``init_args`` if ``class_path`` is one of ``paths``."""
    is_one = {"properties": {"class_path": {"enum": paths}}, "required": ["class_path"]}
    return {"if": is_one, "then": {"properties": {"init_args": arguments}}}


def _object(known: Mapping[str, type]) -> Schema:
    """Return the schema of a registered name, or of an object of any class."""
    described = {
        "type": "object",
        "properties": {"class_path": {"type": "string"}, "init_args": {"type": "object"}},
        "required": ["class_path"],
        "additionalProperties": False,
        "allOf": [_when([f"hybrid_predict.{c.__name__}"], _of_class(c)) for c in known.values()],
    }
    return {"anyOf": [{"enum": list(known)}, described]}


def _of_class(cls: type) -> Schema:
    """Return the schema of the arguments of a class, with descriptions from its docstring."""
    hints = get_type_hints(cls.__init__ if cls is HybridPredict else cls)
    described = [*parse(getdoc(HybridConfig) or "").params, *parse(getdoc(cls) or "").params]
    texts = {p.arg_name: " ".join((p.description or "").split()) for p in described}
    properties: Schema = {}
    for name, parameter in signature(cls).parameters.items():
        properties[name] = {"description": _MARKUP.sub("", texts[name])} if name in texts else {}
        properties[name] |= _named(name, hints[name])
        if isinstance(parameter.default, (bool, int, float, str)):
            properties[name]["default"] = parameter.default
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _named(name: str, hint: Any) -> Schema:
    """Return the schema of an argument by its name, or else by its type."""
    if name in OBJECTS:
        by_kind = {kind: {"$ref": f"#/$defs/{name}"} for kind in KINDS}
        closed = {"properties": by_kind, "additionalProperties": False}
        return {"type": ["object", "null"], **closed}
    if name == "directions":
        return {"type": "array", "items": {"$ref": "#/$defs/updates"}}
    if name == "kinds":
        return {"type": ["object", "null"], "additionalProperties": {"enum": list(KINDS)}}
    if name == "history_dtype":
        return {"enum": [*HISTORY_DTYPES, None]}
    if name in ("config", "hybrid"):
        return {"anyOf": [{"$ref": "#/$defs/HybridConfig"}, {"type": "null"}]}
    return _typed(hint)


def _typed(hint: Any) -> Schema:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_typed(each) for each in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple:
        return {"type": "array", "items": _typed(inner[0])}
    if Mapping in (hint, origin):
        return {"type": "object", "additionalProperties": _typed(inner[1]) if inner else {}}
    if hint is Any:
        return {}
    raise TypeError(f"no schema is known for {hint!r}")
