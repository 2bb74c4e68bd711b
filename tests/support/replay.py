"""A forecast made of the past, compared with what came: matched by machine, states and hour, with multiplicity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from penstock.app.program import Program
from penstock.ledger.ledger import Ledger
from penstock.model.clock import instant
from penstock.operations.outlook import prospect_of
from penstock.operations.reader import Reader

DAY = timedelta(days=1)
Change = tuple[str, str | None, str | None, datetime]


@dataclass
class Measured:
    """How many changes happened by themselves, were said, and both; and how many people set off."""

    happened: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    both: Counter[str] = field(default_factory=Counter)
    by_people: Counter[str] = field(default_factory=Counter)

    def recall(self, lifecycle: str | None = None) -> float:
        """The share of what happened that was said."""
        return _share(self.both, self.happened, lifecycle)

    def precision(self, lifecycle: str | None = None) -> float:
        """The share of what was said that happened."""
        return _share(self.both, self.said, lifecycle)


def _share(some: Counter[str], all_: Counter[str], lifecycle: str | None) -> float:
    if lifecycle is not None:
        return some[lifecycle] / all_[lifecycle]
    return some.total() / all_.total()


class Replay:
    """Forecasts of a ledger's past, each of 24 hours."""

    def __init__(self, program: Program, ledger: Ledger) -> None:
        self._program = program
        self._reader = Reader(ledger.database, program.app.machines)
        self._machines = {one.name: one for one in program.app.machines}
        self._homes = {m.name: one.name for one in program.app.lifecycles for m in one.machines}
        sql = "SELECT machine, unit_id, from_status, to_status, actor, at FROM transition_log ORDER BY seq"
        self._history = [(*row[:5], instant(row[5])) for row in ledger.read(lambda cursor: cursor.rows(sql))]

    def measure(self, instants: Iterable[datetime]) -> Measured:
        found = Measured()
        for at in instants:
            happened, by_people = self._came(at, at + DAY)
            said: Counter[Change] = Counter()
            for one in prospect_of(self._program, self._reader, at, at + DAY, past=True).rows:
                said[one.machine, one.source, one.target, one.hour] += one.n
            for into, counts in (
                (found.happened, happened),
                (found.said, said),
                (found.both, happened & said),
                (found.by_people, by_people),
            ):
                for change, n in counts.items():
                    into[self._homes[change[0]]] += n
        return found

    def _came(self, at: datetime, end: datetime) -> tuple[Counter[Change], Counter[Change]]:
        """What happened by itself, and what people set off after the instant: of units they touched, from then on."""
        touched: set[tuple[str, str]] = set()
        alone: Counter[Change] = Counter()
        by_people: Counter[Change] = Counter()
        for machine, unit_id, source, target, actor, moment in self._history:
            if not at < moment <= end:
                continue
            who = actor.partition(":")[0]
            if who in {"operator", "sql"} or (who == "api" and source is None):
                touched.add((machine, unit_id))
            change = (machine, source, target, moment.replace(minute=0, second=0, microsecond=0))
            people = not touched.isdisjoint(self._family(machine, unit_id))
            (by_people if people else alone)[change] += 1
        return alone, by_people

    def _family(self, machine: str, unit_id: str) -> Iterator[tuple[str, str]]:
        """A unit and those above it."""
        yield machine, unit_id
        parent: Any = self._machines[machine].parent
        key = self._machines[machine].unit.key
        if parent is not None and set(parent.by) <= set(key):
            parts = unit_id.split("/")
            yield from self._family(parent.machine, "/".join(parts[key.index(name)] for name in parent.by))
