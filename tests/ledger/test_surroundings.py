"""What a ledger stands on: found before it fails, told once a day, and by `doctor`."""

from __future__ import annotations

import shutil
from typing import NamedTuple

import psycopg
import pytest

from penstock.ledger.care.doctor import CHECKS, examine
from penstock.ledger.store.postgres import surroundings as server
from penstock.ledger.store.sqlite import surroundings as disk
from penstock.model.limits import GateLimits, Limit
from tests.support.machines import invoice
from tests.support.world import ALL_MACHINES, World

KNOWN = {m.name: m for m in ALL_MACHINES}


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def findings(world):
    return [(f.check, f.severity) for f in world.ledger.read(lambda c: list(world.ledger.database.surroundings(c)))]


def test_a_sound_place_has_no_findings(world):
    assert [f for f in findings(world) if f[0] != "disk"] == []


@pytest.mark.parametrize(
    ("free", "severity"), [(0.5, None), (0.08, "warning"), (0.01, "error")], ids=["roomy", "filling", "nearly full"]
)
def test_a_disk_that_fills_up_is_told_before_it_is_full(world, monkeypatch, free, severity):
    if not world.sqlite:
        pytest.skip("the disk of a PostgreSQL server cannot be seen from here")
    total = 1_000 * 1024**3
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total, 0, int(total * free)))
    assert findings(world) == ([("disk", severity)] if severity else [])
    worker = world.worker("invoice")
    worker.watch()
    worker.watch()
    told = world.rows("SELECT severity FROM event_log WHERE event_type = 'ledger.disk'")
    assert told == ([({"warning": "warning", "error": "critical"}[severity],)] if severity else []), "once a day"


def test_a_log_that_grows_beside_the_file_is_told(world, monkeypatch):
    if not world.sqlite:
        pytest.skip("PostgreSQL has no log beside a file")
    monkeypatch.setattr(disk, "_WAL_WARNING", 1)
    world.born(invoice())
    assert ("disk", "warning") in findings(world)


def test_an_old_snapshot_is_told_with_who_holds_it(postgres_url, monkeypatch):
    world = World(postgres_url)
    monkeypatch.setattr(server, "_SNAPSHOT_SECONDS", 0)
    with psycopg.connect(postgres_url, application_name="a long report") as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM invoice")
        found = world.ledger.read(lambda c: list(world.ledger.database.surroundings(c)))
    world.close()
    assert [f.check for f in found] == ["snapshots"]
    assert "a long report" in found[0].message


def test_the_doctor_tells_of_stopped_and_broken_gates_and_of_lost_leases(world):
    world.born(invoice(gate_id="shop/acme"), invoice("2", gate_id="api/x"))
    world.ledger.gates.stop("shop/acme", "the key was revoked", None)
    world.sql("UPDATE gate SET throttles = 6 WHERE gate_id = 'api/x'")
    gone = world.worker("invoice")
    world.time.advance(300)
    found = {(f.check, f.subject, f.severity) for f in examine(world.ledger.database, KNOWN)}
    assert {("gates", "shop/acme", "warning"), ("gates", "api/x", "warning")} <= found
    assert ("leases", gone.identity.id, "warning") in found
    world.worker("invoice")
    again = {(f.check, f.subject, f.severity) for f in examine(world.ledger.database, KNOWN)}
    assert ("leases", gone.identity.id, "error") in again, "somebody is there, and has not taken over"


def test_limits_that_nobody_asks_for_are_an_error(world):
    world.ledger.gates.providers = [GateLimits("shop", (Limit("requests", 2.0, 40),))]
    world.born(invoice(gate_id="shop/acme"))
    assert not [f for f in examine(world.ledger.database, KNOWN) if f.check == "gates"]
    world.sql("UPDATE gate SET metered = false WHERE gate_id = 'shop/acme'")
    found = [f for f in examine(world.ledger.database, KNOWN) if f.check == "gates"]
    assert [(f.subject, f.severity) for f in found] == [("shop/acme", "error")]


def test_every_check_has_a_name_of_its_own():
    assert {"leases", "gates", "permits", "place", "triggers", "claims"} <= set(CHECKS)
