"""What an operation comes to before anything is done: a plan, one of a closed set.

A plan is a value. It can be shown, counted, digested and compared; the kernel carries it out. `NOW` in a change stands
for the moment of the act, so that a plan made a minute later is the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from penstock.model.machine import Machine
from penstock.model.outcome import Birth, Event, Move, Write
from penstock.model.unit import NOW, GuardedUnit, Ref

if TYPE_CHECKING:
    from sqlalchemy import Table

    from penstock.ledger.births import Product
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Cursor

__all__ = [
    "NOW",
    "Births",
    "Each",
    "Follow",
    "GateChange",
    "Issue",
    "Moves",
    "Park",
    "Part",
    "Plan",
    "Together",
    "Unpark",
    "Wake",
]

Skipped: TypeAlias = Mapping[Ref, str]


class Part(Struct, frozen=True, eq=False):
    """Units that get the same change: from one state to another (or none), with the same values of columns."""

    source: str
    target: str
    changes: Mapping[str, Any]
    #: `unit_id` and the version that was seen.
    units: list[tuple[str, int]] = []


class Each(Struct, frozen=True):
    """Moves of units of one machine, each by itself: one that has changed meanwhile is skipped, the others go.

    `says` is what is done, as a command without a full stop: "fetch 12 datasets again". `warnings` are sentences to
    read before saying yes.
    """

    machine: Machine
    parts: Sequence[Part]
    skipped: Skipped
    says: str
    warnings: Sequence[str] = ()

    def __len__(self) -> int:
        return sum(len(part.units) for part in self.parts)

    def refs(self) -> Iterator[Ref]:
        """The units that would be moved."""
        return (Ref(self.machine.name, unit_id) for part in self.parts for unit_id, _ in part.units)


class Follow(Struct, frozen=True, eq=False):
    """A unit whose progress is what the person wants to see: once `until` is true of it, `show` answers an Ask.

    `how_far` says how many of how many are done (None: nobody knows). `worked` names the machine whose steps bring it
    forward, where that is not its own.
    """

    ref: Ref
    until: Callable[[Any], bool]
    show: Callable[[Any], Any]
    how_far: Callable[[Ledger, Any], tuple[int, int | None]]
    worked: str | None = None


class Together(Struct, frozen=True):
    """Changes that are made in one transaction or not at all.

    - `first`: rows that mean nothing until the rest is there; each of these is written before it, in a transaction of
      its own, so that they may be more than one transaction carries.
    - `then`: moves that it starts as a bulk action.
    - `about`: the units, or what else its rows are about, where it moves and makes none.
    - `warnings`: sentences to read before saying yes.
    - `harmless`: nobody needs to be asked, because nothing comes of it unless more is done.
    - `follow`: the unit that is waited for afterwards.
    """

    says: str
    moves: Sequence[Move] = ()
    births: Sequence[Birth] = ()
    writes: Sequence[Write] = ()
    events: Sequence[Event] = ()
    then: Each | None = None
    warnings: Sequence[str] = ()
    about: Sequence[Ref | str] = ()
    first: Sequence[Write] = ()
    harmless: bool = False
    follow: Follow | None = None

    def __len__(self) -> int:
        if self.about:
            return len(self.about)
        changed = len(self.moves) + len(self.births) + len(self.writes) + (len(self.then) if self.then else 0)
        return changed or len(self.events)


class Births(Struct, frozen=True):
    """Units to be made where they are not there yet: given one by one, or as products of two sides."""

    machine: Machine
    says: str
    units: Sequence[GuardedUnit] = ()
    products: Sequence[Product] = ()
    skipped: Skipped = {}
    warnings: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.units) + sum(len(product) for product in self.products)


class _Named(Struct, frozen=True):
    """Units by their references, each by itself. `warnings` are sentences to read before saying yes."""

    refs: Sequence[Ref]
    skipped: Skipped
    says: str
    warnings: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.refs)


class Wake(_Named, frozen=True):
    """Units that are to be looked at now."""


class Park(_Named, frozen=True):
    """Units that are set aside: no worker takes them until they are unparked."""


class Unpark(_Named, frozen=True):
    """Units that were set aside and are to go on."""


class GateChange(Struct, frozen=True):
    """Gates that are paused or resumed: the one of that name and all below it. `span` None: until they are resumed.

    `wakes` are units that have put themselves off until a gate opens: they are looked at when it is resumed.
    """

    name: str
    #: Those that exist today; one that does not exist yet may be paused too.
    gates: Sequence[str]
    says: str
    pause: bool
    span: timedelta | None = None
    wakes: Sequence[Ref] = ()
    warnings: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.gates) or int(self.pause)


class Issue(Struct, frozen=True):
    """A secret that is drawn at the act and shown once: a row of a table that keeps its id and a hash of it.

    `row` has the other columns, `moments` those that are so long after the act. `event` is told with the row. `check`
    is asked again in the transaction of the act, where nobody else issues anything, and raises what keeps it back.
    """

    table: Table
    row: Mapping[str, Any]
    moments: Mapping[str, timedelta]
    says: str
    event: str
    harmless: bool = True
    check: Callable[[Cursor], None] | None = None

    def __len__(self) -> int:
        return 1


Plan: TypeAlias = Each | Together | Births | Wake | Park | Unpark | GateChange | Issue


class Moves:
    """Gathers moves unit by unit into parts that are alike: `moves.add(unit, S.MISSING, attempts=0, due_at=NOW)`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.skipped: dict[Ref, str] = {}
        self._parts: dict[tuple[str, str, str], Part] = {}

    def add(self, unit: GuardedUnit, target: str | None = None, **changes: Any) -> None:
        """Move this unit; without a target it keeps its state."""
        source = str(unit.status)
        part = Part(source, str(target) if target is not None else source, changes)
        found = self._parts.setdefault((part.source, part.target, repr(sorted(changes.items()))), part)
        found.units.append((unit.unit_id, unit.version))

    def skip(self, unit_id: str, why: str) -> None:
        """Leave this unit as it is, and say why."""
        self.skipped[Ref(self.machine.name, unit_id)] = why

    def skip_all(self, unit_ids: Iterable[str], why: str) -> None:
        """Leave these as they are, all for one reason."""
        for unit_id in unit_ids:
            self.skip(unit_id, why)

    def __len__(self) -> int:
        return sum(len(part.units) for part in self._parts.values())

    def plan(self, says: str, warnings: Sequence[str] = ()) -> Each:
        """The moves as a plan."""
        return Each(self.machine, list(self._parts.values()), self.skipped, says, warnings)
