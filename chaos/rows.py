"""One row of the table: what was done to the system, what it cost, and whether that is within the targets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Row:
    """The figures of one scenario on one database. A row that was not run says why in `not_run`."""

    scenario: str
    database: str
    units: int = 0
    workers: int = 0
    lease: int = 0
    faults: str = ""
    lost: int = 0
    twice: int = 0
    stuck: int = 0
    parked_wrongly: int = 0
    broken: int = 0
    #: Seconds from a fault to progress; empty where nothing was to be measured.
    samples: int = 0
    p50: float | None = None
    p99: float | None = None
    worst: float | None = None
    doctor: str = ""
    note: str = ""
    #: What the scenario itself wants beyond the counts, and did not get.
    misses: list[str] = field(default_factory=list)
    #: The most that `p99` may be.
    within: float | None = None
    #: Where a second effect is within what is promised, because the provider offers no protection against late calls.
    twice_allowed: bool = False
    not_run: str = ""
    seed: int = 0
    seconds: float = 0.0
    quick: bool = False
    when: str = ""
    versions: str = ""

    @property
    def key(self) -> str:
        return f"{self.scenario} on {self.database}"

    def measure(self, samples: Sequence[float]) -> None:
        """Take the seconds from fault to progress."""
        ordered = sorted(samples)
        self.samples = len(ordered)
        if ordered:
            self.p50, self.p99, self.worst = (rank(ordered, share) for share in (0.5, 0.99, 1.0))

    def missed(self) -> list[str]:
        """Every target that was not reached, in words; empty when all were."""
        if self.not_run:
            return []
        counts = {
            "lost": self.lost,
            "twice": 0 if self.twice_allowed else self.twice,
            "stuck": self.stuck,
            "parked wrongly": self.parked_wrongly,
            "with a broken history": self.broken,
        }
        found = [f"{count:,} {what}" for what, count in counts.items() if count]
        if self.stuck and self.doctor == "clean":
            found.append("the doctor saw nothing of it")
        if self.within is not None and (self.p99 is None or self.p99 > self.within):
            shown = "not measured" if self.p99 is None else f"{self.p99:.1f} s"
            found.append(f"p99 {shown}, at most {self.within:g} s wanted")
        return [*found, *self.misses]

    @property
    def verdict(self) -> str:
        if self.not_run:
            return f"not run: {self.not_run}"
        return "; ".join(self.missed()) or "pass"

    def plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def rank(ordered: Sequence[float], share: float) -> float:
    """The smallest of the values that so large a share of them does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def read(plain: dict[str, Any]) -> Row:
    """A row as it was written, by this version of the harness or by one with other figures."""
    known = {f.name for f in dataclasses.fields(Row)}
    return Row(**{name: value for name, value in plain.items() if name in known})
