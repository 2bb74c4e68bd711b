"""Making and opening a ledger: what is made, what is refused untouched, and what the refusal says."""

from __future__ import annotations

import re
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.column_types import Instant
from penstock.ledger.schema.tables import kernel_tables
from penstock.ledger.schema.triggers import KERNEL_TABLES
from penstock.ledger.store import statements
from penstock.ledger.store.postgres import connection
from penstock.ledger.store.postgres.connection import too_old
from penstock.ledger.store.sqlite.database import network_filesystem, safe_version
from penstock.model.clock import VirtualClock
from penstock.model.errors import (
    LedgerBroken,
    LedgerError,
    LedgerMismatch,
    LedgerRefused,
    LedgerUnavailable,
    UsageError,
)
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.state import State, done, rest, work
from penstock.model.unit import Ref, Unit, replace, unit_id_of
from tests.support.hand import Hand, typed_insert, typed_move
from tests.support.machines import (
    INVOICE,
    MACHINES,
    OPERATOR,
    SAMPLES,
    WORKER,
    Invoice,
    InvoiceState,
    SampleState,
    batch_item,
    invoice,
)

STATES = """SELECT relname, pg_get_constraintdef(k.oid) FROM pg_constraint k JOIN pg_class c ON c.oid = conrelid
UNION ALL SELECT tgname, tgenabled::text || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE 'penstock%'
UNION ALL SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2"""


def schema(url: str) -> list[tuple[object, ...]]:
    """Everything that installing makes, as the database describes it."""
    with Hand(url) as hand:
        sql = "SELECT name, sql FROM sqlite_master ORDER BY name" if hand.dialect == "sqlite" else STATES
        return hand.type(sql) + hand.type("SELECT * FROM machine_definition ORDER BY name")


def make(url: str, *machines: Machine) -> str:
    Ledger.open(url, machines, create=True).close()
    return url


def another_invoice(**changes: object) -> Machine:
    """The invoice machine with one more edge, or whatever else is asked for."""
    edges = [*INVOICE.edges, Edge(InvoiceState.QUEUED, InvoiceState.FAILED, "cancel", OPERATOR)]
    given = {"births": INVOICE.births, "edges": edges, "terminal": INVOICE.terminal, "checks": INVOICE.checks}
    return Machine("invoice", Invoice, **given | changes)  # type: ignore[arg-type]


# Installing.


def test_installing_twice_changes_nothing(ledger_url):
    first = schema(make(ledger_url, *MACHINES))
    assert schema(make(ledger_url, *MACHINES)) == first
    assert len(first) > len(MACHINES)


def test_installing_again_keeps_the_units(ledger_url):
    make(ledger_url, INVOICE)
    with Hand(ledger_url) as hand:
        hand.type(typed_insert(INVOICE, invoice()))
        make(ledger_url, INVOICE)
        assert hand.type("SELECT unit_id FROM invoice") == [("acme/1",)]
        assert len(hand.type("SELECT * FROM transition_log")) == 1


def test_a_machine_may_be_added_later(ledger_url):
    make(ledger_url, INVOICE)
    make(ledger_url, *MACHINES)
    with Ledger.open(ledger_url, MACHINES) as ledger:
        units = [f() for f in SAMPLES.values()]
        assert sum(ledger.birth([u], actor=Actor.API, who="test") for u in units) == len(MACHINES)


def test_a_removed_trigger_comes_back(ledger_url):
    first = schema(make(ledger_url, INVOICE))
    with Hand(ledger_url) as hand:
        hand.type("DROP TRIGGER penstock_invoice_guard" + (" ON invoice" if hand.dialect == "postgresql" else ""))
    assert schema(ledger_url) != first
    assert schema(make(ledger_url, INVOICE)) == first


def test_a_start_makes_nothing_anew_that_is_as_it_should_be(ledger_url):
    """On PostgreSQL whoever makes a trigger waits for everybody who works, and they for it."""
    make(ledger_url, INVOICE)
    marks = {
        "sqlite": "SELECT name, rowid FROM sqlite_master WHERE type = 'trigger' ORDER BY name",
        "postgresql": "SELECT tgname, oid::bigint FROM pg_trigger UNION ALL SELECT proname, xmin::text::bigint"
        " FROM pg_proc WHERE proname LIKE 'penstock%' ORDER BY 1",
    }
    with Hand(ledger_url) as hand:
        before = hand.type(marks[hand.dialect])
        make(ledger_url, INVOICE)
        assert hand.type(marks[hand.dialect]) == before
        assert "penstock_invoice_guard" in {name for name, _ in before}


