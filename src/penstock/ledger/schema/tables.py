"""The kernel's tables, and the table of any machine, as SQLAlchemy Core.

Triggers are not here: they are generated from the machines (`triggers_sqlite`, `triggers_postgres`) and recreated
after every migration.
"""

from __future__ import annotations

import functools
import hashlib
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.base import RESERVED_WORDS

from penstock.ledger.schema.column_types import Document, Instant, sql_type
from penstock.ledger.schema.columns import python_type
from penstock.ledger.schema.desk_tables import desk_tables
from penstock.ledger.schema.standing import SHUT_UNTIL, STANDS
from penstock.ledger.schema.strict import STRICT
from penstock.ledger.schema.unit_ids import unit_id_text
from penstock.ledger.store.database import Database
from penstock.ledger.store.statements import dead_letters, in_listed_states, listed_states, waiting, waiting_by_moment
from penstock.model.errors import MachineError
from penstock.model.machine import Machine
from penstock.model.unit import NO_GATE, NOW, field_types, special_columns

_LONGEST = 63
# No column may need quotes, in either database: the kernel's statements write names as they are.
_SQLITE_RESERVED = (
    *("add", "alter", "autoincrement", "commit", "delete", "drop", "escape", "exists", "index", "insert", "raise"),
    *("set", "transaction", "update", "values"),
)
_RESERVED = RESERVED_WORDS.union(_SQLITE_RESERVED)
# PostgreSQL keeps infinite moments and years that Python does not know: whoever reads one would fail.
_KNOWN_INSTANT = "{0} >= '0001-01-01 UTC' AND {0} < '10000-01-01 UTC'"
_KNOWN_DAY = "{0} >= '0001-01-01' AND {0} < '10000-01-01'"
# As SQLite keeps instants; PostgreSQL's own word.
_NOW = {"sqlite": "(strftime('%Y-%m-%dT%H\\:%M\\:%fZ', 'now'))", "postgresql": "now()"}
kernel = sa.MetaData()

_HOT: dict[str, Any] = {"postgresql_with": {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.02}}

meta = sa.Table(
    "penstock_meta",
    kernel,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    **STRICT,
)

