"""What histories in half the memory cost in quality: the variants of decision 9."""

from __future__ import annotations

from typing import Any

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "history in bfloat16": {"history_dtype": "bfloat16"},
}
