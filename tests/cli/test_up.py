"""`penstock init` and `penstock up` in real processes: what the file says is done, and done anew on SIGHUP."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.app.app import App
from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.worker.schedule_unit import S, Schedule
from tests.support.fleet import ROOT, Member, until
from tests.support.secret_app import Order, Way, lifecycle

APP = "tests.support.secret_app:lifecycle"


class Home:
    """A folder with a configuration, and the processes that were started in it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.members: list[Member] = []
        self.ledger: Ledger | None = None

    def write(self, more: str = "", level: str = "info") -> None:
        (self.folder / "penstock.toml").write_text(
            f'lifecycles = ["{APP}"]\n[ledger]\nurl = "{self.url}"\n'
            f'[log]\nlevel = "{level}"\n[worker]\nconcurrency = 5\n'
            f'[orders]\ntoken = {{ file = "token" }}\n{more}'
        )

    def start(self, *arguments: str, before: str = "") -> Member:
        """Start a command; `before` is what its process does first."""
        command = [sys.executable, "-c", f"{before}\nfrom penstock.cli.main import main; main()", *arguments]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        log = self.folder / f"{len(self.members)}.log"
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        member = Member(command, clean | {"PYTHONPATH": path}, log, cwd=self.folder)
        self.members.append(member)
        return member

    def started(self, member: Member, times: int = 1) -> str:
        """The id of the worker, once it has started so often."""
        said = until(lambda: member.said("worker.started")[times - 1 : times] or not member.alive, "it starts")
        assert said is not True, member.text()
        return str(said[0]["worker"])

    def rows(self, sql: str, **parameters: Any) -> list[Any]:
        self.ledger = self.ledger or Ledger.open(self.url, App(lifecycle).machines)
        return [tuple(row) for row in self.ledger.read(lambda c: c.rows(sql, **parameters))]

    def schedule(self, name: str) -> Schedule:
        self.rows("SELECT 1")
        assert self.ledger is not None
        found = self.ledger.get(Ref("schedule", name))
        assert isinstance(found, Schedule)
        return found

    def close(self) -> None:
        for member in self.members:
            if member.alive:
                member.kill()
        if self.ledger is not None:
            self.ledger.close()


@pytest.fixture
def home(ledger_url: str, tmp_path: Path) -> Iterator[Home]:
    made = Home(ledger_url, tmp_path)
    (tmp_path / "token").write_text("a-token-for-nobody")
    yield made
    made.close()


def every_second(name: str, what: str = "apples") -> str:
    return f'[schedules.{name}]\njob = "count"\nevery = "1s"\nsettings = {{ what = "{what}" }}\n'


def test_up_makes_the_ledger_and_runs_the_schedules_of_the_file(home):
    home.write(every_second("tally"))
    first, second = home.start("up"), home.start("up")
    home.started(first)
    home.started(second)
    ticks = functools.partial(
        home.rows, "SELECT count(*) FROM transition_log WHERE machine = 'schedule' AND reason = 'counted apples'"
    )
    until(lambda: home.schedule("tally").last_tick_at is not None, "a tick")
    assert home.schedule("tally").change_reason == "counted apples"
    assert ticks() == [(0,)], "a tick that changes no state is not history"
    for member in home.members:
        member.signal(signal.SIGTERM)
        assert member.wait() == 0, member.text()
    # Its own, the two that watch, and that of the flow.
    assert sum(said["born"] for m in home.members for said in m.said("schedules.kept")) == 4


def test_a_worker_runs_schedules_and_keeps_none(home):
    home.write(every_second("tally"))
    keeper = home.start("up")
    home.started(keeper)
    keeper.signal(signal.SIGTERM)
    assert keeper.wait() == 0
    home.write()
    worker = home.start("worker")
    home.started(worker)
    last = home.schedule("tally").last_tick_at
    until(lambda: home.schedule("tally").last_tick_at != last, "the worker ticks")
    assert home.schedule("tally").status is S.ACTIVE, "only up retires what the file no longer wants"
    assert worker.said("schedules.kept") == []


def test_sighup_puts_another_configuration_into_force_under_a_fresh_worker(home):
    home.write(every_second("tally"))
    member = home.start("up")
    first = home.started(member)
    home.write(every_second("other", "pears"), level="debug")
    member.signal(signal.SIGHUP)
    second = home.started(member, 2)
    assert second != first
    versions = dict(home.rows("SELECT id, config_version FROM worker"))
    assert [said["version"] for said in member.said("config.loaded")] == [versions[first], versions[second]]
    assert versions[first] != versions[second]
    assert home.schedule("tally").status is S.RETIRED
    until(lambda: home.schedule("other").change_reason == "counted pears", "the new schedule ticks")
    ((actor,),) = home.rows(
        "SELECT actor FROM transition_log WHERE machine = 'schedule' AND unit_id = 'tally' AND to_status = 'retired'"
    )
    assert actor == f"scheduler:config-{versions[second]}"
    assert member.alive


EARLY = """
import os, signal
from penstock.app import running
load = running.load

def then_hung_up(*given, **named):
    running.load = load
    found = load(*given, **named)
    os.replace("later.toml", "penstock.toml")
    os.kill(os.getpid(), signal.SIGHUP)
    return found

running.load = then_hung_up
"""


def test_sighup_before_the_process_works_is_heeded_when_it_does(home):
    home.write(every_second("other", "pears"))
    (home.folder / "penstock.toml").rename(home.folder / "later.toml")
    home.write(every_second("tally"))
    member = home.start("up", before=EARLY)
    home.started(member)
    assert home.schedule("other").status is S.ACTIVE
    assert home.rows("SELECT unit_id FROM schedule WHERE unit_id = 'tally'") == []
    member.signal(signal.SIGTERM)
    assert member.wait() == 0


