"""Revisions: migrated equals fresh, a killed upgrade resumes, and programs one revision apart work together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from datetime import datetime
from typing import Annotated, Any

import pytest
import sqlalchemy as sa

from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.ledger.schema import expand, migrate
from penstock.ledger.schema.install import install
from penstock.ledger.schema.migrate import KERNEL, Track
from penstock.ledger.schema.tables import kernel_tables
from penstock.ledger.store.database import open_database
from penstock.model.clock import SystemClock
from penstock.model.errors import LedgerMismatch, LedgerRefused, UsageError
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.state import State, done, fault, hold, rest, work
from penstock.model.unit import Column, Unit
from tests.support.crash_app import FOLDER, JOB, SETTINGS
from tests.support.fleet import PATIENCE, ROOT, Fleet, Member, until
from tests.support.hand import Hand, typed_insert, typed_move
from tests.support.machines import INVOICE, MACHINES, OPERATOR, Invoice, InvoiceState, invoice
from tests.support.nightly import by_night
from tests.support.rolling import LATER, NEW, NEW_JOB
from tests.support.schema import compare, describe

WHAT_TO_DO = """the declared kernel tables and the revisions differ.
Nothing was released yet, so complete the first revision:
    python -m tests.support.first_revision > new && mv new src/penstock/ledger/migrations/r0001_kernel.py
