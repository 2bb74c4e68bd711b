"""Time, chance and identity: the only module that reads a clock, a die or the boot id.

Everything else is given a `Clock` and an `Rng`, so that the same code runs on the machine's time and on a
simulated one. Instants are aware datetimes in UTC with milliseconds; their one text form sorts as they do.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.model.errors import BadInstant

if TYPE_CHECKING:
    from random import Random
    from uuid import UUID

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
_VERSION_BITS = 48  # below 2**53, so that a JSON reader in any language keeps it exact


class Clock(Protocol):
    """What the program may know of time."""

    def now(self) -> datetime:
        """The wall clock, UTC, in whole milliseconds."""

    def elapsed(self) -> float:
        """Seconds on a clock that never jumps; only differences mean anything."""

    def uptime(self) -> int:
        """Milliseconds since boot, time asleep included; comparable between processes of one boot."""

    def boot_id(self) -> str:
        """Which boot `uptime` counts from."""


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        boot = Path("/proc/sys/kernel/random/boot_id")
        self._boot_id = boot.read_text().strip() if boot.exists() else "unknown-boot"
        # Elsewhere than Linux there is no CLOCK_BOOTTIME: the wall clock stands in, and `doctor` says so.
        self.has_boottime = boot.exists() and hasattr(time, "CLOCK_BOOTTIME")
        self._last = (0, EPOCH)

    def now(self) -> datetime:
        milliseconds = time.time_ns() // 1_000_000
        last = self._last
        if milliseconds != last[0]:  # steps ask many times in a millisecond
            self._last = last = (milliseconds, datetime.fromtimestamp(milliseconds / 1000, UTC))
        return last[1]

    def elapsed(self) -> float:
        return time.monotonic()

    def uptime(self) -> int:
        if self.has_boottime:
            return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        return time.time_ns() // 1_000_000

    def boot_id(self) -> str:
        return self._boot_id


class VirtualClock:
    """A clock that moves only when told to; simulation and tests own one."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC), boot_id: str = "virtual") -> None:
        self._start = truncate(start)
        self._milliseconds = 0
        self._boot_id = boot_id

    def now(self) -> datetime:
        return self._start + self._milliseconds * MILLISECOND

    def elapsed(self) -> float:
        return self._milliseconds / 1000

    def uptime(self) -> int:
        return self._milliseconds

    def boot_id(self) -> str:
        return self._boot_id

    def advance(self, seconds: float) -> None:
        """Move forward; a part of a millisecond counts as a whole one, so that a wait always ends."""
        self._milliseconds += max(0, -int(-seconds * 1000 // 1))


class Rng:
    """Chance as an argument: seeded in simulation, from the system otherwise."""

    def __init__(self, seed: int | None = None) -> None:
        import random  # who only reads a ledger draws nothing

        self._random: Random = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311 - repeatable on purpose

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def version(self) -> int:
        """A unit's version at birth: random, so that a unit born again never matches an old claim."""
        return self._random.getrandbits(_VERSION_BITS)

    def token(self) -> str:
        """A short id, fresh for every process: 80 random bits."""
        return f"{self._random.getrandbits(80):020x}"

    def secret(self) -> str:
        """256 random bits, as hexadecimal digits."""
        return f"{self._random.getrandbits(256):064x}"

    def uuid(self) -> UUID:
        """A fresh UUID, of version 4."""
        from uuid import UUID

        return UUID(int=self._random.getrandbits(128), version=4)

    def child(self) -> Rng:
        """An independent source whose numbers do not depend on how often this one is asked."""
        return Rng(self._random.getrandbits(64))


def truncate(moment: datetime) -> datetime:
    """The same instant in UTC, cut to whole milliseconds."""
    utc = moment.astimezone(UTC)
    return utc.replace(microsecond=utc.microsecond // 1000 * 1000)


def instant_text(moment: datetime) -> str:
    """`2026-11-15T19:31:00.123Z`: the one text form of an instant."""
    if moment.tzinfo is None:
        msg = f"{moment!r} has no time zone; instants are aware datetimes"
        raise ValueError(msg)
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"


def instant(value: Any) -> Any:
    """An instant as either database returns it: SQLite as text, PostgreSQL as it is."""
    return parse_instant(value) if isinstance(value, str) else value


def parse_instant(text: str) -> datetime:
    """Read `instant_text` back (any ISO form with an offset is accepted). Raises BadInstant."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    except (ValueError, TypeError, OverflowError) as error:  # the first hours of the year 1 lie before it in UTC
        msg = f"{text!r:.100} is not an instant: {error!s:.100}"
        raise BadInstant(msg) from error
    msg = f"{text!r:.100} has no time zone"
    raise BadInstant(msg)
