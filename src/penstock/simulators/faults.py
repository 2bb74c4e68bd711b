"""Trouble that is asked for: which calls of a simulator meet which fault. What a fault is, each simulator says."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

F = TypeVar("F")


@dataclass(slots=True, kw_only=True)
class Troubles(Generic[F]):
    """`faults` are those of the next calls of an operation, `every` those of every Nth; `counted` are the calls."""

    faults: dict[str, deque[F]] = field(default_factory=lambda: defaultdict(deque))
    every: dict[tuple[str, int], F] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)

    def trouble(self, operation: str) -> F | None:
        """Count a call of an operation; the fault that it meets."""
        self.counted[operation] += 1
        if self.faults[operation]:
            return self.faults[operation].popleft()
        count = self.counted[operation]
        return next((fault for (kind, n), fault in self.every.items() if kind == operation and count % n == 0), None)


class Refused(Exception):
    """The call has no answer but what its fault says."""

    def __init__(self, fault: Any) -> None:
        super().__init__(fault)
        self.fault = fault

    def answered(self) -> Any:
        """The fault, to be made an answer of. Raises ConnectionAbortedError where it breaks the connection."""
        if self.fault.cut:
            raise ConnectionAbortedError("asked for by a fault") from None
        return self.fault
