"""What a page does to how far a query has read. Pure."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import msgspec

from penstock.lifecycles.queries.machine import Query
from penstock.lifecycles.queries.passes import Kind, Pass, Step, closed_day, day_of
from penstock.lifecycles.queries.registry import Configured
from penstock.lifecycles.queries.runs import Unseen, run_of, seed_day
from penstock.model.clock import MILLISECOND, instant_text
from penstock.model.outcome import Event
from penstock.model.unit import replace

_MOST_HOLES = 50


def after_page(
    query: Query, now: Pass, step: Step, own: Configured, moment: datetime, *, ordered: bool
) -> tuple[Query, list[Event]]:
    """The query after a page of a pass, and what is to be told. `ordered`: the list is read from the newest down."""
    following = step.following
    query = replace(query, readings=max(query.readings, now.number))
    if now.kind is not Kind.SEED:
        query = replace(query, reading=None if step.over else following.document())
        return _read_on(query, step, own, moment) if step.over else (query, [])
    query = replace(query, seeding=following.document(), seed_until=seed_day(query, moment, own))
    if ordered and query.covered_through is None and following.newest is not None:
        # Its first page has what is new as well.
        query = replace(_not_again(query), covered_through=following.newest)
    if ordered and following.newest is not None:
        closed = closed_day(following.reached, own.zone, following.newest)
        query = replace(query, last_processed_date=_older(query.last_processed_date, closed))
    return _seeded(query, step, own, moment) if step.over else (query, [])


def disordered(query: Query, own: Configured, moment: datetime) -> Event:
    """What is told of a list that is not in the order that its client promises; once a day."""
    why = (
        "its records are not listed newest first: it is read to its end, and nothing is closed;"
        ' sort the list by its date, or say order = "none"'
    )
    said = {"query": own.name, "key": query.query_key, "reason": why}
    return Event(f"queries.disordered:{query.query_key}:{moment:%Y-%m-%d}", "queries.disordered", said, "warning")


def _read_on(query: Query, step: Step, own: Configured, moment: datetime) -> tuple[Query, list[Event]]:
    """What is new was read to its end."""
    done = step.following
    before = query.covered_through
    through = max(filter(None, (before, done.newest)), default=None)
    query = replace(_not_again(query), covered_through=through)
    if done.kind is Kind.CENSUS:
        query = replace(query, census_at=moment)
    # What lies right at the end of a list that was cut may go on beyond it.
    lower = done.until if not step.cut else (done.reached or done.begun) + MILLISECOND
    if done.whole:
        query = _seen_everything(query, done, Unseen(done.number, lower))
    hole = step.cut and (before is None or done.reached is None or done.reached > before)
    return _with_hole(query, done, own) if hole else (query, [])


def _not_again(query: Query) -> Query:
    """What is new was read, in this run."""
    return replace(query, run=msgspec.structs.replace(run_of(query), recent=True).document())


def _seen_everything(query: Query, done: Pass, mine: Unseen) -> Query:
    """What the last whole reading did not see, and this one neither, is closed; this one's turn is the next time.

    One reading proves nothing: a record that was listed anew while it was read moved from below to above it. The next
    one finds it there, unless that takes long as well: one over several runs closes nothing.
    """
    before, run = query.unseen, run_of(query)
    after = msgspec.to_builtins(mine)
    if run.pages_fetched < done.pages:
        return replace(query, unseen=after if before is None or done.kind is Kind.CENSUS else before)
    if before is not None:
        run = msgspec.structs.replace(run, closing=msgspec.convert(before, Unseen))
    return replace(query, unseen=after, run=run.document())


def _with_hole(query: Query, done: Pass, own: Configured) -> tuple[Query, list[Event]]:
    """The provider lists no further back than this: days in between cannot be read any more."""
    lower, upper = instant_text(done.until), instant_text(done.reached or done.begun)
    metadata: dict[str, Any] = dict(query.metadata or {})
    metadata["holes"] = [*metadata.get("holes", []), {"from": lower, "to": upper}][-_MOST_HOLES:]
    said = {"query": own.name, "from": lower, "to": upper, "reason": "the provider lists no further back"}
    event = Event(f"queries.unreachable:{query.query_key}:{upper}", "queries.unreachable", said, "warning")
    return replace(query, metadata=metadata), [event]


def _seeded(query: Query, step: Step, own: Configured, moment: datetime) -> tuple[Query, list[Event]]:
    """History was read down to the day that is wanted, or as far as the provider lists it."""
    done = step.following
    if done.newest is None:
        # Nothing was ever listed: the next run looks for it again, from the beginning.
        return replace(_not_again(query), seeding=None), []
    if query.covered_through is None:
        query = replace(_not_again(query), covered_through=done.newest)
    query = replace(query, seeding=None, seeded_at=moment)
    if not step.cut:
        return replace(query, last_processed_date=query.seed_until, unreachable_before=None), []
    reached = query.last_processed_date or day_of(done.reached or done.begun, own.zone) + timedelta(days=1)
    query = replace(query, unreachable_before=reached)
    said = {
        "query": own.name,
        "from": str(query.seed_until),
        "to": str(reached),
        "reason": "the provider lists no further back",
    }
    return query, [Event(f"queries.unreachable:{query.query_key}:{reached}", "queries.unreachable", said, "warning")]


def _older(one: date | None, other: date | None) -> date | None:
    return min(filter(None, (one, other)), default=None)
