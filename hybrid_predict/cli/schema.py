"""``hybrid-predict schema``: the JSON schema of configuration files."""

from __future__ import annotations

import json
from argparse import Namespace
from importlib.util import find_spec

from hybrid_predict.cli.program import Command, under_way
from hybrid_predict.errors import MissingExtraError
from hybrid_predict.runs.files import given_path, replace_text


def _run(options: Namespace) -> int:
    if find_spec("docstring_parser") is None:
        raise MissingExtraError("The schema", "cli")
    under_way("loading torch")
    from hybrid_predict.audit.schema import schema

    text = json.dumps(schema(), indent=2, ensure_ascii=False)
    if options.output is None:
        print(text)
        return 0
    path = replace_text(given_path("--output", options.output), text + "\n", "--output")
    print(f"Schema:  {path}\nFirst line of a file for it:  # yaml-language-server: $schema={path}")
    return 0


COMMAND = Command(
    "Print the JSON schema of configuration files, for editors.",
    "Prints a JSON schema of the callback's arguments in a LightningCLI file, and of the section "
    "audit. With it, an editor completes and checks such files.",
    lambda add: add("--output", metavar="FILE", help="File to write (standard output)."),
    _run,
)
