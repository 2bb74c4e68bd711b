"""One query as people see it: four questions, how far it has read, what it found, and what keeps it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Any

from penstock.lifecycles.queries.lookup import Known, Pipeline, find_query, keeps, known_queries, pipeline
from penstock.lifecycles.queries.machine import Query, S
from penstock.lifecycles.queries.passes import read_pass
from penstock.lifecycles.queries.past import pruned
from penstock.lifecycles.queries.records import RUN_COLUMNS, RunRow, run_row
from penstock.lifecycles.queries.runs import next_pass, run_of
from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.model.unit import replace
from penstock.operations.declare import Ask, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.past import At, refuse_to_watch

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor

_RUNS = 5
_WATCH_SECONDS = 1.0


class WhichQuery(Parameters, frozen=True):
    """One query."""

    query: Annotated[str, argument("Its name, its key, or the beginning of its key.", example="python-madrid")]


class ShowParameters(WhichQuery, frozen=True):
    """Which query, and for how long."""

    watch: Annotated[bool, option("Stay, and show the progress until its run is over.", terminal=True)] = False
    at: At = None


class QueryDetail(Row, frozen=True):
    """A query whole."""

    query: Annotated[str, column("What the configuration calls it.", show="reference")]
    key: Annotated[str, column("Its key: its client, and a digest of what it searches for.", show="reference")]
    client: Annotated[str, column("The client that it asks.")]
    searches: Annotated[dict[str, Any] | None, column("What it searches for.", heading="searches for")]
    state: Annotated[S | None, column("Its state; none: the ledger does not have it yet.", show="state")]
    last_executed: Annotated[datetime | None, column("When its last run began.")]
    was_it_successful: Annotated[str | None, column("Whether the last finished run was successful.")]
    processed_back_to: Annotated[date | None, column("The oldest day that was read to its end.")]
    running_now: Annotated[str, column("Whether a run is under way, and what it is at.")]
    covered_through: Annotated[datetime | None, column("The newest record that was read.")]
    last_success: Annotated[datetime | None, column("When a run last succeeded.")]
    failures: Annotated[int | None, column("Runs in a row that failed.")]
    seeding: Annotated[str | None, column("Whether history is being read, and how far back.")]
    unreachable: Annotated[list[str] | None, column("Days that the provider did not list when they were read.")]
    offers_open: Annotated[int | None, column("Offers, or records, that it lists now.")]
    offers_closed: Annotated[int | None, column("Those that it no longer lists.")]
    offers_linked: Annotated[int | None, column("Those that are reposts or duplicates of others.")]
    rejected: Annotated[int | None, column("Records that were set aside; 'penstock queries rejected' lists them.")]
    last_error: Annotated[str | None, column("What went wrong in the last run.")]
    last_error_at: Annotated[datetime | None, column("When a run last failed.")]
    next_run: Annotated[datetime | None, column("When it runs next, where that is known.")]
    waits: Annotated[str | None, column("What keeps it from running.")]
    runs: Annotated[list[RunRow], column("Its last runs, the newest first.")]


@reading("show", "One query: its last run, how far it has read, and what keeps it.")
def show(ask: Ask[QueriesSettings], wanted: ShowParameters) -> QueryDetail:
    """Of the past, what it lists and where a reading was is known if nobody has touched it since."""
    if wanted.at is not None:
        return _shown_then(ask, wanted, wanted.at)
    known = known_queries(ask)
    one = find_query(known, wanted.query)
    nobody = threading.Event()
    while wanted.watch and one.unit is not None and one.unit.status is S.RUNNING:
        most = None if one.own is None else one.own.max_pages
        ask.progress(run_of(one.unit).pages_fetched, most)
        nobody.wait(_WATCH_SECONDS)
        known = known_queries(ask)
        one = find_query(known, one.key)
    return _detail(ask, one, known, pipeline(ask.reader))


def _shown_then(ask: Ask[QueriesSettings], wanted: ShowParameters, at: datetime) -> QueryDetail:
    refuse_to_watch(at, watch=wanted.watch)
    now = {unit.query_key: unit for one in known_queries(ask) if (unit := one.unit) is not None}
    gone, ask = pruned(ask, at), ask.then(at)
    known = known_queries(ask)
    one = find_query(known, wanted.query)
    found = _detail(ask, one, known, pipeline(ask.reader, at))
    if gone is not None:
        found = replace(found, rejected=None, was_it_successful=found.was_it_successful if found.runs else None)
    if one.unit is None:
        return found
    if one.own is None:
        # What it searches for is in its key.
        found = replace(found, searches=(now[one.key].metadata or {}).get("parameters"))
    touched = now[one.key].changed_at
    if touched is not None and touched <= at:
        return found
    return replace(found, unreachable=None, offers_open=None, offers_closed=None, offers_linked=None)


def _detail(ask: Ask[QueriesSettings], one: Known, known: Sequence[Known], whole: Pipeline) -> QueryDetail:
    unit = one.unit
    kept = keeps(ask, one, whole, known)
    table = _own_table(ask.settings, one.client)
    runs, counts = ask.reader.read(lambda cursor: (_last_runs(ask, cursor, one), _counts(cursor, one.key, table)))
    searches = None if one.own is None else dict(one.own.parameters)
    if searches is None and unit is not None:
        searches = (unit.metadata or {}).get("parameters")
    return QueryDetail(
        query=one.name,
        key=one.key,
        client=one.client,
        searches=searches,
        state=None if unit is None else unit.status,
        last_executed=None if unit is None else unit.last_run_at,
        was_it_successful=_success(runs),
        processed_back_to=None if unit is None else unit.last_processed_date,
        running_now=_running(ask, one),
        covered_through=None if unit is None else unit.covered_through,
        last_success=None if unit is None else unit.last_success_at,
        failures=0 if unit is None else unit.consecutive_failures,
        seeding=_seeding(unit),
        unreachable=_unreachable(unit),
        offers_open=counts[0],
        offers_closed=counts[1],
        offers_linked=counts[2],
        rejected=counts[3],
        last_error=None if unit is None else unit.error,
        last_error_at=None if unit is None else unit.last_error_at,
        next_run=kept.next_at,
        waits=kept.why,
        runs=runs,
    )


def is_known(unit: Query) -> bool:
    """Whether its history tells how far it has read: it does of now, and of the past since it tracks that."""
    return unit.consecutive_failures is not None


def how_far(unit: Query | None) -> str | None:
    """The days that it has read, in a few words."""
    if unit is not None and not is_known(unit):
        return None
    if unit is None or unit.covered_through is None:
        return "nothing read yet" if unit is None or unit.last_success_at is None else "nothing found yet"
    if is_seeding(unit):
        return f"seeding, {unit.last_processed_date or 'its first day'}"
    return f"from {unit.last_processed_date} to {unit.covered_through:%Y-%m-%d %H:%M} UTC"


def is_seeding(unit: Query | None) -> bool | None:
    """Whether history has still to be read."""
    if unit is None:
        return False
    return unit.seeded_at is None if is_known(unit) else None


def _success(runs: Sequence[RunRow]) -> str:
    """In one line; what went wrong has a line of its own."""
    over = next((run for run in runs if run.status is not S.RUNNING), None)
    if over is None:
        return "no run has finished yet" if runs else "it has never run"
    answer = {S.SUCCESS: "yes", S.ERROR: "no"}.get(over.status, "it stopped early, without an error")
    return f"{answer} (stopped: {over.stopped_by})"


def _running(ask: Ask[QueriesSettings], one: Known) -> str:
    unit = one.unit
    if unit is None or unit.status is not S.RUNNING:
        return "no"
    if one.own is None or unit.run is None:
        return "yes"
    following = next_pass(unit, ask.now, one.own, ask.settings)
    return f"yes, {following.says()}" if following is not None else "yes, it is about to end"


def _seeding(unit: Query | None) -> str | None:
    if unit is not None and not is_known(unit):
        return None
    if unit is None or (unit.seed_until is None and unit.seeding is None):
        return "not begun"
    if unit.seeded_at is not None:
        return f"done, back to {unit.seed_until}"
    said = f"under way, back to {unit.seed_until}"
    if unit.metadata is None:
        return said  # of the past, where somebody has touched it since
    under_way = read_pass(unit.seeding)
    return f"{said}, {'from the newest record down' if under_way is None else under_way.says()}"


def _unreachable(unit: Query | None) -> list[str]:
    """Days that the provider does not list: at the far end, and where runs were too far apart."""
    if unit is None:
        return []
    found = []
    if unit.unreachable_before is not None:
        found.append(f"{unit.seed_until} to {unit.unreachable_before}")
    holes = (unit.metadata or {}).get("holes", [])
    return found + [f"{hole['from']} to {hole['to']}" for hole in holes]


def _last_runs(ask: Ask[QueriesSettings], cursor: Cursor, one: Known) -> list[RunRow]:
    sql = f"SELECT {RUN_COLUMNS} FROM ingestion_runs WHERE query_key = :key ORDER BY started_at DESC, id DESC LIMIT :n"
    return [run_row(row, {one.key: one.name}, ask.now) for row in cursor.rows(sql, key=one.key, n=_RUNS)]


def _own_table(settings: QueriesSettings, client: str) -> str | None:
    own = settings.rest_json.get(client)
    return None if own is None else own.table


def _counts(cursor: Cursor, key: str, table: str | None) -> tuple[int, int, int, int]:
    """Records that are listed, that were, that are linked, and that were set aside."""
    rejected = "SELECT count(*) FROM rejected_records WHERE query_key = :key"
    if table is not None:
        counted = f"SELECT count(*), count(gone_at), 0 FROM {table} WHERE query_key = :key"
    else:
        counted = (
            "SELECT count(*), count(q.gone_at), count(o.link_kind) FROM query_offers q"
            " LEFT JOIN offers o ON o.client = q.client AND o.offer_id = q.offer_id WHERE q.query_key = :key"
        )
    ((every, gone, linked),) = cursor.rows(counted, key=key)
    ((aside,),) = cursor.rows(rejected, key=key)
    return every - gone, gone, linked, aside
