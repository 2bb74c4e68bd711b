"""When somebody should know of recurring queries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from penstock.lifecycles.queries.machine import query as machine
from penstock.model.clock import instant, instant_text
from penstock.operations.alerts.policy import Found, Policy, Watched

_WEEK = timedelta(days=7)
FAILING_FROM, CRITICAL_FROM = 3, 10
"""From how many failures in a row on somebody is told of a query, and woken."""

POLICIES = (
    Policy(
        name="query_failing",
        says="A query has failed several times in a row.",
        kind="query_failing",
        warning=FAILING_FROM,
        critical=CRITICAL_FROM,
        events=("queries.failing",),
    ),
    Policy(
        name="query_silent",
        says="A query that used to have results has none.",
        kind="query_silent",
        events=("queries.silent",),
    ),
    Policy(name="query_stuck", says="A query comes to its limits and gets nowhere.", events=("queries.stuck",)),
    Policy(
        name="query_unreachable",
        says="The provider lists no further back: days cannot be read any more.",
        window=_WEEK,
        events=("queries.unreachable",),
    ),
    Policy(
        name="query_disordered",
        says="A list is not in the order that its client promises.",
        window=_WEEK,
        events=("queries.disordered",),
    ),
    Policy(
        name="query_many_closed",
        says="Too many offers vanished at once; none was closed.",
        events=("queries.many_closed",),
    ),
    Policy(
        name="sheet_failing",
        says="The spreadsheet cannot be synchronised.",
        kind="sheet_failing",
        severity="critical",
        events=("queries.sheet_failed",),
        subject="spreadsheet",
    ),
    Policy(
        name="sheet_doubled",
        says="Rows of the spreadsheet stand there twice.",
        events=("queries.sheet_doubled",),
        subject="spreadsheet",
    ),
)


def failing(watched: Watched, policy: Policy) -> Iterator[Found]:
    """Queries that have failed so many times in a row."""
    sql = f"SELECT name, unit_id, consecutive_failures, error FROM {machine.table} WHERE consecutive_failures > 0"
    for name, unit_id, failures, error in watched.ledger.read(lambda cursor: cursor.rows(sql)):
        severity = policy.severity_of(int(failures))
        if severity is not None:
            says = f"the query {name} has failed {failures} times in a row: {error}"
            yield Found(str(name), severity, says, {"failures": int(failures)}, f"{machine.name}:{unit_id}")


def silent(watched: Watched, policy: Policy) -> Iterator[Found]:
    """Queries that had results once, and have had none for as long as the settings say."""
    before = instant_text(watched.now - watched.settings.silent_after)
    column = f"last_found_at < {watched.ledger.database.sql.instant('before')}"
    sql = f"SELECT name, unit_id, last_found_at FROM {machine.table} WHERE {column}"
    for name, unit_id, found in watched.ledger.read(lambda cursor: cursor.rows(sql, before=before)):
        says = f"the query {name} had results, and has had none since {instant_text(instant(found))}"
        yield Found(str(name), policy.severity, says, {}, f"{machine.name}:{unit_id}")


def sheet(watched: Watched, policy: Policy) -> Iterator[Found]:
    """The spreadsheet, as long as it cannot be synchronised."""
    from penstock.ledger.store.database import table_names

    database = watched.ledger.database
    if "sheet_state" not in database.read(lambda cursor: table_names(database, cursor)):
        return
    sql = "SELECT spreadsheet_id, last_error FROM sheet_state WHERE failing_since IS NOT NULL"
    for name, error in database.read(lambda cursor: cursor.rows(sql)):
        yield Found(str(name), policy.severity, str(error))


CONDITIONS = {"query_failing": failing, "query_silent": silent, "sheet_failing": sheet}
