"""How a unit is decided, apart from the flow that acts on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.model.outcome import Decision


@dataclass(frozen=True, slots=True)
class Decider:
    """A flow's `decide` by itself, under its lifecycle's settings: `why` asks it and loads no client and no table."""

    decide: Callable[[Any, datetime, Any, Any], Decision]
    #: What the flow's steps are called, where that is not the machine's name.
    name: str | None = None
    #: The flow's own `peek`, where it has one.
    peek: Callable[[Any, Any], Any] | None = None
