"""To come."""

from __future__ import annotations

from typing import Any

OPERATIONS: list[Any] = []
