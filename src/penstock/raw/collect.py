"""Collecting landed data that nobody needs: attempts that were never finalised, and runs that newer ones replaced.

A run goes only if the ledger says that it is superseded. What cannot be read, or is of a partition that the ledger does
not know, stays; what cannot be read is named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeAlias

from penstock.model.clock import parse_instant
from penstock.raw.paths import PartitionKey, read_folder, read_partition, run_folder
from penstock.raw.sink import RawSink
from penstock.raw.store import RawError, RawMissing, Unfinished, Unreadable

UNFINISHED_AGE = timedelta(days=1)
_AT_ONCE = 1_000
_STATELESS = "the ledger refers to this run, and its metadata.json is not there"


@dataclass(frozen=True, slots=True)
class Held:
    """What the ledger knows of the runs of one partition."""

    #: The run that consumers read: it supersedes those before it.
    current: str | None = None
    #: Finalised runs that something refers to.
    referenced: frozenset[str] = frozenset()
    #: Runs that are being written, or will be again.
    under_way: frozenset[str] = frozenset()
    #: A worker is at it.
    claimed: bool = False

    def supersedes(self, run_id: str) -> bool:
        """Whether a newer run has replaced this one and nothing refers to it."""
        return self.current is not None and run_id < self.current and run_id not in self.referenced | self.under_way


Holds: TypeAlias = Callable[[Collection[PartitionKey]], Mapping[PartitionKey, Held]]
"""Asks the ledger; a partition that it does not know is left out."""


def held_by_any(keepers: Sequence[Holds]) -> Holds:
    """What several lifecycles need. Where two land in one partition, what either needs stays."""

    def holds(keys: Collection[PartitionKey]) -> dict[PartitionKey, Held]:
        found: dict[PartitionKey, Held] = {}
        for keeper in keepers:
            for key, held in keeper(keys).items():
                found[key] = held if key not in found else _both(found[key], held)
        return found

    return holds


def _both(one: Held, other: Held) -> Held:
    currents = (one.current, other.current)
    return Held(
        None if None in currents else min(map(str, currents)),
        one.referenced | other.referenced,
        one.under_way | other.under_way,
        one.claimed or other.claimed,
    )


@dataclass(slots=True)
class Collected:
    """What was removed, or would be."""

    unfinished: int = 0
    superseded: int = 0
    #: Attempts that were left alone because a worker holds their partition.
    under_way: int = 0
    #: What was left alone because it could not be read or removed, by name, and why.
    skipped: dict[str, str] = field(default_factory=dict)

    def counts(self) -> str:
        """The counts in words."""
        told = f"{self.unfinished:,} unfinished attempts and {self.superseded:,} superseded runs"
        if self.under_way:
            told += f"; {self.under_way:,} left that are under way"
        return f"{told}; {len(self.skipped):,} skipped" if self.skipped else told


def collect_by_age(
    sink: RawSink, holds: Holds, now: datetime, *, superseded: timedelta | None = None, dry_run: bool = False
) -> Collected:
    """Collect by the ages in force: a day for attempts, and for superseded runs the one that is given."""
    before = None if superseded is None else now - superseded
    return collect(sink, holds, unfinished=now - UNFINISHED_AGE, superseded=before, dry_run=dry_run)


def collect(
    sink: RawSink, holds: Holds, *, unfinished: datetime, superseded: datetime | None = None, dry_run: bool = False
) -> Collected:
    """Remove attempts last written before `unfinished`, and superseded runs begun before `superseded`, if given.

    It may run beside workers and beside itself. Raises RawUnavailable when the store cannot be listed.
    """
    done = Collected()
    for found in sink.unfinished(unfinished):
        if isinstance(found, Unreadable):
            done.skipped[found.path] = found.why
        else:
            _discard(sink, holds, found, done, dry_run=dry_run)
    if superseded is not None:
        _collect_superseded(sink, holds, superseded, done, dry_run=dry_run)
    return done


def _discard(sink: RawSink, holds: Holds, found: Unfinished, done: Collected, *, dry_run: bool) -> None:
    run = read_folder(found.folder)
    key, run_id = run or (read_partition(found.folder), None)
    if key is None:
        return  # it lies where we put nothing
    held = holds([key]).get(key, Held())
    if held.claimed:
        done.under_way += 1
    elif run_id in held.referenced and not found.beside:
        done.skipped[found.path] = _STATELESS
    else:
        try:
            done.unfinished += dry_run or sink.discard(found)
        except RawError as error:
            done.skipped[found.path] = str(error)


def _collect_superseded(sink: RawSink, holds: Holds, before: datetime, done: Collected, *, dry_run: bool) -> None:
    old = (run for run in sink.list_partitions() if parse_instant(run[1]) < before)
    while some := list(islice(old, _AT_ONCE)):
        held = holds({key for key, _ in some})
        for key, run_id in some:
            if key in held and held[key].supersedes(run_id):
                try:
                    done.superseded += _remove(sink, holds, key, run_id, dry_run=dry_run)
                except RawError as error:
                    done.skipped[run_folder(key, run_id)] = str(error)


def _remove(sink: RawSink, holds: Holds, key: PartitionKey, run_id: str, *, dry_run: bool) -> bool:
    """Remove a run; False when it is gone, or no longer superseded. Raises RawError for what cannot be read."""
    if sink.find(key, run_id) is None:
        if run_id in sink.runs(key):
            raise RawMissing("its metadata.json is not there")
        return False
    # Asked again, last thing before the removal: somebody may have pointed at it since.
    if not holds([key]).get(key, Held()).supersedes(run_id):
        return False
    if not dry_run:
        try:
            sink.remove(key, run_id)
        except RawMissing:
            return False
    return True
