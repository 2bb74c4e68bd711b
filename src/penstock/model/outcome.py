"""What a step is made of: decisions, and the outcome that the kernel commits whole or not at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct

from penstock.model.machine import Actor
from penstock.model.move_set import MoveSet
from penstock.model.unit import GuardedUnit, Unit

if TYPE_CHECKING:
    from sqlalchemy import Table

U = TypeVar("U", bound=Unit)

MAX_ROWS = 5_000
MAX_BYTES = 4 * 1024 * 1024
MAX_VALUE = 1024 * 1024
"""How many bytes a text or a document has at most, in a column of a unit or of a data table."""
MAX_EVENT = 256 * 1024
"""How many bytes an event's payload has at most: it is sent as one message."""


class Act(Struct, frozen=True):
    """Do this now. `counts_attempt`: it makes a call, which the retry policy counts; recording a finding makes none."""

    what: str
    reason: str
    counts_attempt: bool = True


class Look(Struct, frozen=True):
    """A fact from outside is needed first; decide is called again with it.

    `asks`: the provider is asked for it. A look at our own store or ledger says nothing of the provider's gate.
    """

    reason: str
    asks: bool = True


class Wait(Struct, frozen=True):
    """Nothing to do until then; `None` means until somebody wakes the unit."""

    until: datetime | None
    reason: str


Decision: TypeAlias = Act | Look | Wait


class Write(Struct, frozen=True):
    """Rows of one data table. `on_conflict` speaks of the table's primary key; the last row of a key wins.

    `newer` names a column by which a row is replaced only by one that is not older: an instant or a whole number. What
    has none there is older than anything. `first` names columns that stay as the first row of a key wrote them. With
    `columns` the rows are lists of values in that order, and none of their keys comes twice: for thousands of rows, at
    a third of the cost.
    """

    table: Table
    rows: Sequence[Mapping[str, Any]] | Sequence[Sequence[Any]]
    on_conflict: Literal["update", "ignore", "error"] = "update"
    newer: str | None = None
    first: Collection[str] = ()
    columns: Sequence[str] | None = None


class Where(Struct, frozen=True):
    """Which rows of a data table: those that equal `where` (None: NULL) in all its columns.

    `span` bounds one column further (its first value belongs to it, its last does not), `among` lists values of one.
    """

    table: Table
    where: Mapping[str, Any]
    span: tuple[str, Any, Any] | None = None
    among: tuple[str, Sequence[Any]] | None = None


class Update(Struct, frozen=True):
    """New values for rows that are there, by one statement: bound them so that it takes a second or so."""

    rows: Where
    values: Mapping[str, Any]


class Birth(Struct, frozen=True):
    """A unit to be born with the outcome. `if_absent`: an existing one is left as it is.

    `who` is whoever the history names, if not the one who commits.
    """

    unit: GuardedUnit
    reason: str = "born"
    if_absent: bool = False
    actor: Actor = Actor.WORKER
    who: str | None = None


class Move(Struct, frozen=True):
    """Another unit's change, by compare-and-set on what was read; if it misses, the whole outcome fails.

    `who` is whoever the history names, if not the one who commits. `keep_crashes`: what crashed before is not forgiven,
    because nothing was done for it.
    """

    before: GuardedUnit
    after: GuardedUnit
    reason: str
    actor: Actor = Actor.WORKER
    who: str | None = None
    keep_crashes: bool = False


class Event(Struct, frozen=True):
    """A row of the event log, kept once per (key, tenant); with a severity it is an alert."""

    key: str
    kind: str
    payload: Mapping[str, Any]
    severity: Literal["info", "warning", "critical"] | None = None
    tenant: str = "default"


class Outcome(Struct, Generic[U], frozen=True):
    """What a step came to. `after` is `replace(before, …)`; everything commits in one transaction or nothing does.

    - `writes`: rows of data tables, at most 5,000 of them or 4 MB.
    - `updates`: new values for rows of data tables that are there already.
    - `only_if_absent`: rows that must not be there, asked in the outcome's own transaction once its unit is locked. If
      one is found, nothing is written and the step is taken again.
    - `others`: births and moves of other units.
    - `move_sets`: moves of many other units by one statement each.
    - `parent_counts`: increments on the parent's columns, beyond those that its machine counts by itself.
    - `keep_claim`: commit, keep the unit, and let `decide` run again on what came back.
    - `keep_crashes`: leave the unit's crashes, doubts and suspicion as they are, and tell the gate nothing. Any other
      commit shows how the step ended, and clears them. An intent keeps them: no call was made yet.
    - `actor` and `who`: whom the history names, where a worker carries out what somebody asked for.
    """

    before: U
    after: U
    reason: str
    writes: Sequence[Write] = ()
    updates: Sequence[Update] = ()
    only_if_absent: Sequence[Where] = ()
    others: Sequence[Birth | Move] = ()
    move_sets: Sequence[MoveSet] = ()
    parent_counts: Mapping[str, int] | None = None
    events: Sequence[Event] = ()
    keep_claim: bool = False
    actor: Actor = Actor.WORKER
    who: str | None = None
    keep_crashes: bool = False
