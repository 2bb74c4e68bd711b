"""What people see of queries: how each stands, its runs, and what was set aside."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from penstock.lifecycles.queries import showing
from penstock.lifecycles.queries.lookup import (
    Keeps,
    Known,
    find_client,
    find_query,
    keeps,
    known_queries,
    pipeline,
)
from penstock.lifecycles.queries.machine import S, query
from penstock.lifecycles.queries.paging import Place, after_clause, refuse_window
from penstock.lifecycles.queries.past import pruned
from penstock.lifecycles.queries.records import RUN_COLUMNS, RunRow, run_row
from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.model.clock import instant, instant_text
from penstock.operations.declare import Ask, Page, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.past import At, lacking


class ListFilter(Parameters, frozen=True):
    """Which queries."""

    client: Annotated[str | None, option("Only those of this client.", example="infojobs")] = None
    state: Annotated[S | None, option("Only those in this state.")] = None
    at: At = None


class RunsFilter(Parameters, frozen=True):
    """Which runs."""

    query: Annotated[
        str | None, argument("Only of this query: its name, its key, or the beginning of it.", example="python-madrid")
    ] = None
    status: Annotated[S | None, option("Only those that left their query in this state; RUNNING: under way.")] = None
    since: Annotated[datetime | None, option("Only those that began then or later.")] = None
    until: Annotated[datetime | None, option("Only those that began before then.")] = None
    limit: Annotated[int, option("How many at most.", ge=1, le=100_000)] = 20
    after: Annotated[str | None, option("Go on after an earlier page, by the cursor that it ended with.")] = None
    at: At = None


class RejectedFilter(Parameters, frozen=True):
    """Which records that were set aside."""

    query: Annotated[
        str | None, argument("Only of this query: its name, its key, or the beginning of it.", example="python-madrid")
    ] = None
    since: Annotated[datetime | None, option("Only those that were seen then or later.")] = None
    limit: Annotated[int, option("How many at most.", ge=1, le=100_000)] = 50
    after: Annotated[str | None, option("Go on after an earlier page, by the cursor that it ended with.")] = None
    at: At = None


class QueryRow(Row, frozen=True):
    """A query, in a list."""

    query: Annotated[str, column("What the configuration calls it.", show="reference", leads="show")]
    client: Annotated[str, column("The client that it asks.")]
    state: Annotated[S | None, column("Its state; none: the ledger does not have it yet.", show="state")]
    last_run: Annotated[datetime | None, column("When it last ran.", heading="last run")]
    last_success: Annotated[datetime | None, column("When a run last succeeded.", heading="success")]
    failures: Annotated[int | None, column("Runs in a row that failed.", heading="failed")]
    next_run: Annotated[datetime | None, column("When it runs next, where that is known.", heading="next")]
    how_far: Annotated[
        str | None, column("The days that it has read, or how far its seeding is.", show="text", heading="read")
    ]
    waits: Annotated[str | None, column("What keeps it from running.", show="text")]
    key: Annotated[str, column("Its key: its client, and a digest of what it searches for.", show="reference")]
    configured: Annotated[bool, column("Whether the configuration has it.", show="detail")]
    seeded_back_to: Annotated[str | None, column("The oldest day that was read to its end.", show="detail")]
    covered_through: Annotated[datetime | None, column("The newest record that was read.", show="detail")]
    seeding: Annotated[bool | None, column("Whether history is still being read.", show="detail")]


class RejectedRow(Row, frozen=True):
    """A record that could not be used."""

    query: Annotated[str, column("The query that found it.", show="reference")]
    record: Annotated[str | None, column("Its id at the provider, where it has one.")]
    last_seen_at: Annotated[datetime | None, column("When it was last set aside.", heading="seen")]
    reason: Annotated[str | None, column("Why it could not be used.", show="text")]
    key: Annotated[str, column("The query's key.", show="detail")]
    run_id: Annotated[str | None, column("The run that saw it last.", show="detail")]
    first_seen_at: Annotated[datetime, column("When it was first set aside.", show="detail")]
    payload: Annotated[str | None, column("The beginning of the record, as it came.", show="detail")]


@reading("list", "Queries: how each stands, how far it has read, why it waits.")
def list_queries(ask: Ask[QueriesSettings], wanted: ListFilter) -> Page[QueryRow]:
    """Those of the configuration, and those that only the ledger still has.

    Of the past it has the queries of then, under the configuration of now.
    """
    lacks, ask = lacking(ask, [query], wanted.at), ask.then(wanted.at)
    known = known_queries(ask)
    if wanted.client is not None:
        find_client(ask, known, wanted.client)
    whole = pipeline(ask.reader, wanted.at)
    rows = [
        _query(one, keeps(ask, one, whole, known))
        for one in known
        if wanted.client in (None, one.client)
        and (wanted.state is None or (one.unit is not None and one.unit.status is wanted.state))
    ]
    if not known:
        return Page(rows=[], note="no queries yet; add [queries.queries.NAME] to penstock.toml")
    says = whole.says(known)
    if any(one.own is None for one in known):
        says += "; a query that is no longer in the configuration rests, and its state and offers stay"
    says = says if rows else f"no such queries; {says}"
    return Page(rows=rows, note=says if lacks is None else f"{says}; {lacks}")


@reading("runs", "Runs, the newest first: what they counted, and why they stopped.")
def runs(ask: Ask[QueriesSettings], wanted: RunsFilter) -> Page[RunRow]:
    """Of the past, what a run had counted that was under way is not known."""
    lacks, ask = pruned(ask, wanted.at), ask.then(wanted.at)
    known = known_queries(ask)
    one = None if wanted.query is None else find_query(known, wanted.query)
    refuse_window(ask.now, wanted.since, wanted.until)
    sql = ask.reader.database.sql
    parts, given = ["1 = 1"], dict[str, Any]()
    if one is not None:
        parts.append("query_key = :key")
        given["key"] = one.key
    if wanted.status is not None:
        parts.append("status = :status")
        given["status"] = str(wanted.status)
    for name, sign, moment in (("since", ">=", wanted.since), ("until", "<", wanted.until)):
        if moment is not None:
            parts.append(f"started_at {sign} {sql.instant(name)}")
            given[name] = instant_text(moment)
    if wanted.after is not None:
        place = Place.read(wanted.after, 1)
        parts.append(after_clause("started_at", sql.instant("at"), [("id", sql.identifier("last"))]))
        given |= {"at": instant_text(place.at), "last": place.identifier()}
    rows = ask.reader.read(
        lambda cursor: cursor.rows(
            f"SELECT {RUN_COLUMNS} FROM ingestion_runs WHERE {' AND '.join(parts)}"
            " ORDER BY started_at DESC, id DESC LIMIT :n",
            n=wanted.limit + 1,
            **given,
        )
    )
    names = {each.key: each.name for each in known}
    made = [run_row(row, names, ask.now) for row in rows[: wanted.limit]]
    more = len(rows) > wanted.limit
    following = Place(made[-1].started_at, (made[-1].run_id,)).text() if more else None
    return Page(rows=made, next=following, note=lacks if made or lacks else "no such runs")


@reading("rejected", "Records that could not be used and were set aside, with reasons.")
def rejected(ask: Ask[QueriesSettings], wanted: RejectedFilter) -> Page[RejectedRow]:
    """None of them stops a run. A record that is found again keeps its one row.

    Of the past, one that was found again since is listed by when it was first set aside; when it was seen last by
    then, and why it could not be used, is not known any more.
    """
    lacks, ask = pruned(ask, wanted.at), ask.then(wanted.at)
    seen = "last_seen_at" if wanted.at is None else "coalesce(last_seen_at, first_seen_at)"
    known = known_queries(ask)
    one = None if wanted.query is None else find_query(known, wanted.query)
    refuse_window(ask.now, wanted.since, None)
    sql = ask.reader.database.sql
    parts, given = ["1 = 1"], dict[str, Any]()
    if one is not None:
        parts.append("query_key = :key")
        given["key"] = one.key
    if wanted.since is not None:
        parts.append(f"{seen} >= {sql.instant('since')}")
        given["since"] = instant_text(wanted.since)
    if wanted.after is not None:
        place = Place.read(wanted.after, 2)
        parts.append(after_clause(seen, sql.instant("at"), [("query_key", ":k"), ("digest", ":d")]))
        given |= {"at": instant_text(place.at), "k": place.rest[0], "d": place.rest[1]}
    columns = "query_key, digest, record_id, last_seen_at, reason, run_id, first_seen_at, payload"
    rows = ask.reader.read(
        lambda cursor: cursor.rows(
            f"SELECT {columns} FROM rejected_records WHERE {' AND '.join(parts)}"
            f" ORDER BY {seen} DESC, query_key DESC, digest DESC LIMIT :n",
            n=wanted.limit + 1,
            **given,
        )
    )
    names = {each.key: each.name for each in known}
    made = [
        RejectedRow(
            query=names.get(str(key), str(key)),
            record=record,
            last_seen_at=instant(last),
            reason=reason,
            key=str(key),
            run_id=None if run_id is None else str(run_id),
            first_seen_at=instant(first),
            payload=payload,
        )
        for key, _, record, last, reason, run_id, first, payload in rows[: wanted.limit]
    ]
    more = len(rows) > wanted.limit
    end = rows[wanted.limit - 1] if more else None
    following = None if end is None else Place(instant(end[3] or end[6]), (str(end[0]), str(end[1]))).text()
    return Page(rows=made, next=following, note=lacks if made or lacks else "no records were set aside")


def _query(one: Known, kept: Keeps) -> QueryRow:
    unit = one.unit
    waits = kept.why
    if one.own is None:
        waits = "it is no longer in the configuration"
    return QueryRow(
        query=one.name,
        client=one.client,
        state=None if unit is None else unit.status,
        last_run=None if unit is None else unit.last_run_at,
        last_success=None if unit is None else unit.last_success_at,
        failures=0 if unit is None else unit.consecutive_failures,
        next_run=kept.next_at,
        how_far=showing.how_far(unit),
        waits=waits,
        key=one.key,
        configured=one.own is not None,
        seeded_back_to=None if unit is None or unit.last_processed_date is None else str(unit.last_processed_date),
        covered_through=None if unit is None else unit.covered_through,
        seeding=showing.is_seeding(unit),
    )


READINGS: list[Any] = [list_queries, showing.show, runs, rejected]
