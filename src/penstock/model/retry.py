"""Durable retry: a later `due_at`, never a sleep."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from penstock.model.clock import Rng

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?\Z")  # float() would also take 1_000, 1e3 and nan


class RetryPolicy(Struct, frozen=True):
    """How often and how patiently to try again. `max_retries=3` means at most four calls."""

    max_retries: int = 3
    base: timedelta = timedelta(seconds=2)
    cap: timedelta = timedelta(seconds=64)
    multiplier: float = 2.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if self.max_retries < 0 or self.base <= timedelta() or self.cap < self.base:
            msg = "a retry policy needs max_retries >= 0, base > 0 and cap >= base"
            raise ValueError(msg)
        if self.multiplier < 1 or not 0 <= self.jitter < 1:
            msg = "a retry policy needs multiplier >= 1 and 0 <= jitter < 1"
            raise ValueError(msg)

    def exhausted(self, attempts: int) -> bool:
        """Whether a unit that already made `attempts` retries has none left."""
        return attempts >= self.max_retries

    def delay(self, attempts: int, rng: Rng) -> timedelta:
        """How long to wait before retry number `attempts + 1`: base, then times the multiplier, to the cap."""
        # The exponent is bounded first: 2.0 ** 5000 would overflow long before the cap could apply.
        exponent = min(attempts, 64)
        plain = min(self.base.total_seconds() * self.multiplier**exponent, self.cap.total_seconds())
        return timedelta(seconds=plain * (1 + rng.uniform(-self.jitter, self.jitter)))


THROTTLE_POLICY = RetryPolicy(base=timedelta(seconds=16), cap=timedelta(seconds=64), jitter=0.0)
"""16, 32, 64 s: how long a gate stays closed after a throttle that named no time."""


OUTAGE_POLICY = RetryPolicy(base=timedelta(seconds=8), cap=timedelta(minutes=5))
"""16, 32 s and so on to five minutes, by how many calls in a row failed at the gate: when a unit is tried again whose
failure is not charged to it. Slower than a charged one: a single unit that fails alone must not look like an outage."""


LONGEST_WAIT = timedelta(hours=48)
"""How long a provider is believed when it asks for quiet; what is longer is cut to this, and somebody is told."""


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Seconds asked for by a `Retry-After` header (integer, decimal or HTTP date); None when unreadable."""
    text = value.strip()
    if _NUMBER.match(text):
        seconds = float(text)
    else:
        from email.utils import parsedate_to_datetime  # a provider that names a date is rare

        try:
            moment = parsedate_to_datetime(text)
            aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            seconds = (aware - now).total_seconds()
        except (TypeError, ValueError, OverflowError, IndexError, AttributeError):  # all that the parser raises
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
