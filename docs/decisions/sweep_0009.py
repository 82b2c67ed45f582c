"""What histories in half the memory cost in quality: the variants of decision 9."""

from __future__ import annotations

from typing import Any

from earlier import earlier

VARIANTS: dict[str, dict[str, Any]] = {
    "default": earlier(),
    "history in bfloat16": earlier(history_dtype="bfloat16"),
}
