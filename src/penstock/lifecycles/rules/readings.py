"""To come."""

from __future__ import annotations

from typing import Any

READINGS: list[Any] = []