def test_a_trigger_that_was_changed_comes_back(ledger_url):
    first = schema(make(ledger_url, INVOICE))
    with Hand(ledger_url) as hand:
        if hand.dialect == "postgresql":
            hand.type("ALTER TABLE invoice DISABLE TRIGGER penstock_invoice_guard")
            hand.type("ALTER TABLE invoice ENABLE TRIGGER penstock_invoice_birth")
            hand.type(
                "CREATE OR REPLACE FUNCTION penstock_refuse_move() RETURNS trigger LANGUAGE plpgsql"
                " AS 'BEGIN RETURN NEW; END'"
            )
        else:
            hand.type("DROP TRIGGER penstock_invoice_guard")
            hand.type("CREATE TRIGGER penstock_invoice_guard BEFORE UPDATE ON invoice BEGIN SELECT 1; END")
    assert schema(ledger_url) != first
    assert schema(make(ledger_url, INVOICE)) == first


def test_an_index_on_other_columns_is_made_anew(ledger_url):
    first = schema(make(ledger_url, INVOICE))
    with Hand(ledger_url) as hand:
        for columns in ("gate_id, due_at", "lower(gate_id), due_at, unit_id"):
            hand.type("DROP INDEX invoice_due")
            hand.type(f"CREATE INDEX invoice_due ON invoice ({columns})")
            assert schema(ledger_url) != first
            assert schema(make(ledger_url, INVOICE)) == first


def test_two_may_install_at_once(ledger_url):
    errors: list[BaseException] = []

    def work() -> None:
        try:
            make(ledger_url, *MACHINES)
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    Ledger.open(ledger_url, MACHINES).close()


def test_every_sample_unit_comes_back_as_it_was_born(ledger_url):
    with Ledger.open(ledger_url, MACHINES, create=True) as ledger:
        for name, make_unit in SAMPLES.items():
            unit = make_unit()
            ledger.birth([unit], actor=Actor.API, who="test")
            (found,) = ledger.get_many(ledger.machine(name), [unit_id_of(unit)])
            kernel = {"unit_id", "version", "changed_by", "change_reason", "changed_at"}
            assert replace(found, **{n: getattr(unit, n) for n in kernel}) == unit


def test_the_longest_names_fit_both_databases(ledger_url):
    long = Machine(
        "a" * 45,
        Invoice,
        births=INVOICE.births,
        edges=INVOICE.edges,
        terminal=INVOICE.terminal,
        table="b" * 45,
        checks={"c" * 17: "amount_minor >= 0"},
    )
    make(ledger_url, long)
    with Hand(ledger_url) as hand:
        hand.type(typed_insert(long, invoice()))
        with pytest.raises(hand.error, match=f"penstock: {'a' * 45} cannot go from QUEUED to SENT"):
            hand.type(typed_move(long, "acme/1", "SENT"))
    assert any("a" * 45 + "_history" in str(row[0]) for row in schema(ledger_url))


def test_a_check_may_contain_percent_and_colon(ledger_url):
    machine = another_invoice(checks={"no_tests": "number NOT LIKE 'test%' AND tenant <> 'a:b'"})
    make(ledger_url, machine)
    with Hand(ledger_url) as hand:
        hand.type(typed_insert(machine, invoice("t1")))
        for wrong in (invoice("test1"), invoice("2", tenant="a:b")):
            with pytest.raises(hand.error, match="invoice_no_tests"):
                hand.type(typed_insert(machine, wrong))


def test_a_column_named_by_a_reserved_word_is_refused_untouched(ledger_url):
    class Reserved(Unit):
        key = ("name",)
        status: SampleState = SampleState.NEW
        name: str
        order: int = 0

    edges = [Edge(SampleState.NEW, SampleState.OLD, "aged", WORKER)]
    with pytest.raises(UsageError, match="field 'order' is a reserved word of SQL; choose another name"):
        make(ledger_url, Machine("reserved", Reserved, births={"new"}, edges=edges, terminal={"old"}))
    with Hand(ledger_url) as hand:
        sql = "sqlite_master" if hand.dialect == "sqlite" else "pg_tables WHERE schemaname = 'public'"
        assert hand.type(f"SELECT count(*) FROM {sql}") == [(0,)]


# Opening.


def test_a_ledger_opens_without_create(ledger_url):
    make(ledger_url, INVOICE)
    with Ledger.open(ledger_url, [INVOICE]) as ledger:
        assert ledger.birth([invoice()], actor=Actor.API, who="test") == 1


