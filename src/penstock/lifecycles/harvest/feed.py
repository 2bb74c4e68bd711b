"""What a catalogue is to the engine: where it is asked, how its records are told apart, and what becomes of them.

The engine knows windows of time, spans of one axis (for diamonds: the price) and records. A feed brings the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import sqlalchemy as sa

    from penstock.lifecycles.harvest.run.machine import Run
    from penstock.model.outcome import Outcome
    from penstock.worker.flow import Io

UNNAMED = "?"
"""What `raw_row` begins the identity of a record with that does not name itself."""
UNKNOWN = "??"
"""And of one that `known_by` does not tell either: it could be any."""


class Unmappable(Exception):
    """A record cannot become a canonical row; it is set aside with this reason and stops nothing."""


@dataclass(frozen=True, slots=True)
class Window:
    """Records updated from `lower` to `upper`; None: without bound."""

    lower: datetime | None = None
    upper: datetime | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Points of the axis: `low` belongs to it and `high` does not; None: without end."""

    low: int
    high: int | None = None


class Source(Protocol):
    """Asks one account of one provider. It raises a StepError when the provider fails."""

    async def count(self, window: Window, span: Span) -> int:
        """How many records there are."""

    async def page(self, window: Window, span: Span, offset: int, limit: int) -> Sequence[Any]:
        """Records in the feed's stable order, for the feed's `raw_row`."""

    async def close(self) -> None:
        """Close its connections."""


@dataclass(frozen=True, slots=True)
class Feed:
    """One catalogue. `raw_row` gives the raw table's columns that are the record's own; the engine adds the others.

    What a record leaves out of them is NULL.

    A raw table has `run_id` and the identity as its primary key, and `partition_id`, `position`, `payload`,
    `payload_hash`, `source_updated_at`, `fetched_at` and `consolidated`. A canonical table has `feed` and the identity
    as its primary key, and `source_updated_at`, `payload_hash`, `first_seen_run_id`, `last_seen_run_id`, `updated_at`,
    `missed_by_run_id` and `deleted_at`. One that is priced has `supplier_price` and what rules ask for, `price`,
    `pricing_rule_id` and `pricing_digest`.
    """

    name: str
    raw: sa.Table
    canonical: sa.Table
    #: The column of either table that tells records apart.
    identity: str
    raw_row: Callable[[Any], dict[str, Any]]
    #: A payload, as it came, to the canonical columns that are the record's own. Raises Unmappable.
    map: Callable[[str], dict[str, Any]]
    #: The axis by which it is split: its name, and where the first span begins.
    axis: str
    lowest: int
    #: Where records become so rare that one span takes the rest; only where the search begins.
    highest: int
    #: The order in which pages are asked for, recorded with each worker.
    order: Mapping[str, str]
    #: Another column of either table, by which a record that does not name itself is known all the same.
    known_by: str | None = None


@dataclass(frozen=True, slots=True)
class Configured:
    """A feed as it is configured: where it is asked, through which gate, and whether calls through it are counted."""

    feed: Feed
    source: Source
    gate: str
    metered: bool = False


class Consolidation(Protocol):
    """What a run is handed over to, from `consolidation_triggered` on."""

    async def step(self, run: Run, io: Io) -> Outcome[Run]:
        """One step of a run in `consolidation_triggered` or `consolidating` that is due."""
