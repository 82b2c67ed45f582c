"""Silence for what the tables of the benchmark tell anyway."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_advice() -> Iterator[None]:
    """Silence the plug-in's advice inside the block: its cost is high on tasks this small."""
    logger = logging.getLogger("hybrid_predict")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