def test_another_definition_is_refused_and_says_what_to_do(ledger_url):
    make(ledger_url, INVOICE)
    with pytest.raises(LedgerMismatch, match="definition of invoice is not this program's; run 'penstock db upgrade'"):
        Ledger.open(ledger_url, [another_invoice()])


def test_another_definition_is_taken_over_by_create(ledger_url):
    make(ledger_url, INVOICE)
    make(ledger_url, another_invoice())
    with Hand(ledger_url) as hand:
        hand.type(typed_insert(INVOICE, invoice()))
        hand.type(typed_move(INVOICE, "acme/1", "FAILED"))
        assert hand.log()[-1][:2] == ("QUEUED", "FAILED")


@pytest.mark.parametrize(
    "changes",
    [
        {"checks": {}},
        {"checks": {"sent_has_id": "status <> 'SENT' OR remote_id <> ''"}},
        {"checks": {**INVOICE.checks, "positive": "amount_minor > 0"}},
        {"due": "next_try_at"},
    ],
    ids=["a check gone", "another check", "one more check", "another schedule"],
)
def test_a_table_of_another_shape_needs_a_migration_and_is_left_as_it_is(ledger_url, changes):
    before = schema(make(ledger_url, INVOICE))
    with pytest.raises(LedgerMismatch, match=r"table invoice .* needs a migration first"):
        make(ledger_url, another_invoice(**changes))
    assert schema(ledger_url) == before


class FewerStates(State):
    QUEUED = rest("QUEUED", "waits to be sent")
    SENDING = work("SENDING", "claimed: the call may have left")
    SENT = done("SENT", "accepted")


class FewerInvoice(Invoice):
    status: FewerStates = FewerStates.QUEUED  # type: ignore[assignment]


def test_a_state_is_taken_away_only_when_no_unit_is_in_it(ledger_url):
    with Ledger.open(ledger_url, [INVOICE], create=True) as ledger:
        ledger.birth([invoice("1")], actor=Actor.API, who="test")
        for state in ("SENDING", "FAILED"):
            ledger.move(Ref("invoice", "acme/1"), state, actor=Actor.WORKER, who="test", reason="test")
    fewer = Machine(
        "invoice",
        FewerInvoice,
        births={FewerStates.QUEUED},
        edges=[
            Edge(FewerStates.QUEUED, FewerStates.SENDING, "claim", WORKER, on_claim=True),
            Edge(FewerStates.SENDING, FewerStates.SENT, "accepted", WORKER),
        ],
        terminal={FewerStates.SENT},
        checks=INVOICE.checks,
    )
    before = schema(ledger_url)
    with pytest.raises(LedgerMismatch, match="invoice no longer has the state FAILED, and units are in it; move them"):
        make(ledger_url, fewer)
    assert schema(ledger_url) == before
    with Ledger.open(ledger_url, [INVOICE]) as ledger:
        ledger.move(Ref("invoice", "acme/1"), "QUEUED", actor=Actor.OPERATOR, who="ann", reason="again")
    make(ledger_url, fewer)
    with Hand(ledger_url) as hand, pytest.raises(hand.error, match="invoice"):
        hand.type("UPDATE invoice SET status = 'FAILED'")


def test_a_machine_the_ledger_does_not_know_is_refused(ledger_url):
    make(ledger_url, INVOICE)
    with pytest.raises(LedgerMismatch, match=r"definition of .*feed.* run 'penstock db upgrade'"):
        Ledger.open(ledger_url, MACHINES)


def test_machines_that_this_program_does_not_know_are_left_alone(ledger_url):
    make(ledger_url, *MACHINES)
    with Ledger.open(ledger_url, [INVOICE]) as ledger, pytest.raises(UsageError, match=r"batch_item|BatchItem"):
        ledger.birth([batch_item()], actor=Actor.API, who="test")


def test_an_empty_database_is_no_ledger_yet(postgres_url):
    with pytest.raises(LedgerMismatch, match="not a Penstock ledger yet; run 'penstock db upgrade'"):
        Ledger.open(postgres_url, [INVOICE])


def test_a_missing_file_is_no_ledger_yet_and_is_not_made(tmp_path):
    with pytest.raises(LedgerMismatch, match="run 'penstock db upgrade'"):
        Ledger.open(f"sqlite:///{tmp_path / 'penstock.db'}", [INVOICE])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("create", [True, False])
