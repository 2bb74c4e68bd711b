"""Watermarks as people see them: as they are, and as they stood.

The table is overwritten where it is. What moved a watermark is told by events, and by the runs themselves: each knows
the one that it started from, and a completed one where it left it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.ledger.schema.columns import document
from penstock.ledger.store.database import Cursor
from penstock.ledger.store.statements import begins_sql
from penstock.lifecycles.harvest.events import (
    ADOPTED,
    ADVANCED,
    ALERT,
    OF_WATERMARKS,
    PUBLISHED,
    PUBLISHED_EVENT,
    UNPUBLISHED,
)
from penstock.model.clock import instant

if TYPE_CHECKING:
    from penstock.operations.reader import Reader

_COLUMNS = "feed, last_updated_at, last_run_id, last_run_completed_at, publication, published_at, set_by, set_reason"


@dataclass(frozen=True, slots=True)
class Mark:
    """The watermark of a feed. Of the past, None is also what nobody knows any more."""

    feed: str
    last_updated_at: datetime
    last_run_id: str | None = None
    last_run_completed_at: datetime | None = None
    publication: str | None = None
    published_at: datetime | None = None
    set_by: str | None = None
    set_reason: str | None = None


def marks(reader: Reader) -> list[Mark]:
    """Those of all feeds, by name."""
    found = reader.read(lambda cursor: cursor.rows(f"SELECT {_COLUMNS} FROM watermark ORDER BY feed"))
    return [
        Mark(
            str(feed),
            instant(updated),
            None if run_id is None else str(run_id),
            instant(completed),
            str(publication),
            instant(published),
            set_by,
            set_reason,
        )
        for feed, updated, run_id, completed, publication, published, set_by, set_reason in found
    ]


def marks_then(reader: Reader) -> list[Mark]:
    """Those of all feeds as they stood at the moment of a reader that has one."""
    feeds: dict[str, _Feed] = {}
    for one in sorted(reader.read(lambda cursor: [*_told(reader, cursor)]), key=lambda told: (told.at, told.place)):
        feeds.setdefault(one.feed, _Feed(one.feed)).take(one)
    return [feed.mark for _, feed in sorted(feeds.items()) if feed.mark is not None]


_STARTED, _COMPLETED = "started", "completed"
_ORDER = (_STARTED, _COMPLETED, ADVANCED, ALERT, ADOPTED, PUBLISHED_EVENT)
"""In which order they came that came in the same millisecond."""


@dataclass(frozen=True, slots=True)
class _Told:
    """Something that tells of a watermark: `moment` is what it was, or became."""

    kind: str
    at: datetime
    feed: str
    moment: datetime | None
    run_id: str | None = None
    completed_at: datetime | None = None
    set_by: str | None = None
    reason: str | None = None
    #: In which state an alert left it.
    state: str | None = None

    @property
    def place(self) -> tuple[int, bool]:
        return _ORDER.index(self.kind), self.run_id is None


class _Feed:
    """The watermark of a feed, one thing after another that is told of it."""

    def __init__(self, name: str) -> None:
        self.mark: Mark | None = None
        self._name = name
        #: Moments of which a publication was told. An event of the same kind is not written twice for one moment.
        self._published: set[datetime | None] = set()
        self._vague = False

    def take(self, told: _Told) -> None:
        """What comes next."""
        if told.kind == _STARTED:
            self._saw(told)
        elif told.kind in (_COMPLETED, ADVANCED):
            self._moved(told)
        elif self.mark is not None and told.moment == self.mark.last_updated_at:
            self._published.add(told.moment)
            self._told(self.mark, told)

    def _saw(self, told: _Told) -> None:
        """The run that began found it so: where it was something else, somebody had changed it by SQL."""
        if told.moment is None:
            self.mark = None
        elif self.mark is None or self.mark.last_updated_at != told.moment:
            self.mark, self._vague = Mark(self._name, told.moment), True

    def _moved(self, told: _Told) -> None:
        before = self.mark
        if told.moment is None:
            return
        if told.run_id is not None and before is not None and told.moment < before.last_updated_at:
            return
        # What only the run tells: the events of that time were pruned.
        self._vague = told.kind == _COMPLETED or told.moment in self._published
        after = before or Mark(self._name, told.moment)
        if told.run_id is not None:
            after = replace(after, last_run_id=told.run_id, last_run_completed_at=told.completed_at)
        self.mark = replace(
            after,
            last_updated_at=told.moment,
            publication=None if self._vague else UNPUBLISHED,
            published_at=None if self._vague else after.published_at,
            set_by=told.set_by,
            set_reason=told.reason,
        )

    def _told(self, mark: Mark, told: _Told) -> None:
        if told.kind == PUBLISHED_EVENT:
            self.mark = replace(mark, publication=PUBLISHED, published_at=told.at)
        elif told.kind == ADOPTED:
            # It is published next; whether that was told before, and so not again, is not asked.
            self.mark, self._vague = replace(mark, publication=None, published_at=None), True
        elif told.kind == ALERT and not self._vague:
            self.mark = replace(mark, publication=told.state)


def _told(reader: Reader, cursor: Cursor) -> Iterator[_Told]:
    """What runs and events tell, in no order."""
    runs = cursor.rows(
        "SELECT feed, started_at, watermark_before, unit_id, status, change_reason, changed_at, window_to, completed_at"
        " FROM run_metadata"
    )
    completed = {str(run_id): instant(at) for _, _, _, run_id, status, *_, at in runs if status == "completed"}
    advanced = set()
    for one in _events(reader, cursor):
        advanced.add(one.run_id)
        yield one if one.run_id is None else replace(one, completed_at=completed.get(one.run_id))
    for feed, started, before, run_id, _, reason, changed, window_to, at in runs:
        yield _Told(_STARTED, instant(started), str(feed), instant(before))
        if reason == "consolidated" and str(run_id) in completed and str(run_id) not in advanced:
            yield _Told(_COMPLETED, instant(changed), str(feed), instant(window_to), str(run_id), instant(at))


def _events(reader: Reader, cursor: Cursor) -> Iterator[_Told]:
    own = begins_sql(reader.database, "event_key", OF_WATERMARKS)
    sql = f"SELECT event_type, event_key, payload, created_at FROM event_log WHERE tenant_id = 'default' AND {own}"
    for kind, key, text, at in cursor.rows(sql):
        payload: Any = document(text) if isinstance(text, str) else text
        if kind not in _ORDER or not isinstance(payload, Mapping):
            continue
        moment, state = instant(payload.get("last_updated_at")), str(key).rpartition(":")[2]
        told = _Told(str(kind), instant(at), str(payload.get("feed")), moment, state=state)
        if kind == ADVANCED:
            run_id, by, why = (payload.get(name) for name in ("run_id", "set_by", "reason"))
            told = replace(told, run_id=run_id, set_by=by, reason=why)
        yield told