After a release add the next one instead (r0002_<what>.py, revision "0002", down_revision "0001").
`declared` is what tables.py says, `migrated` what the revisions make:
"""


def upgraded(url: str, *machines: Machine, track: Track = KERNEL) -> str:
    database = open_database(url, SystemClock())
    try:
        install(database, machines, kernel=track)
    finally:
        database.close()
    return url


def from_the_first_revision(url: str, *machines: Machine, track: Track = KERNEL) -> str:
    """A ledger that went through every revision, one after the other."""
    database = open_database(url, SystemClock())
    try:
        database.alter(lambda cursor: migrate.upgrade(database, cursor, KERNEL, 0))
        install(database, machines, kernel=track)
    finally:
        database.close()
    return url


def version(url: str) -> str:
    with Hand(url) as hand:
        ((value,),) = hand.type("SELECT value FROM penstock_meta WHERE name = 'schema_version'")
        return str(value)


@pytest.fixture
def another_url(request, ledger_url, tmp_path):
    """A second empty database of the same kind."""
    if ledger_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'another.db'}"
        return
    from tests.support.databases import temporary_database

    with temporary_database(request.getfixturevalue("postgres_server")) as url:
        yield url


# Equal.


def test_the_revisions_make_what_is_declared(ledger_url, another_url):
    databases = [open_database(url, SystemClock()) for url in (ledger_url, another_url)]
    try:
        dialect = databases[0].dialect
        statements = [sql for table in kernel_tables(dialect) for sql in expand.create(table, dialect)]
        databases[0].alter(lambda cursor: [cursor.run(sql) for sql in statements])
        databases[1].alter(lambda cursor: migrate.upgrade(databases[1], cursor, KERNEL, 0))
    finally:
        for database in databases:
            database.close()
    declared = describe(ledger_url)
    assert len(declared) > 50
    different = compare(declared, describe(another_url))
    assert not different, WHAT_TO_DO + different


def test_a_migrated_ledger_equals_a_fresh_one(ledger_url, another_url):
    declared = describe(upgraded(ledger_url, *MACHINES))
    migrated = describe(from_the_first_revision(another_url, *MACHINES))
    assert len(declared) > 50
    different = compare(declared, migrated)
    assert not different, WHAT_TO_DO + different


def test_the_comparison_sees_a_column_a_check_an_index_and_a_trigger(ledger_url, another_url):
    declared = describe(upgraded(ledger_url, INVOICE))
    upgraded(another_url, INVOICE)
    with Hand(another_url) as hand:
        hand.type("ALTER TABLE gate ADD COLUMN odd text")
        hand.type("CREATE INDEX odd ON worker (host)")
        hand.type("DROP TRIGGER penstock_invoice_guard" + (" ON invoice" if hand.dialect == "postgresql" else ""))
        hand.type("ALTER TABLE event_log ADD COLUMN more text CONSTRAINT odd_check CHECK (more <> '')")
    found = compare(declared, describe(another_url))
    for part in ("column gate.odd", "index", "penstock_invoice_guard", "odd_check"):
        assert part in found


def test_a_revision_leaves_the_same_whenever_it_runs(ledger_url, another_url):
    """Fresh with the newest program, or upgraded by it with units inside: the same schema and triggers."""
    fresh = describe(upgraded(ledger_url, *MACHINES, track=NEW))
    upgraded(another_url, *MACHINES)
    with Hand(another_url) as hand:
        hand.type(typed_insert(INVOICE, invoice()))
        hand.type(
            "INSERT INTO event_log (event_key, event_type, payload, created_at)"
            " VALUES ('e1', 'sent', '{}', '2026-01-01T00:00:00.000Z')"
        )
    upgraded(another_url, *MACHINES, track=NEW)
    assert version(ledger_url) == version(another_url) == "2"
    assert not (found := compare(fresh, describe(another_url))), found
    with Hand(another_url) as hand:
        assert hand.type("SELECT event_key, synthetic FROM event_log") == [("e1", "none")]
        assert "append-only" in hand.refused("UPDATE event_log SET event_type = 'x'")
        assert "cannot go from QUEUED to SENT" in hand.refused(typed_move(INVOICE, "acme/1", "SENT"))


def test_triggers_and_views_that_this_program_does_not_know_survive_a_revision(ledger_url):
    """Another program's machine shares the ledger; rebuilding the kernel's tables must not cost it its guard."""
    upgraded(ledger_url, *MACHINES)
    with Hand(ledger_url) as hand:
        hand.type("CREATE VIEW waiting AS SELECT unit_id FROM invoice WHERE status = 'QUEUED'")
        before = describe(ledger_url)
        upgraded(ledger_url, INVOICE, track=NEW)
        after = describe(ledger_url)
        kept = [n for n in before if n.startswith(("trigger", "function", "view"))]
        assert {n: after.get(n) for n in kept} == {n: before[n] for n in kept}
        assert hand.type("SELECT * FROM waiting") == []


def test_rows_that_point_to_nothing_stop_a_revision(tmp_path):
    url = upgraded(f"sqlite:///{tmp_path / 'penstock.db'}", INVOICE)
    with Hand(url) as hand:
        hand.type("PRAGMA foreign_keys = OFF")  # as they are in any shell
        hand.type(typed_insert(INVOICE, invoice()))
        hand.type("UPDATE invoice SET gate_id = 'nowhere'")
        before = describe(url)
        with pytest.raises(LedgerMismatch, match=r"rows point to nothing in invoice \(to gate\); nothing was changed"):
            upgraded(url, INVOICE, track=NEW)
        assert describe(url) == before
        assert version(url) == "1"


def test_foreign_keys_hold_again_after_an_upgrade(tmp_path):
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    with Ledger.open(url, [INVOICE], create=True) as ledger, pytest.raises(LedgerRefused, match="FOREIGN KEY"):
        ledger.database.write(
            lambda c: c.run(
                "INSERT INTO invoice (unit_id, tenant, number, status, amount_minor, gate_id)"
                " VALUES ('a/1', 'a', '1', 'QUEUED', 1, 'nowhere')"
            )
        )


# Killed.


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize(
    "point", ["rebuilt", *(pytest.param(point, marks=pytest.mark.nightly) for point in ("begun", "done"))]
)
def test_an_upgrade_killed_half_way_is_resumed_by_running_it_again(ledger_url, tmp_path, point):
    upgraded(ledger_url, JOB)
    with Ledger.open(ledger_url, [JOB]) as ledger:
        before = describe(ledger_url)
        halt = tmp_path / "halt"
        halt.mkdir()
        (halt / "halt").write_text(point)
        environment = os.environ | {"SYNTHETIC_HALT": str(halt)}
        command = [sys.executable, "-m", "tests.support.rolling", "new", "upgrade", ledger_url]
        member = Member(command, environment, tmp_path / "upgrade.log")
        try:
            until(lambda: (halt / point).exists() or not member.alive, "the upgrade reaches its point")
            assert member.alive, member.text()
        finally:
            member.kill()
        until(lambda: version(ledger_url) == "1", "the database has let the dead transaction go")
        assert describe(ledger_url) == before
        assert examine(ledger.database, {JOB.name: JOB}) == []
        (halt / "halt").unlink()
        again = run(command, environment)
        assert again.returncode == 0, again.stderr
        assert version(ledger_url) == "2"
        assert examine(ledger.database, {NEW_JOB.name: NEW_JOB}) == []


def test_several_upgrades_at_once_are_harmless(ledger_url):
    upgraded(ledger_url, INVOICE)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            upgraded(ledger_url, *MACHINES, track=NEW)
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with Hand(ledger_url) as hand:
        assert hand.type("SELECT count(*) FROM synthetic") == [(1,)]


# One behind and one ahead (K13).


@by_night("sqlite")
def test_old_and_new_programs_work_together_through_an_upgrade(ledger_url, tmp_path):
    upgraded(ledger_url, JOB)
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        fleet.create()
        environment = os.environ | {FOLDER: str(fleet.folder), SETTINGS: json.dumps(fleet.settings)}

        def command(program: str, what: str) -> list[str]:
            return [sys.executable, "-m", "tests.support.rolling", program, what, ledger_url]

        def start(program: str) -> Member:
            member = Member(command(program, "work"), environment, tmp_path / f"{program}-{len(fleet.members)}.log")
            fleet.members.append(member)
            until(lambda: member.said("worker.started") or not member.alive, "the worker has started")
            assert member.alive, member.text()
            return member

        def done_by(letter: str) -> set[int]:
            """Give birth to jobs, wait until they are done, and say by whom."""
            fleet.born(*(f"{letter}{n}" for n in range(30)), before_ms=20)
            fleet.finish()
            sql = "SELECT DISTINCT done_by FROM job WHERE name LIKE :like"
            return {row[0] for row in fleet.ledger.read(lambda c: c.rows(sql, like=f"{letter}%"))}

        old = start("old")
        assert done_by("a") == {old.pid}
        # The new program's own machine has an edge that the ledger does not know yet: first comes the upgrade.
        early = run(command("new", "work"), environment)
        assert early.returncode == 2
        assert "the ledger's definition of job is not this program's; run 'penstock db upgrade'" in early.stderr

        fleet.born(*(f"b{n}" for n in range(30)), before_ms=20)
        upgrade = run(command("new", "upgrade"), environment)
        assert upgrade.returncode == 0, upgrade.stderr
        assert version(ledger_url) == "2"
        fleet.finish()
        assert old.alive, old.text()

        new, restarted = start("new"), start("old")
        assert done_by("c") <= {old.pid, new.pid, restarted.pid}
        new.kill()
        assert done_by("d") <= {old.pid, restarted.pid}, "the old program works on the schema after its own"
        newer = start("new")
        for member in (old, restarted):
            member.signal(signal.SIGTERM)
            assert member.wait() == 0
        assert done_by("e") == {newer.pid}
        fleet.stop()
        assert examine(fleet.ledger.database, {NEW_JOB.name: NEW_JOB}) == []
        assert fleet.effects.twice() == set()


def test_a_new_program_works_on_the_schema_before_its_own(ledger_url, tmp_path):
    upgraded(ledger_url, NEW_JOB)  # the machine is there, the revision is not
    assert version(ledger_url) == "1"
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        environment = os.environ | {FOLDER: str(fleet.folder), SETTINGS: json.dumps(fleet.settings)}
        command = [sys.executable, "-m", "tests.support.rolling", "new", "work", ledger_url]
        fleet._ledger = Ledger.open(ledger_url, [NEW_JOB])
        fleet.members.append(Member(command, environment, tmp_path / "new.log"))
        names = [f"x{n}" for n in range(20)]
        fleet.born(*names)
        fleet.finish()
        fleet.stop()
        assert examine(fleet.ledger.database, {NEW_JOB.name: NEW_JOB}) == []


def test_a_schema_two_revisions_away_is_refused(ledger_url, tmp_path):
    def refusal(program: str) -> str:
        command = [sys.executable, "-m", "tests.support.rolling", program, "work", ledger_url]
        done = run(command, os.environ | {FOLDER: str(tmp_path), SETTINGS: "{}"})
        assert done.returncode == 2
        return done.stderr

    upgraded(ledger_url, JOB)
    assert "the ledger has schema 1, this program knows 3; run 'penstock db upgrade'" in refusal("later")
    upgraded(ledger_url, JOB, track=LATER)
    assert "the ledger has schema 3, this program knows 1; use a newer Penstock" in refusal("old")
    with pytest.raises(LedgerMismatch, match="has schema 3, this program knows 2; use a newer Penstock"):
        upgraded(ledger_url, JOB, track=NEW)


# Definitions.


def more_edges() -> Machine:
    edges = [*INVOICE.edges, Edge(InvoiceState.QUEUED, InvoiceState.FAILED, "cancel", OPERATOR)]
    return Machine(
        "invoice", Invoice, births=INVOICE.births, edges=edges, terminal=INVOICE.terminal, checks=INVOICE.checks
    )


def test_an_older_program_works_on_newer_edges_and_does_not_take_them_away(ledger_url):
    upgraded(ledger_url, INVOICE)
    upgraded(ledger_url, more_edges())
    before = describe(ledger_url)
    with Ledger.open(ledger_url, [INVOICE]) as ledger:
        assert ledger.birth([invoice()], actor=Actor.API, who="test") == 1
    with pytest.raises(
        LedgerMismatch, match="a newer program has replaced the definition of invoice; upgrade with that"
    ):
        upgraded(ledger_url, INVOICE)
    assert describe(ledger_url) == before


class MoreStates(State):
    QUEUED = rest("QUEUED", "waits to be sent")
    SENDING = work("SENDING", "claimed: the call may have left")
    SENT = done("SENT", "accepted")
    FAILED = fault("FAILED", "a dead letter")
    HELD = hold("HELD", "an operator holds it back")


class HeldInvoice(Invoice):
    status: MoreStates = MoreStates.QUEUED  # type: ignore[assignment]


def test_an_older_program_refuses_a_state_that_it_does_not_know(ledger_url):
    """It would claim units in that state and not know what to do with them."""
    upgraded(ledger_url, INVOICE)
    edges = [*INVOICE.edges, Edge("QUEUED", "HELD", "hold", OPERATOR), Edge("HELD", "QUEUED", "release", OPERATOR)]
    given: dict[str, Any] = {"births": INVOICE.births, "terminal": INVOICE.terminal, "checks": INVOICE.checks}
    upgraded(ledger_url, Machine("invoice", HeldInvoice, edges=edges, **given))
    with pytest.raises(
        LedgerMismatch, match="invoice is newer than this program's and has different states; use a newer"
    ):
        Ledger.open(ledger_url, [INVOICE])


def test_an_older_definition_may_be_taken_back_on_purpose(ledger_url):
    first = describe(upgraded(ledger_url, INVOICE))
    upgraded(ledger_url, more_edges())
    database = open_database(ledger_url, SystemClock())
    install(database, [INVOICE], take_back=True)
    database.close()
    assert describe(ledger_url) == first
    upgraded(ledger_url, INVOICE)
    with pytest.raises(LedgerMismatch, match="a newer program has replaced"):
        upgraded(ledger_url, more_edges())


# Expansion of a program's own tables.


class Grown(Invoice):
    note: str | None = None
    seen_at: datetime | None = None
    copies: Annotated[int, Column(server_default="1")] = 0


class Wrong(Invoice):
    copies: int = 0


class Retyped(Unit):
    key = ("tenant", "number")

    status: InvoiceState = InvoiceState.QUEUED
    tenant: str
    number: str
    amount_minor: str = ""
    remote_id: str | None = None


def invoices_of(unit: type[Unit], *, key_is_primary: bool = False) -> Machine:
    return Machine(
        "invoice",
        unit,
        births=INVOICE.births,
        edges=INVOICE.edges,
        terminal=INVOICE.terminal,
        checks=INVOICE.checks,
        key_is_primary=key_is_primary,
    )


def test_new_columns_are_added_and_the_table_equals_a_fresh_one(ledger_url, another_url):
    upgraded(ledger_url, INVOICE)
    with Hand(ledger_url) as hand:
        hand.type(typed_insert(INVOICE, invoice()))
    upgraded(ledger_url, invoices_of(Grown))
    assert not (found := compare(describe(upgraded(another_url, invoices_of(Grown))), describe(ledger_url))), found
    with Ledger.open(ledger_url, [invoices_of(Grown)]) as ledger:
        (unit,) = ledger.get_many(ledger.machine("invoice"), ["acme/1"])
        assert (unit.note, unit.seen_at, unit.copies) == (None, None, 1)
        assert examine(ledger.database, ledger.machines) == []
    with Ledger.open(ledger_url, [INVOICE]) as older:
        assert older.birth([invoice("2")], actor=Actor.API, who="test") == 1


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (Wrong, "differ in copies: the column is missing, and it is NOT NULL without a default in the database"),
        (Retyped, "differ in amount_minor: the column is (bigint|integer), the program's is text"),
    ],
)
def test_what_adding_cannot_make_good_is_refused_untouched(ledger_url, unit, message):
    before = describe(upgraded(ledger_url, INVOICE))
    with pytest.raises(
        LedgerMismatch, match=rf"table invoice and this program {message}; the table needs a migration first"
    ):
        upgraded(ledger_url, invoices_of(unit))
    assert describe(ledger_url) == before


def test_a_column_that_the_program_no_longer_has_needs_a_migration(ledger_url):
    upgraded(ledger_url, invoices_of(Grown))
    with pytest.raises(LedgerMismatch, match="differ in copies: the ledger has this column, the program does not"):
        upgraded(ledger_url, INVOICE)


def keys(url: str) -> dict[str, str]:
    with Hand(url) as hand:
        return dict(
            hand.type(
                "SELECT contype, pg_get_constraintdef(oid) FROM pg_constraint"
                " WHERE conrelid = 'invoice'::regclass AND contype IN ('p', 'u')"
            )
        )


def test_the_columns_of_the_key_are_the_primary_key_where_that_is_declared(postgres_url):
    known = invoices_of(Invoice, key_is_primary=True)
    assert keys(upgraded(postgres_url, known)) == {"p": "PRIMARY KEY (tenant, number)", "u": "UNIQUE (unit_id)"}
    # A program that needs less works on it, and leaves it as it is.
    upgraded(postgres_url, INVOICE)
    assert keys(postgres_url) == {"p": "PRIMARY KEY (tenant, number)", "u": "UNIQUE (unit_id)"}
    with Ledger.open(postgres_url, [INVOICE]) as ledger:
        assert ledger.birth([invoice("1"), invoice("2")], actor=Actor.API, who="test") == 2
        assert examine(ledger.database, ledger.machines) == []


def test_a_primary_key_that_the_ledger_lacks_needs_a_migration(postgres_url):
    assert keys(upgraded(postgres_url, INVOICE)) == {"p": "PRIMARY KEY (unit_id)"}
    message = r"the key is \(unit_id\), the program's is \(tenant, number\)"
    with pytest.raises(LedgerMismatch, match=message):
        upgraded(postgres_url, invoices_of(Grown, key_is_primary=True))
    assert keys(postgres_url) == {"p": "PRIMARY KEY (unit_id)"}


def data_table(*columns: sa.Column[Any], **indexes: str) -> sa.Table:
    table = sa.Table(
        "line", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("text", sa.String(9)), *columns
    )
    for name, of in indexes.items():
        sa.Index(name, table.c[of])
    return table


def test_data_tables_gain_tables_columns_and_indexes(ledger_url, another_url):
    newer = data_table(sa.Column("price", sa.Numeric(10, 2)), line_price="price", line_text="text")
    for url, steps in ((ledger_url, [data_table(), newer]), (another_url, [newer])):
        for table in steps:
            Ledger.open(url, [INVOICE], create=True, data_tables=[table]).close()
    assert not (found := compare(describe(another_url), describe(ledger_url))), found


# An App's own revisions.


@pytest.fixture
def revisions(tmp_path, monkeypatch):
    """A package `own_<n>` with an empty folder `migrations`, and a function that writes revisions into it."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name / "migrations"
    folder.mkdir(parents=True)
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(number: int, body: str) -> str:
        before = f'"{number - 1:04}"' if number > 1 else "None"
        text = f'"""Revision {number}."""\nimport sqlalchemy as sa\nfrom alembic import op\n'
        text += f'revision = "{number:04}"\ndown_revision = {before}\n\n\ndef upgrade():\n    {body}\n'
        (folder / f"r{number:04}_own.py").write_text(text)
        return f"{name}:migrations"

    return write