def test_a_newer_schema_is_refused_untouched(ledger_url, create):
    make(ledger_url, INVOICE)
    with Hand(ledger_url) as hand:
        hand.type("UPDATE penstock_meta SET value = '99' WHERE name = 'schema_version'")
        before = schema(ledger_url)
        with pytest.raises(LedgerMismatch, match="has schema 99, this program knows 1; use a newer Penstock"):
            Ledger.open(ledger_url, MACHINES if create else [INVOICE], create=create)
        assert schema(ledger_url) == before


# Strangers.


@pytest.mark.parametrize("create", [True, False])
def test_a_file_of_another_program_is_refused_byte_for_byte(tmp_path, create):
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE invoice (id integer)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(LedgerMismatch, match="not a Penstock ledger"):
        Ledger.open(f"sqlite:///{path}", [INVOICE], create=create)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("create", [True, False])
def test_a_database_of_another_program_is_refused_untouched(postgres_url, create):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE other (id integer)")
        with pytest.raises(LedgerMismatch, match="not a Penstock ledger"):
            Ledger.open(postgres_url, [INVOICE], create=create)
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    assert tables == [("other",)]


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    "content", [b"this is not a database, but a letter\n" * 100, b"SQLite format 3\0" + b"\xff" * 4080]
)
def test_a_file_that_is_no_database_is_broken_and_stays_as_it_is(tmp_path, content, create):
    path = tmp_path / "letter.db"
    path.write_bytes(content)
    with pytest.raises(LedgerBroken, match=r"letter\.db: .*; restore it from a backup; Penstock changes nothing in it"):
        Ledger.open(f"sqlite:///{path}", [INVOICE], create=create)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


# Addresses.


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "write sqlite:///path/to/penstock.db or postgresql://user@host/name"),
        ("penstock.db", "'penstock.db' is not a ledger address"),
        ("sqlite://penstock.db", "is not a ledger address"),
        ("mysql://root:secret@host/db", "'host/db' is not a ledger address"),
        ("sqlite:///", "a ledger is a file"),
        ("sqlite:///:memory:", "a ledger is a file"),
        ("sqlite:////nowhere/at/all/penstock.db", "the folder /nowhere/at/all does not exist; create it"),
        ("postgresql://user:secret@host:port/name", "is not a PostgreSQL address; write postgresql://user@host/name"),
    ],
)
@pytest.mark.parametrize("create", [True, False])
def test_a_bad_address_is_refused_with_a_good_one(url, message, create):
    with pytest.raises(UsageError, match=message) as caught:
        Ledger.open(url, [INVOICE], create=create)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_away_is_unavailable_and_the_password_is_not_told():
    with pytest.raises(LedgerUnavailable) as caught:
        Ledger.open("postgresql://user:secret@127.0.0.1:1/name", [INVOICE])
    assert "postgresql://user:***@127.0.0.1:1/name" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_folder_is_no_ledger(tmp_path):
    with pytest.raises((LedgerError, UsageError), match=str(tmp_path)):
        Ledger.open(f"sqlite:///{tmp_path}", [INVOICE], create=True)


def test_a_relative_address_is_a_file_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make("sqlite:///here.db", INVOICE)
    assert Path("here.db").exists()


def test_an_old_scheme_name_is_understood(postgres_url):
    make(postgres_url.replace("postgresql://", "postgres://", 1), INVOICE)
    Ledger.open(postgres_url, [INVOICE]).close()


def test_a_refusal_of_the_database_keeps_its_words(ledger_url):
    with Ledger.open(ledger_url, [INVOICE], create=True) as ledger, pytest.raises(LedgerRefused, match="sent_has_id"):
        ledger.database.write(lambda c: c.run(typed_insert(INVOICE, invoice(status="SENT"))))


# The place and the version of SQLite.


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("3.37.2", False),
        ("3.40.1", False),
        ("3.44.6", False),
        ("3.50.7", False),
        ("3.51.0", False),
        ("3.51.2", False),
        ("3.51.3", True),
        ("3.53.4", True),
        ("4.0.0", True),
    ],
)
def test_versions_that_are_too_old_are_known(version, safe):
    assert safe_version(version) is safe


@pytest.mark.parametrize(
    ("number", "version"),
    [(90624, "9.6.24"), (100023, "10.23"), (130014, "13.14"), (139999, "13.9999"), (140000, None), (180004, None)],
)
def test_servers_that_are_too_old_are_known(number, version):
    assert too_old(number) == version


