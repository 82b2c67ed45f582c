"""Text that any terminal can print."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

_BLANKS = str.maketrans("\n\r\t\N{NO-BREAK SPACE}", "    ")


def printable(text: object) -> str:
    """Return text on one line, with ``?`` for every character that a terminal does not print.

    Control characters could move the cursor, or change colours and the window's title; lone
    surrogates cannot be encoded.
    """
    return "".join(c if c.isprintable() else "?" for c in str(text).translate(_BLANKS))


@contextmanager
def any_encoding() -> Iterator[None]:
    """Let standard output and error print ``?`` for what their encoding lacks, inside the block."""
    streams = [s for s in (sys.stdout, sys.stderr) if isinstance(s, TextIOWrapper) and not s.closed]
    before = [stream.errors for stream in streams]
    for stream in streams:
        stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            if not stream.closed:
                stream.reconfigure(errors=errors)
