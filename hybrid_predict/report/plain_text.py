"""Text from files and from users, made safe to print on any terminal."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import TextIOWrapper
from typing import TextIO

_ASCII = str.maketrans(
    {
        **dict(zip("▁▂▃▄▅▆▇█░", "_.,-~=+#.", strict=True)),
        "\N{MIDDLE DOT}": "*",
        "\N{MULTIPLICATION SIGN}": "x",
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{HORIZONTAL ELLIPSIS}": "...",
        "\N{PLUS-MINUS SIGN}": "+-",
    }
)
"""What stands for the signs that the commands print; blocks keep their width."""

_ERRORS = "hybrid_predict.plain"


def printable(text: object) -> str:
    """Return text on one line, with ``?`` for every character that a terminal does not print.

    Control characters could move the cursor, or change colours and the window's title; lone
    surrogates cannot be encoded.
    """
    return "".join(c if c.isprintable() else "?" for c in str(text).translate(_BLANKS))


_BLANKS = str.maketrans("\n\r\t\N{NO-BREAK SPACE}", "    ")


@contextmanager
def any_encoding() -> Iterator[None]:
    """Let standard output and error print every character inside the block.

    A character that their encoding lacks is written as ASCII, or as its escape sequence.
    """
    with ExitStack() as stack:
        for stream in {id(s): s for s in (sys.stdout, sys.stderr)}.values():
            if isinstance(stream, TextIOWrapper):
                stack.callback(_reconfigure, stream, stream.errors)
                _reconfigure(stream, _ERRORS)
        yield


def _reconfigure(stream: TextIO, errors: str | None) -> None:
    assert isinstance(stream, TextIOWrapper)
    with suppress(OSError, ValueError):  # it cannot be written to, or is closed
        stream.reconfigure(errors=errors)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end].translate(_ASCII)
    return found.encode("ascii", "backslashreplace").decode("ascii"), error.end


codecs.register_error(_ERRORS, _plain)