@pytest.mark.parametrize("create", [True, False])
def test_a_server_that_is_too_old_is_refused_in_one_line(postgres_url, monkeypatch, create):
    monkeypatch.setattr(connection, "OLDEST", 99)  # no such old server is here: this one is as good
    address = urlsplit(postgres_url)
    secret = urlunsplit(address._replace(netloc=address.netloc.replace("@", ":hush@")))
    with pytest.raises(LedgerMismatch) as caught:
        Ledger.open(secret, MACHINES, create=create)
    assert re.fullmatch(
        r"postgresql://\S+: PostgreSQL \d+\.\d+ cannot keep a ledger; use 99 or newer", str(caught.value)
    )
    assert "hush" not in str(caught.value)


MOUNTS = """\
overlay / overlay rw,relatime 0 0
proc /proc proc rw 0 0
/dev/sda1 /data ext4 rw 0 0
server:/export /data/shared nfs4 rw,vers=4.2 0 0
/dev/sdb1 /data/shared/fast xfs rw 0 0
//server/share /mnt/my\\040files cifs rw 0 0
user@host:/ /home/ssh fuse.sshfs rw 0 0
server:/vol /gluster fuse.glusterfs rw 0 0
host /host 9p rw 0 0
/dev/sdc1 /usb fuseblk rw 0 0
old:/export /covered nfs rw 0 0
/dev/sdd1 /covered ext4 rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/tmp/penstock.db", None),
        ("/data/penstock.db", None),
        ("/data/shared/penstock.db", "nfs4"),
        ("/data/shared/deep/er/penstock.db", "nfs4"),
        ("/data/shared/fast/penstock.db", None),
        ("/data/shared2/penstock.db", None),
        ("/mnt/my files/penstock.db", "cifs"),
        ("/home/ssh/penstock.db", "fuse.sshfs"),
        ("/gluster/penstock.db", "fuse.glusterfs"),
        ("/host/penstock.db", "9p"),
        ("/usb/penstock.db", None),
        ("/covered/penstock.db", None),
    ],
)
def test_a_network_filesystem_is_known_by_its_mount(path, kind):
    assert network_filesystem(Path(path), MOUNTS) == kind


def test_no_mounts_are_no_network():
    assert network_filesystem(Path("/x"), "") is None


# Time.


def test_a_virtual_clock_rules_both_databases(ledger_url):
    clock = VirtualClock(datetime(2030, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC))
    with Ledger.open(ledger_url, [INVOICE], clock=clock, create=True) as ledger:
        ledger.birth([invoice()], actor=Actor.API, who="test")
        clock.advance(90)
        moved = ledger.move(Ref("invoice", "acme/1"), "SENDING", actor=Actor.WORKER, who="test", reason="claim")
        assert moved.changed_at == clock.now() == datetime(2030, 2, 3, 4, 6, 36, 789_000, tzinfo=UTC)
        moments = [str(r[0]) for r in ledger.read(lambda c: c.rows("SELECT at FROM transition_log ORDER BY seq"))]
        assert [m[:23].replace("T", " ") for m in moments] == ["2030-02-03 04:05:06.789", "2030-02-03 04:06:36.789"]
        ((installed,),) = ledger.read(lambda c: c.rows("SELECT installed_at FROM machine_definition"))
        assert str(installed)[:10] == "2030-02-03"


def test_a_virtual_clock_wakes_units_in_its_own_time(ledger_url):
    clock = VirtualClock(datetime(2030, 1, 1, tzinfo=UTC))
    with Ledger.open(ledger_url, [INVOICE], clock=clock, create=True) as ledger:
        ledger.birth([invoice(due_at=clock.now() + timedelta(days=1))], actor=Actor.API, who="test")
        session = ledger.incarnation()
        session.register()
        assert session.claim({"invoice": 1}) == []
        ledger.nudge([Ref("invoice", "acme/1")])
        (unit,) = session.claim({"invoice": 1})
        assert unit.due_at == clock.now()


def test_the_system_clock_is_the_servers_on_postgres(postgres_url):
    with Ledger.open(postgres_url, [INVOICE], create=True) as ledger:
        assert "clock_timestamp" in ledger.database.now_sql
        assert ledger.database.bind_now() == {}


def test_what_is_named_without_the_declarations_is_as_declared():
    """Who only reads names tables and types, and loads no declaration."""
    assert {table.name for dialect in ("sqlite", "postgresql") for table in kernel_tables(dialect)} == KERNEL_TABLES
    assert statements.postgres_type(Instant()) == statements.INSTANT
