"""A ledger file stays readable, writable and guarded for the SQLite that a distribution ships."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from penstock.model.unit import Ref, unit_id_of
from tests.support.hand import Hand, typed_insert, typed_move
from tests.support.machines import INVOICE, MACHINES, SAMPLES, invoice

SHELL = shutil.which("sqlite3")

needs_shell = pytest.mark.skipif(SHELL is None, reason="there is no sqlite3 shell on this machine")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with one unit of every machine, made by Penstock and closed."""
    path = tmp_path / "penstock.db"
    with Ledger.open(f"sqlite:///{path}", MACHINES, create=True) as ledger:
        for make in SAMPLES.values():
            ledger.birth([make()], actor=Actor.API, who="test")
    return path


def shell(path: Path, typed: str) -> subprocess.CompletedProcess[str]:
    """Type into the distribution's own shell."""
    assert SHELL is not None
    return subprocess.run([SHELL, "-batch", str(path)], input=typed, capture_output=True, text=True, check=False)


def printed(path: Path, typed: str) -> list[str]:
    """What the shell prints; nothing may go wrong."""
    done = shell(path, typed)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@needs_shell
def test_the_shell_can_read_every_table(path):
    tables = printed(path, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    assert {m.table for m in MACHINES} | {"transition_log", "event_log", "prune_permit"} <= set(tables)
    for table in tables:
        assert int(printed(path, f"SELECT count(*) FROM {table}")[0]) >= 0


@needs_shell
def test_the_shell_finds_the_file_sound(path):
    assert printed(path, "PRAGMA integrity_check; PRAGMA foreign_key_check;") == ["ok"]


@needs_shell
def test_the_shell_can_dump_and_restore_the_ledger(path, tmp_path):
    copy = tmp_path / "copy.db"
    assert printed(copy, "\n".join(printed(path, ".dump"))) == []
    assert printed(copy, "SELECT count(*) FROM transition_log") == [str(len(SAMPLES))]
    assert "cannot go from QUEUED to SENT" in shell(copy, typed_move(INVOICE, "acme/1", "SENT")).stderr


@needs_shell
def test_the_shell_can_make_a_legal_move(path):
    assert printed(path, typed_move(INVOICE, "acme/1", "SENDING")) == []
    log = "SELECT from_status, to_status, actor FROM transition_log WHERE machine = 'invoice' ORDER BY seq"
    assert printed(path, log) == ["|QUEUED|api:test", "QUEUED|SENDING|sql"]


@needs_shell
@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (typed_move(INVOICE, "acme/1", "FAILED"), "penstock: invoice cannot go from QUEUED to FAILED"),
        (typed_move(INVOICE, "acme/1", "LOST"), "penstock: invoice has no such state"),
        ("UPDATE invoice SET number = '2'", "penstock: invoice: the key of a unit (tenant, number) cannot be changed"),
        ("DELETE FROM invoice", "penstock: invoice: a unit is never deleted"),
        (typed_insert(INVOICE, invoice(), "REPLACE"), "penstock: that unit is alive"),
        (typed_insert(INVOICE, invoice("2", status="FAILED")), "penstock: invoice cannot be born as FAILED"),
        ("UPDATE transition_log SET actor = 'nobody'", "penstock: transition_log is append-only"),
        ("DELETE FROM transition_log", "penstock: transition_log is append-only"),
        ("UPDATE invoice SET due_at = 'tomorrow'", "invoice_due_at_is_instant"),
    ],
)
def test_the_shell_is_refused_what_everybody_is_refused(path, sql, message):
    before = printed(path, ".dump")
    assert message in shell(path, sql).stderr
    assert printed(path, ".dump") == before


@needs_shell
def test_penstock_goes_on_with_what_the_shell_did(path):
    printed(path, typed_move(INVOICE, "acme/1", "SENDING"))
    with Ledger.open(f"sqlite:///{path}", MACHINES) as ledger:
        unit = ledger.get(Ref("invoice", "acme/1"))
        assert (unit.status, unit.changed_by) == ("SENDING", "sql")
        ledger.move(Ref("invoice", "acme/1"), "QUEUED", actor=Actor.WORKER, who="test", reason="retry")
    assert printed(path, "SELECT status FROM invoice") == ["QUEUED"]


@needs_shell
def test_the_shell_reads_while_penstock_holds_the_file_open(path):
    with Ledger.open(f"sqlite:///{path}", MACHINES) as ledger:
        ledger.move(Ref("partition", "sales/2026-11-15"), "success", actor=Actor.VALIDATOR, who="test", reason="fine")
        assert printed(path, "SELECT status FROM partitions") == ["success"]
        printed(path, "UPDATE partitions SET status = 'failed'")
        assert ledger.get(Ref("partition", "sales/2026-11-15")).status == "failed"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_the_interpreters_own_sqlite_is_guarded_and_logged(path, machine):
    unit = SAMPLES[machine.name]()
    with Hand(f"sqlite:///{path}", sqlite3) as hand:
        for target in machine.states:
            move = typed_move(machine, unit_id_of(unit), target)
            if target != unit.status and (unit.status, target) not in machine.pairs:
                assert f"penstock: {machine.name} cannot go from {unit.status} to {target}" in hand.refused(move)
        legal = next(t for s, t in machine.pairs if s == unit.status)
        hand.type(typed_move(machine, unit_id_of(unit), legal))
        assert hand.log(unit_id_of(unit))[-1] == (str(unit.status), legal, "sql", None)


def test_the_interpreters_own_sqlite_reads_what_penstock_wrote(path):
    with Hand(f"sqlite:///{path}", sqlite3) as hand:
        for machine in MACHINES:
            unit_id = unit_id_of(SAMPLES[machine.name]())
            assert hand.type(f"SELECT unit_id, changed_by FROM {machine.table}") == [(unit_id, "api:test")]
