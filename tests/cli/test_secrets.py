"""A secret never leaves the program, whatever goes wrong; and one id leads from a step to its log, events and calls."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psycopg
import pytest

from penstock.app.app import App
from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from tests.support.databases import temporary_database
from tests.support.echo import Echo, echo
from tests.support.fleet import ROOT, Member, until
from tests.support.secret_app import Order, S, Way, lifecycle

CANARY = 'canary-Zq7 "Wd3/9+fX\\n-never-seen'
PARTS = ("canary-Zq7", "Wd3/9", "never-seen", "Wd3%2F9", base64.b64encode(CANARY.encode()).decode()[8:24])
APP = "tests.support.secret_app:lifecycle"


@dataclass
class Ran:
    """One run of `penstock up` over one order of every way."""

    url: str
    folder: Path
    member: Member
    server: Echo
    ledger: Ledger

    def rows(self, sql: str) -> list[Any]:
        return [tuple(row) for row in self.ledger.read(lambda c: c.rows(sql))]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("secrets")
    if request.param == "sqlite":
        yield from run(f"sqlite:///{folder / 'penstock.db'}", folder)
        return
    with temporary_database(str(request.getfixturevalue("postgres_server"))) as url:
        yield from run(url, folder)


def run(url: str, folder: Path) -> Iterator[Ran]:
    app = App(lifecycle)
    with echo() as server, Ledger.open(url, app.machines, create=True, data_tables=app.data.tables) as ledger:
        (folder / "penstock.toml").write_text(
            f'lifecycles = ["{APP}"]\n[ledger]\nurl = "{url}"\n'
            f'[orders]\ntoken = {{ env = "ORDERS_TOKEN" }}\naddress = "{server.address}"\n'
            '[schedules.report]\njob = "report"\nevery = "1s"\n'
            '[log]\nlevel = "debug"\n'
        )
        now = ledger.clock.now()
        ledger.birth([Order(way=way, due_at=now, gate_id=f"orders/{way}") for way in Way], actor=Actor.API, who="test")
        member = started(folder, "up", ORDERS_TOKEN=CANARY)
        try:
            failing = {f"purchase:{way}" for way in set(Way) - {Way.ACCEPTED}}
            done = "SELECT count(*) FROM purchase WHERE status = 'done'"
            refused = "SELECT count(*) FROM schedule WHERE last_error IS NOT NULL"

            def over() -> bool:
                assert member.alive, member.text()
                failed = {said["unit"] for said in (*member.said("step.failed"), *member.said("step.broken"))}
                counts = [ledger.read(lambda c, sql=sql: c.rows(sql))[0][0] for sql in (done, refused)]  # type: ignore[misc]
                return failed >= failing and all(counts)

            until(over, "every order has gone its way, and the job has failed")
            member.signal(signal.SIGTERM)
            assert member.wait() == 0, member.text()
        finally:
            if member.alive:
                member.kill()
        yield Ran(url, folder, member, server, ledger)


def started(folder: Path, *arguments: str, **environment: str) -> Member:
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return Member(command, clean | environment | {"PYTHONPATH": path}, folder / f"{arguments[0]}.log", cwd=folder)


def dump(url: str) -> str:
    """Everything in the database, as text."""
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        return "".join(p.read_bytes().decode(errors="replace") for p in path.parent.glob(f"{path.name}*"))
    with psycopg.connect(url) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        found = [connection.execute(f"SELECT t::text FROM {name} AS t").fetchall() for (name,) in names]
    return "\n".join(str(row[0]) for rows in found for row in rows)


def test_the_server_was_told_the_secret_and_told_it_back(ran):
    told = {way: headers["X-Token"] for way, headers in ran.server.requests}
    assert set(told) == {w.value for w in Way} - {Way.BUG, Way.BROKEN}


@pytest.mark.parametrize("part", PARTS)
def test_no_part_of_it_is_in_the_ledger_or_the_log(ran, part):
    assert part not in dump(ran.url)
    assert part not in ran.member.text()


def test_what_stood_beside_it_is_kept(ran):
    stored = dump(ran.url)
    assert "could not sign with" in stored
    assert "[secret]" in stored
    assert "[secret]" in ran.member.text()
    (body,) = ran.rows("SELECT body FROM receipt")[0]
    assert json.loads(body)["headers"]["X-Token"] == "[secret]"


def test_events_and_alerts_were_written(ran):
    kinds = {row[0] for row in ran.rows("SELECT event_type FROM event_log")}
    assert {"order.sent", "unit.dead", "schedule.failed"} <= kinds


def test_one_id_leads_from_the_step_to_its_log_its_event_and_its_call(ran):
    sent = {way: unquote(headers["X-Correlation-Id"]) for way, headers in ran.server.requests}
    rejected = sent[Way.REJECTED]
    assert rejected.startswith("purchase:422@")
    assert [s["correlation"] for s in ran.member.said("step.failed") if s["unit"] == "purchase:422"] == [rejected]
    events = ran.rows("SELECT correlation_id FROM event_log WHERE unit_id = '422' AND event_type = 'unit.dead'")
    assert events == [(rejected,)]
    version = int(rejected.rpartition("@")[2])
    history = ran.rows("SELECT version FROM transition_log WHERE machine = 'purchase' AND unit_id = '422' ORDER BY seq")
    # The claim raised the version, and the commit that the id belongs to raised it once more.
    assert history[-1] == (version + 1,)


def test_every_failed_step_has_its_id(ran):
    assert all(said["correlation"].startswith(said["unit"] + "@") for said in ran.member.said("step.failed"))


def test_a_secret_that_is_not_there_stops_the_start(ran, penstock):
    answer = penstock("up", cwd=ran.folder)
    assert answer.code == 2
    assert answer.err == (
        "penstock: penstock.toml: orders.token: the environment variable ORDERS_TOKEN is not set,"
        " and a secret is expected in it\n"
    )


def test_reading_asks_for_no_secret(ran, penstock):
    assert penstock("status", cwd=ran.folder).code == 0
    assert ran.rows("SELECT status FROM purchase WHERE way = '201'") == [(S.DONE,)]
