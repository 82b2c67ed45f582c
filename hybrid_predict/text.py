"""Numbers as text for people, and text for any terminal."""

from __future__ import annotations

_BLANKS = str.maketrans("\n\r\t\N{NO-BREAK SPACE}", "    ")


def printable(text: object) -> str:
    """Return text on one line, with ``?`` for every character that a terminal does not print."""
    return "".join(c if c.isprintable() else "?" for c in str(text).translate(_BLANKS))


def percent(share: float) -> str:
    """Format a share as whole percent."""
    return f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """Format seconds for people: ``1.7 ms``, ``0.42 s``, ``12 s``, ``4.5 min``, ``3.2 h``."""
    if seconds < 120:
        number, unit = (1e3 * seconds, "ms") if 0 < seconds < 0.1 else (seconds, "s")
        return f"{number:.0f} {unit}" if number >= 10 else f"{float(f'{number:.2g}'):g} {unit}"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
