"""Makes the source tree importable as it lies: the integrations are beside the package there."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def map_integrations(package: str, file: str) -> None:
    """Let the folder beside an uninstalled package be its subpackage ``integrations``.

    The source tree comes first on ``sys.path`` in the root of a checkout and hides an installed
    package, whose ``integrations`` would be inside it.

    Args:
        package: The package's name.
        file: Its ``__init__.py``.
    """
    name, inside = f"{package}.integrations", Path(file).with_name("integrations")
    beside = Path(file).parents[1] / "integrations"
    if name in sys.modules or inside.exists() or not (beside / "__init__.py").exists():
        return
    spec = spec_from_file_location(
        name, beside / "__init__.py", submodule_search_locations=[str(beside)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
