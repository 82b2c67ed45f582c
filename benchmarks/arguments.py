"""Arguments that the programs of the benchmark share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable


def one_of(known: Iterable[str]) -> Callable[[str], str]:
    """Return a type of arguments that must be one of some names."""
    names = list(known)

    def name(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
        return text

    return name