machine_definition = sa.Table(
    "machine_definition",
    kernel,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("driven", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("due_column", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("definition", Document, nullable=False),
    sa.Column("installed_at", Instant, nullable=False),
    **STRICT,
)


def _instant_check(column: str) -> list[sa.CheckConstraint]:
    """The column of a kernel table holds an instant that Python knows, in the form that sorts."""
    name, table_column = f"{column}_is_instant", column.split("_", 1)[1]
    return [
        sa.CheckConstraint(_KNOWN_INSTANT.format(table_column), name=name).ddl_if(dialect="postgresql"),
        sa.CheckConstraint(
            f"{table_column} IS NULL OR {table_column} IS strftime('%Y-%m-%dT%H\\:%M\\:%fZ', {table_column})", name=name
        ).ddl_if(dialect="sqlite"),
    ]


gate = sa.Table(
    "gate",
    kernel,
    sa.Column("gate_id", sa.Text, primary_key=True),
    # The provider asked for quiet, or the breaker is open; NULL: it did not.
    sa.Column("closed_until", Instant),
    sa.Column("closed_reason", sa.Text),
    # How often it was closed since it last let a call through, each time under another epoch.
    sa.Column("throttles", sa.Integer, nullable=False, server_default="0"),
    sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
    # Calls that failed in a row, those that were under way together counted once; and since when none came through.
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    sa.Column("failing_since", Instant),
    # Its budget is spent, or its probe is out, until then.
    sa.Column("next_at", Instant),
    sa.Column("metered", sa.Boolean(create_constraint=False), nullable=False, server_default=sa.false()),
    sa.Column("max_in_flight", sa.Integer),
    # Held by somebody (`operator:anna`) or by a fatal error (`fatal`), for as long as it takes.
    sa.Column("held_by", sa.Text),
    sa.Column("held_reason", sa.Text),
    sa.Column("held_at", Instant),
    sa.Column("held_config", sa.Text),
    # The moment of opening that a worker found to be over: no index knows the time.
    sa.Column("noticed", Instant),
    # What claims find gates by: whether they are held, shut until a moment, to be asked first, or open.
    sa.Column("stands", sa.Text, sa.Computed(STANDS, persisted=True)),
    sa.Column("shut_until", Instant, sa.Computed(SHUT_UNTIL, persisted=True)),
    sa.CheckConstraint(
        f"gate_id <> '{NO_GATE}' OR (closed_until IS NULL AND next_at IS NULL AND held_by IS NULL AND NOT metered"
        " AND throttles = 0 AND failing_since IS NULL)",
        name="gate_none_is_open",
    ),
    *_instant_check("gate_closed_until"),
    *_instant_check("gate_next_at"),
    *_instant_check("gate_failing_since"),
    *_instant_check("gate_noticed"),
    **STRICT,
)
sa.Index("gate_stands", gate.c.stands, gate.c.gate_id)
sa.Index("gate_shut", gate.c.stands, gate.c.shut_until)

gate_limit = sa.Table(
    "gate_limit",
    kernel,
    sa.Column("gate_id", sa.Text, sa.ForeignKey(gate.c.gate_id), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("rate", sa.Double, nullable=False),
    sa.Column("burst", sa.Double, nullable=False),
    sa.Column("cost", sa.Double, nullable=False),
    # As many were there at `filled_at`; what has come since follows from the rate. Below zero it is a debt.
    sa.Column("tokens", sa.Double, nullable=False),
    sa.Column("filled_at", Instant, nullable=False),
    sa.CheckConstraint("rate > 0 AND burst >= cost AND cost > 0", name="gate_limit_is_possible"),
    *_instant_check("limit_filled_at"),
    sqlite_with_rowid=False,
    **STRICT,
)


class Lease(sa.types.TypeDecorator[Any]):
    """A worker's lease: an instant of the server on PostgreSQL, milliseconds since boot on SQLite."""

    impl = sa.BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.DateTime(timezone=True) if dialect.name == "postgresql" else sa.BigInteger())


worker = sa.Table(
    "worker",
    kernel,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("started_at", Instant, nullable=False),
    sa.Column("lease_until", Lease, nullable=False),
    sa.Column("boot_id", sa.Text),
    # How others of its machine recognise the process (see `processes`).
    sa.Column("process", sa.Text),
    sa.Column("commit_seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("machines", Document, nullable=False),
    sa.Column("config_version", sa.Text),
    sa.Column("reaped_at", Instant),
    # The program stopped in order: the row is kept, because its id is in the history.
    sa.Column("stopped_at", Instant),
    # The unit that was charged a crash for its death.
    sa.Column("charged", sa.Text),
    **_HOT,
    **STRICT,
)
sa.Index(
    "worker_live",
    worker.c.id,
    postgresql_where=worker.c.reaped_at.is_(None),
    sqlite_where=worker.c.reaped_at.is_(None),
)


def _log_key(*names: str) -> tuple[sa.PrimaryKeyConstraint, ...]:
    return (sa.PrimaryKeyConstraint(*names),)


def transition_log(dialect: str) -> sa.Table:
    """The history. On PostgreSQL one index serves both key and look-up; SQLite's key is the row id."""
    table = sa.Table(
        "transition_log",
        sa.MetaData(),
        sa.Column("seq", sa.BigInteger, sa.Identity(always=True), nullable=False)
        if dialect == "postgresql"
        else sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("machine", sa.Text, nullable=False),
        sa.Column("unit_id", sa.Text, nullable=False),
        sa.Column("from_status", sa.Text),
        sa.Column("to_status", sa.Text),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("at", Instant, nullable=False),
        sa.Column("data", Document),
        # The bulk action that the change was a part of.
        sa.Column("action_id", sa.Text),
        # The edge that was pulled: see `edge_names`.
        sa.Column("trigger", sa.Text),
        # Of a death: since when the unit was as it ended, so that the row needs none before it.
        sa.Column("since", Instant),
        # A BEFORE trigger of SQLite sees a number not yet drawn as -1; a row of that number would block all others. No
        # AUTOINCREMENT: the newest row is never deleted, and anybody could exhaust the counter that it keeps.
        *(_log_key("machine", "unit_id", "seq") if dialect == "postgresql" else (sa.CheckConstraint("seq > 0"),)),
        **STRICT,
    )
    if dialect == "postgresql":
        # Summarised as it grows, for what is asked most is the newest part.
        brin: dict[str, Any] = {"postgresql_using": "brin", "postgresql_with": {"autosummarize": "on"}}
        sa.Index("transition_log_at", table.c.at, **brin)
        sa.Index("transition_log_seq", table.c.seq, **brin)
    else:
        sa.Index("transition_log_unit", table.c.machine, table.c.unit_id, table.c.seq)
        sa.Index("transition_log_at", table.c.at)
    return table


prune_permit = sa.Table(
    "prune_permit",
    kernel,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("machine", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at", Instant, nullable=False),
    # Set only inside the pruning transaction: its id on PostgreSQL, the word `open` on SQLite. No permit is called
    # that, so that the database refuses to commit an open one.
    sa.Column("open", sa.Text, sa.ForeignKey("prune_permit.id", deferrable=True, initially="DEFERRED")),
    sqlite_with_rowid=False,
    **STRICT,
)
# The guards ask for it at every row that goes.
sa.Index(
    "prune_permit_open",
    prune_permit.c.machine,
    postgresql_where=prune_permit.c.open.is_not(None),
    sqlite_where=prune_permit.c.open.is_not(None),
)


def _prune_probe() -> sa.Table:
    """Empty, and only on SQLite, where keys bind a connection only if it asks: a permit is opened by one that does.

    The guard of permits puts two rows here and deletes the first. Where keys bind, the second goes with it.
    """
    return sa.Table(
        "prune_probe",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("parent", sa.Integer, sa.ForeignKey("prune_probe.id", ondelete="CASCADE")),
        **STRICT,
    )


event_log = sa.Table(
    "event_log",
    kernel,
    sa.Column("tenant_id", sa.Text, primary_key=True, server_default="default"),
    sa.Column("event_key", sa.Text, primary_key=True),
    sa.Column("event_type", sa.Text, nullable=False),
    sa.Column("severity", sa.Text),
    sa.Column("payload", Document, nullable=False),
    sa.Column("machine", sa.Text),
    sa.Column("unit_id", sa.Text),
    # machine:unit_id@version of the change that wrote it; the version is that of its row in the history.
    sa.Column("correlation_id", sa.Text),
    sa.Column("created_at", Instant, nullable=False),
    sa.CheckConstraint("severity IN ('info', 'warning', 'critical')", name="event_log_severity"),
    sqlite_with_rowid=False,
    **STRICT,
)
sa.Index("event_log_created", event_log.c.created_at)

# Who wants which events; `*` is any. A trigger of event_log reads it: see `outbox`.
subscription = sa.Table(
    "subscription",
    kernel,
    sa.Column("subscriber", sa.Text, primary_key=True),
    sa.Column("event_type", sa.Text, primary_key=True),
    sa.Column("severity", sa.Text, primary_key=True),
    sa.Column("since", Instant, nullable=False),
    sqlite_with_rowid=False,
    **STRICT,
)

# Every batch of staged rows that is not yet swept: see `stage`.
stage = sa.Table(
    "stage",
    kernel,
    sa.Column("stage_id", sa.Text, primary_key=True),
    sa.Column("machine", sa.Text, nullable=False),
    sa.Column("unit_id", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("claimed_by", sa.Text, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.Column("chunks", sa.Integer, nullable=False),
    sa.Column("opened_at", Instant, nullable=False),
    sa.Column("sealed_at", Instant),
    sa.Column("loose_at", Instant),
    sqlite_with_rowid=False,
    **_HOT,
    **STRICT,
)
sa.Index("stage_of_table", stage.c.table_name, stage.c.stage_id)


def kernel_tables(dialect: str) -> list[sa.Table]:
    """Every table of the kernel for this dialect, in the order of creation."""
    probe = [_prune_probe()] if dialect == "sqlite" else []
    return [*kernel.sorted_tables, *desk_tables.sorted_tables, *probe, transition_log(dialect)]


def table_of(database: Database, machine: Machine) -> sa.Table:
    """The table of a machine in this database."""
    return machine_table(machine, database.dialect)


@functools.cache
def machine_table(machine: Machine, dialect: str) -> sa.Table:
    """The table of a machine: its unit's fields as columns, its CHECKs, and the kernel's indexes."""
    unit_types = field_types(machine.unit)
    specs = special_columns(machine.unit)
    columns = [_column(machine, name, unit_types[name], specs.get(name), dialect) for name in unit_types]
    if machine.counters:
        # No field of the unit: it only tells a tally from what a stranger does to the counters.
        columns.append(sa.Column("tallies", sa.BigInteger, nullable=False, server_default="0"))
    # No field either: the last bulk action that changed the unit, for the row of its history.
    columns.append(sa.Column("last_action", sa.Text))
    if machine.driven:
        # No fields either: when the last claim was made, for the doctor; and the workers that `suspicion` counts.
        columns.append(sa.Column("claimed_at", Instant))
        columns.append(sa.Column("suspected_in", sa.Text))
    keys: list[sa.Constraint] = [sa.PrimaryKeyConstraint("unit_id")]
    # No second unique key on SQLite: REPLACE would delete another unit through it without firing a trigger.
    if machine.key_is_primary and dialect == "postgresql":
        unit_id = sa.UniqueConstraint("unit_id", name=f"{machine.table}_unit_id_key")
        keys = [sa.PrimaryKeyConstraint(*machine.unit.key), unit_id]
    table = sa.Table(
        machine.table,
        sa.MetaData(),
        *columns,
        *keys,
        *_checks(machine, dialect),
        sqlite_with_rowid=False,
        **_HOT,
        **STRICT,
    )
    _indexes(machine, table, dialect)
    return table


_KERNEL_DEFAULTS = {"changed_by": "sql", "gate_id": NO_GATE} | dict.fromkeys(
    ("wakes", "attempts", "crashes", "doubts", "suspicion"), "0"
)


def _column(machine: Machine, name: str, annotation: Any, spec: Any, dialect: str) -> sa.Column[Any]:
    if machine.column(name) in _RESERVED:
        msg = f"machine {machine.name!r}: column {machine.column(name)!r} is a reserved word of SQL; choose another"
        raise MachineError(msg)
    kind, optional = python_type(annotation)
    extras: list[Any] = []
    default: Any = spec.server_default if spec else None
    if default == NOW:
        default = sa.text(_NOW[dialect])
    elif default is not None and kind is bool:
        default = sa.text(default)  # in quotes it would be a text, which SQLite keeps as one
    if spec is not None and spec.generated:
        extras.append(sa.Computed(spec.generated, persisted=True))
        optional = True
    if name == "gate_id":
        extras.append(sa.ForeignKey(gate.c.gate_id))
    if name in machine.references:
        extras.append(sa.ForeignKey(_key_of(machine.references[name], dialect)))
    if name == "version" and default is None:
        default = sa.text(
            "(random() * 281474976710656)::bigint" if dialect == "postgresql" else "(abs(random() % 281474976710656))"
        )
    default = _KERNEL_DEFAULTS.get(name, default)
    return sa.Column(machine.column(name), sql_type(kind, spec), *extras, nullable=optional, server_default=default)


def _key_of(machine: Machine, dialect: str) -> sa.Column[Any]:
    """The column by which others refer to a unit. SQLite has no other key than `unit_id`, which is the same text."""
    return machine_table(machine, dialect).c[machine.unit.key[0] if dialect == "postgresql" else "unit_id"]


def _checks(machine: Machine, dialect: str) -> list[sa.CheckConstraint]:
    checks = {
        "unit_id_is_key": f"unit_id <> '' AND unit_id = {unit_id_text(machine, machine.unit.key, dialect)}",
        **_value_checks(machine, dialect),
        **machine.checks,
    }
    return [
        sa.CheckConstraint(sa.text(_literal(text)), name=_short(f"{machine.table}_{n}")) for n, text in checks.items()
    ]


def _short(name: str) -> str:
    """A name that PostgreSQL takes whole: a longer one ends in a digest of itself."""
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


_DIGIT = "[0-9]"
_GLOB_DAY = f"{_DIGIT * 4}-{_DIGIT * 2}-{_DIGIT * 2}"
# SQLite makes the 2nd of March of a 30th of February, and nothing of a 13th month.
_IN_CALENDAR = "strftime('%d', {0}) IS substr({0}, 9, 2) AND {0} > '0001'"
_ON_CLOCK = "substr({0}, 12, 2) < '24'"
_GLOB_INSTANT = f"{_GLOB_DAY}T{_DIGIT * 2}:{_DIGIT * 2}:{_DIGIT * 2}.{_DIGIT * 3}Z"


def _value_checks(machine: Machine, dialect: str) -> dict[str, str]:
    """What a column's type does not say by itself.

    SQLite has no type for instants, dates and documents; a value in another form would sort wrongly and could not be
    read. PostgreSQL has instants and dates that Python has not.
    """
    forms: dict[type, tuple[str, str]] = {
        datetime: ("instant", f"{{0}} IS NULL OR {{0}} GLOB '{_GLOB_INSTANT}' AND {_IN_CALENDAR} AND {_ON_CLOCK}"),
        date: ("date", f"{{0}} IS NULL OR {{0}} GLOB '{_GLOB_DAY}' AND {_IN_CALENDAR}"),
        dict: ("document", "{0} IS NULL OR json_valid({0})"),
        list: ("document", "{0} IS NULL OR json_valid({0})"),
    }
    if dialect == "postgresql":
        forms = {datetime: ("instant", _KNOWN_INSTANT), date: ("date", _KNOWN_DAY)}
    checks = {}
    for name, annotation in field_types(machine.unit).items():
        if (form := forms.get(python_type(annotation)[0])) is not None:
            column = machine.column(name)
            checks[f"{column}_is_{form[0]}"] = form[1].format(column)
    return checks


def _literal(text: str) -> str:
    """Keep ':' and '%' of a check as they are; SQLAlchemy would read ':name' as a parameter."""
    return text.replace(":", "\\:")


def _indexes(machine: Machine, table: sa.Table, dialect: str) -> None:
    if machine.parent and dialect != "postgresql":
        sa.Index(f"{machine.table}_parent", *(table.c[n] for n in machine.parent.by), table.c.status)
    elif machine.parent:
        sa.Index(f"{machine.table}_parent", *(table.c[n] for n in machine.parent.by))
    for name, columns in (*machine.indexes.items(), *machine.unique.items()):
        unique = dialect == "postgresql" and name in machine.unique
        sa.Index(_short(f"{machine.table}_{name}"), *(table.c[machine.column(n)] for n in columns), unique=unique)
    if listed_states(machine):
        where = sa.text(in_listed_states(machine))
        by_state = (table.c.status, table.c.unit_id)
        sa.Index(f"{machine.table}_status", *by_state, postgresql_where=where, sqlite_where=where)
    if not machine.driven:
        return
    schedule = (table.c.gate_id, table.c[machine.due], table.c.unit_id)
    free = sa.text(waiting(machine.due))
    # SQLite reads the unit of every entry of an index that lacks a column of its own condition.
    known = () if dialect == "postgresql" else (table.c.claimed_by, table.c.parked_at)
    sa.Index(f"{machine.table}_due", *schedule, *known, postgresql_where=free, sqlite_where=free)
    free = sa.text(waiting_by_moment(machine.due))
    moments = (table.c[machine.due], table.c.gate_id, *known, *(known and [table.c.suspicion]))
    sa.Index(f"{machine.table}_moments", *moments, postgresql_where=free, sqlite_where=free)
    # Suspects are claimed apart from the others; nearly always there are none.
    accused = sa.text("suspicion > 0")
    sa.Index(f"{machine.table}_suspects", *schedule, postgresql_where=accused, sqlite_where=accused)
    if machine.siblings is not None:
        waits = f"{machine.due} IS NOT NULL AND claimed_by IS NULL AND parked_at IS NULL"
        # A statement that names no sibling cannot use it, and no planner takes it for another index.
        free = sa.text(f"{waits} AND {machine.siblings} IS NOT NULL")
        oldest_first = (table.c[machine.siblings], table.c[machine.due], table.c.unit_id)
        sa.Index(f"{machine.table}_siblings", *oldest_first, postgresql_where=free, sqlite_where=free)
    parked = sa.text("parked_at IS NOT NULL")
    sa.Index(f"{machine.table}_parked", table.c.parked_at, postgresql_where=parked, sqlite_where=parked)
    if machine.dead:
        # Dead letters are few among many, and people and pages look for them.
        dead = sa.text(dead_letters(machine))
        sa.Index(f"{machine.table}_dead", table.c.unit_id, postgresql_where=dead, sqlite_where=dead)
    held = sa.text("claimed_by IS NOT NULL")
    # With the gate, because places behind a gate are counted by it.
    sa.Index(f"{machine.table}_claimed", table.c.claimed_by, table.c.gate_id, postgresql_where=held, sqlite_where=held)
