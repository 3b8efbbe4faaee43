"""Write numbers that JSON does not have."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """Return a value with infinities and NaN replaced by None, at any depth."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
