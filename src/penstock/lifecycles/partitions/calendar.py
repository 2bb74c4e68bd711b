"""Customers by days: how each day of every series stands, for a calendar."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from itertools import groupby, islice
from typing import Annotated

import msgspec

from penstock.lifecycles.partitions.machine import P, partition
from penstock.lifecycles.partitions.settings import PartitionSettings
from penstock.model.errors import UsageError
from penstock.operations.declare import Ask, Page, reading
from penstock.operations.fields import Parameters, Row, column, option
from penstock.operations.past import At
from penstock.raw.paths import Range

_DAYS = 30
_MOST_DAYS = 366
_SIGNS = {P.SUCCESS: "#", P.FAILED: "!", P.PENDING: "."}


class CalendarWanted(Parameters, frozen=True):
    """Which days of which series."""

    source: Annotated[str | None, option("Only of this source.", example="google_ads")] = None
    first: Annotated[date | None, option("The first day; by default thirty days up to the last.")] = msgspec.field(
        default=None, name="from"
    )
    last: Annotated[date | None, option("The last day; by default yesterday, in UTC.")] = msgspec.field(
        default=None, name="to"
    )
    customer: Annotated[tuple[str, ...], option("Only of this customer.")] = ()
    query: Annotated[tuple[str, ...], option("Only of this query.")] = ()
    unready: Annotated[bool, option("Only series with days that are not safe to consume.")] = False
    limit: Annotated[int, option("How many series at most.", ge=1, le=10_000)] = 50
    after: Annotated[str | None, option("Continue after an earlier page: the cursor that it ended with.")] = None
    at: At = None


class SeriesDays(Row, frozen=True):
    """The days of one query of one customer."""

    series: Annotated[str, column("Source, customer and query.", show="reference")]
    days: Annotated[str, column("A sign for each day: # success, ! failed, . pending.", show="reference")]
    first: Annotated[date, column("The first of these days.", show="detail")]
    states: Annotated[list[P], column("How each day stands.", show="detail")]


@reading("calendar", "Customers by days: which of them are safe to consume.")
def calendar(ask: Ask[PartitionSettings], wanted: CalendarWanted) -> Page[SeriesDays]:
    """A day that nobody has judged is pending."""
    first, last = _days(ask, wanted)
    every = (one for one in _series(ask, wanted, first, last) if not wanted.unready or set(one.states) != {P.SUCCESS})
    found = list(islice(every, wanted.limit + 1))
    shown = found[: wanted.limit]
    note = f"{first} to {last}" if shown else "no such series"
    return Page(rows=shown, next=shown[-1].series if len(found) > wanted.limit else None, note=note)


def _days(ask: Ask[PartitionSettings], wanted: CalendarWanted) -> tuple[date, date]:
    """The first and the last day. Raises UsageError for more than a page can show."""
    last = wanted.last or (wanted.at or ask.now).date() - timedelta(days=1)
    first = wanted.first or last - timedelta(days=_DAYS - 1)
    if (last - first).days >= _MOST_DAYS:
        raise UsageError(f"{first} to {last} is more than {_MOST_DAYS} days; ask for fewer at once")
    return first, last


def _series(ask: Ask[PartitionSettings], wanted: CalendarWanted, first: date, last: date) -> Iterator[SeriesDays]:
    """The series in the order of the configuration, those after the cursor."""
    from penstock.raw.reader import PartitionReader

    if not ask.reader.keeps(partition):
        raise UsageError("this ledger keeps no partitions yet; 'penstock db upgrade' adds them")
    reader = PartitionReader(ask.reader.database, ask.program.ports.raw)
    reader = reader if wanted.at is None else reader.as_of(wanted.at)
    passed = wanted.after is None
    for name in _sources(ask, wanted):
        chosen = _chosen(ask, wanted, name, first, last)
        if chosen is None:
            continue
        for series, days in groupby(reader.each(chosen), lambda one: str(one.key).rpartition("/")[0]):
            states = [P(one.status) for one in days]
            if passed:
                yield SeriesDays(
                    series=series, days="".join(map(_SIGNS.__getitem__, states)), first=first, states=states
                )
            passed = passed or series == wanted.after


def _sources(ask: Ask[PartitionSettings], wanted: CalendarWanted) -> list[str]:
    if wanted.source is None:
        return list(ask.settings.sources)
    ask.settings.source(wanted.source)
    return [wanted.source]


def _chosen(ask: Ask[PartitionSettings], wanted: CalendarWanted, name: str, first: date, last: date) -> Range | None:
    """The range of a source; None: it has nothing that was asked for. Raises UsageError where it is the only one."""
    source, strict = ask.settings.source(name), wanted.source is not None
    customers = list(dict.fromkeys(source.canonical(text) for text in wanted.customer)) or list(source.zones)
    queries = list(dict.fromkeys(wanted.query)) or list(source.queries)
    if strict:
        for text in wanted.customer:
            ask.settings.customer(name, text)
        for text in wanted.query:
            ask.settings.query(name, text)
    customers = [one for one in customers if one in source.zones]
    queries = [one for one in queries if one in source.queries]
    return Range(name, customers, queries, first, last) if customers and queries else None
