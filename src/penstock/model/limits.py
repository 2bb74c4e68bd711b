"""What is known of a provider before the first call: how fast it may be asked, and by how many at once."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from penstock.model.errors import UsageError


class Limit(Struct, frozen=True):
    """One budget: `rate` per second and at most `burst` at once, of which a call takes `cost`. Raises UsageError."""

    name: str
    rate: float
    burst: float
    cost: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.rate < math.inf and 0 < self.cost <= self.burst < math.inf):
            msg = (
                f"limit {self.name!r}: rate {self.rate:g}, burst {self.burst:g}, cost {self.cost:g} allow no call;"
                " rate and cost are above 0, and burst is at least cost"
            )
            raise UsageError(msg)


class GateLimits(Struct, frozen=True):
    """The limits of one provider, or of one of its accounts (`accounting/acme`); each gate behind it has its own."""

    name: str
    limits: tuple[Limit, ...] = ()
    max_in_flight: int | None = None

    def covers(self, gate_id: str) -> bool:
        """Whether a gate is this provider's: it has its name, or a name below it."""
        return gate_id == self.name or gate_id.startswith(f"{self.name}/")


def limits_of(gate_id: str, providers: Iterable[GateLimits]) -> GateLimits | None:
    """Whose limits a gate has: an account's own before its provider's."""
    return max((p for p in providers if p.covers(gate_id)), key=lambda p: len(p.name), default=None)