RETYPE = """with op.batch_alter_table("invoice") as batch:
        using = "amount_minor::text"
        batch.alter_column("amount_minor", type_=sa.Text, existing_nullable=False, postgresql_using=using)"""


def own(url: str, machine: Machine, migrations: str) -> None:
    Ledger.open(url, [machine], create=True, migrations=[migrations]).close()


def test_an_app_brings_its_own_revisions(ledger_url, another_url, revisions):
    upgraded(ledger_url, INVOICE)
    with Hand(ledger_url) as hand:
        hand.type(typed_insert(INVOICE, invoice()))
    place = revisions(1, RETYPE)
    own(ledger_url, invoices_of(Retyped), place)
    own(another_url, invoices_of(Retyped), place)
    with Hand(ledger_url) as hand:
        assert hand.type("SELECT unit_id, amount_minor FROM invoice") == [("acme/1", "100")]
        sql = f"SELECT value FROM penstock_meta WHERE name = 'schema_version {place}'"
        assert hand.type(sql) == [("1",)]
    with Ledger.open(ledger_url, [invoices_of(Retyped)], migrations=[place]) as ledger:
        assert examine(ledger.database, ledger.machines) == []
    assert not (found := compare(describe(another_url), describe(ledger_url))), found


def test_an_apps_revision_that_fails_changes_nothing(ledger_url, revisions):
    before = describe(upgraded(ledger_url, INVOICE))
    place = revisions(1, "op.add_column('invoice', sa.Column('note', sa.Text))")
    place = revisions(2, "op.execute('SELECT * FROM nowhere')")
    with pytest.raises(Exception, match="nowhere"):
        own(ledger_url, INVOICE, place)
    assert describe(ledger_url) == before


