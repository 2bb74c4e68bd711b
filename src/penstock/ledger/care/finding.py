"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, or soon will be (`warning`): which check found it, in what, and what it means."""

    check: str
    subject: str
    message: str
    severity: Literal["error", "warning"] = "error"
