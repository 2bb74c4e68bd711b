"""How a unit is decided, apart from the flow that acts on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.model.outcome import Decision


@dataclass(frozen=True, slots=True)
class Decider:
    """What a flow says of its units, by itself, under its lifecycle's settings.

    `why` and the forecast ask it, and load no client and no table.
    """

    #: None: only the flow can tell, once it is built.
    decide: Callable[[Any, datetime, Any, Any], Decision] | None
    #: What the flow's steps are called, where that is not the machine's name.
    name: str | None = None
    #: The flow's own `peek`, where it has one.
    peek: Callable[[Any, Any], Any] | None = None
    #: The gate that a unit's next step needs, under the lifecycle's settings; None: the one that it has.
    gate: Callable[[Any, Any], str] | None = None
