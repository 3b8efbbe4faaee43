"""One value for each setting that may be a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..methods.relations import Relations
from ..privacy.budget import PerSilo


@dataclass(frozen=True)
class Variant:
    """One value for each setting that may be a list; each variant is trained with every seed."""

    shown: dict[str, Any]
    settings: dict[str, float]
    lr: PerSilo
    epsilon: PerSilo
    clip: PerSilo
    noise: PerSilo


def shown_setting(value: Any) -> Any:
    """Return a setting as results show it."""
    return str(value) if isinstance(value, Relations) else value