def test_an_apps_schema_out_of_range_is_refused(ledger_url, revisions):
    *_, place = (revisions(n, "pass") for n in (1, 2, 3))
    upgraded(ledger_url, INVOICE)
    with pytest.raises(
        LedgerMismatch, match=r"has revision of own_\w+:migrations 0, this program knows 3; run 'penstock db"
    ):
        Ledger.open(ledger_url, [INVOICE], migrations=[place])
    own(ledger_url, INVOICE, place)
    Ledger.open(ledger_url, [INVOICE], migrations=[place]).close()


@pytest.mark.parametrize("place", ["nowhere", "nowhere:migrations", "penstock.ledger:nothing", ":x", "penstock:"])
def test_a_place_without_migrations_is_refused(tmp_path, place):
    with pytest.raises(UsageError, match="is not a place for migrations; write package:folder"):
        Ledger.open(f"sqlite:///{tmp_path / 'penstock.db'}", [INVOICE], create=True, migrations=[place])


def test_a_gap_in_the_numbers_is_refused(tmp_path, revisions):
    revisions(1, "pass")
    place = revisions(3, "pass")
    with pytest.raises(UsageError, match="not numbered r0001_, r0002_ and so on without a gap"):
        Ledger.open(f"sqlite:///{tmp_path / 'penstock.db'}", [INVOICE], create=True, migrations=[place])