def test_limits_of_the_file_reach_the_gates(home):
    home.write()
    member = home.start("up")
    home.started(member)
    home.rows("SELECT 1")
    assert home.ledger is not None
    home.ledger.birth([Order(way=Way.ACCEPTED, gate_id="orders/acme")], actor=Actor.API, who="test")
    home.write('[gates.orders]\nlimits = [{ name = "requests", rate = 2, burst = 40 }]\nmax_in_flight = 3\n')
    member.signal(signal.SIGHUP)
    home.started(member, 2)
    gates = "SELECT gate_id, max_in_flight FROM gate WHERE gate_id LIKE 'orders/%'"
    until(lambda: home.rows(gates) == [("orders/acme", 3)], "the gate has the file's limits")
    assert home.rows("SELECT gate_id, name, rate, burst FROM gate_limit") == [("orders/acme", "requests", 2.0, 40.0)]


def elsewhere(home: Home) -> None:
    path = home.folder / "penstock.toml"
    path.write_text(path.read_text().replace("penstock.db", "other.db"))


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (lambda home: home.write("[worker]\n"), "is not TOML"),
        (lambda home: home.write(every_second("tally").replace("count", "cuont")), 'job = "cuont" must be one of'),
        (lambda home: home.write(level="loud"), 'log.level = "loud" must be'),
        (lambda home: (home.folder / "penstock.toml").unlink(), "there is no penstock.toml"),
        (lambda home: (home.folder / "token").unlink(), "orders.token"),
        (elsewhere, "ledger changed; restart to apply it"),
    ],
    ids=["no TOML", "no job", "no level", "no file", "no secret", "another ledger"],
)
def test_what_is_refused_on_sighup_changes_nothing(tmp_path, breaks, says):
    # Nothing here depends on the database: one engine is enough.
    home = Home(f"sqlite:///{tmp_path / 'penstock.db'}", tmp_path)
    try:
        (tmp_path / "token").write_text("a-token-for-nobody")
        home.write(every_second("tally"))
        member = home.start("up")
        home.started(member)
        breaks(home)
        member.signal(signal.SIGHUP)
        (refused,) = until(functools.partial(member.said, "config.refused"), "it is refused")
        assert says in refused["error"]
        last = home.schedule("tally").last_tick_at
        until(lambda: home.schedule("tally").last_tick_at != last, "it ticks on")
        assert len(member.said("worker.started")) == 1
        member.signal(signal.SIGTERM)
        assert member.wait() == 0, member.text()
    finally:
        home.close()


def test_init_then_up(tmp_path, penstock):
    """The two commands of the README, with nothing else there."""
    written = penstock("init", "reports", cwd=tmp_path)
    assert written.code == 0
    assert "next: penstock up" in written.out
    home = Home(f"sqlite:///{tmp_path / 'penstock.db'}", tmp_path)
    try:
        member = home.start("up")
        home.started(member)
        assert penstock("status", "--json", cwd=tmp_path).code == 0
        assert penstock("doctor", cwd=tmp_path).code == 0
        member.signal(signal.SIGINT)
        assert member.wait() == 0, member.text()
    finally:
        home.close()


@pytest.mark.parametrize("command", ["up", "worker"])
def test_without_a_lifecycle_nothing_is_made(command, tmp_path, penstock):
    written = penstock("init", cwd=tmp_path)
    assert "switch a lifecycle on" in written.out
    answer = penstock(command, cwd=tmp_path)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("penstock: penstock.toml switches no lifecycle on; add one of [reports], [harvest]")
    assert [place.name for place in tmp_path.iterdir()] == ["penstock.toml"]


def test_what_is_not_switched_on_stays_out_of_the_ledger(tmp_path, penstock):
    assert penstock("db", "upgrade", cwd=tmp_path).code == 0
    found = {row["machine"] for row in json.loads(penstock("machines", "--json", cwd=tmp_path).out)["rows"]}
    assert found == {machine.name for machine in App().machines}


def test_a_file_in_the_present_folder_takes_no_module_s_place(tmp_path):
    """A folder that somebody else filled must not decide what Penstock runs."""
    for name in ("structlog", "tomllib", "alembic", "getpass"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken over')")
    (tmp_path / "mine.py").write_text(
        "from penstock.app.lifecycle import Lifecycle, NoSettings\n"
        "lifecycle = Lifecycle('mine', 'My own.', settings=NoSettings)\n"
    )
    (tmp_path / "penstock.toml").write_text('lifecycles = ["mine:lifecycle"]\n')
    program = Path(sys.executable).with_name("penstock")
    done = subprocess.run([program, "db", "upgrade"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_init_never_overwrites_unless_it_is_forced(tmp_path, penstock):
    path = tmp_path / "new" / "penstock.toml"
    answer = penstock("init", APP, "--dir", "new", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert "penstock up --config new/penstock.toml" in answer.out
    content = path.read_text()
    assert f'\nlifecycles = ["{APP}"]\n' in content
    assert 'token = { env = "ORDERS_TOKEN" }' in content
    path.write_text("mine")
    again = penstock("init", "--dir", "new", cwd=tmp_path)
    assert (again.code, again.err) == (
        2,
        "penstock: new/penstock.toml exists already and was left as it is; --force replaces it\n",
    )
    assert path.read_text() == "mine"
    assert penstock("init", "--dir", "new", "--force", cwd=tmp_path).code == 0
    assert path.read_text() != "mine"


def test_init_into_what_is_no_folder(tmp_path, penstock):
    (tmp_path / "file").write_text("mine")
    answer = penstock("init", "--dir", "file", cwd=tmp_path)
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert "--dir" in answer.err
