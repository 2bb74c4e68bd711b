"""Every command, given what it cannot work with: one line that says so, exit code 2, and nothing written."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pysqlite3 import dbapi2 as sqlite

from penstock.app.app import App
from penstock.app.shipped import SHIPPED
from penstock.examples import invoices
from penstock.ledger.ledger import Ledger
from tests.support.commands import commands
from tests.support.databases import temporary_database

OWN = 'lifecycles = ["penstock.examples.invoices:lifecycle"]\n'
# What a command must be given besides; a new command with arguments is added here.
ARGUMENTS: dict[str, list[str]] = {
    "penstock alerts ack": ["dead_letters/invoice"],
    "penstock alerts resolve": ["dead_letters/invoice"],
    "penstock alerts show": ["dead_letters/invoice"],
    "penstock alerts silence": ["dead_letters/invoice"],
    "penstock alerts unsilence": ["dead_letters/invoice"],
    "penstock bulk cancel": ["0123456789abcdef0123"],
    "penstock bulk show": ["0123456789abcdef0123"],
    "penstock find": ["acme"],
    "penstock db backup": ["copy"],
    "penstock db doubt": ["--dry-run"],
    "penstock db prune": ["--dry-run"],
    "penstock dead dismiss": ["01234567"],
    "penstock dead retry": ["01234567"],
    "penstock dead show": ["01234567"],
    "penstock demo": ["--once"],
    "penstock gates history": ["accounting/acme"],
    "penstock gates pause": ["accounting/acme"],
    "penstock gates resume": ["accounting/acme"],
    "penstock schedules pause": ["nightly"],
    "penstock schedules resume": ["nightly"],
    "penstock schedules run": ["nightly"],
    "penstock token create": ["ci", "--role", "viewer"],
    "penstock token revoke": ["ci"],
    "penstock units create": ["invoice", "--set", "tenant=acme", "--set", "number=17", "--set", "amount_minor=1"],
    "penstock units move": ["invoice:acme/17", "--to", "QUEUED"],
    "penstock units park": ["invoice:acme/17"],
    "penstock units unpark": ["invoice:acme/17"],
    "penstock units wake": ["invoice:acme/17"],
    "penstock up": ["--address", "127.0.0.1:0"],
    "penstock web": ["--address", "127.0.0.1:0"],
}
UNIT = {name: ["invoice:acme/17"] for name in ("history", "why", "units show", "units history", "units why")}
# These wait for a server that is away, because it may come back.
PATIENT = {"penstock worker", "penstock up", "penstock web"}
# This one is there to say how far the schema is from this program's: that is its finding, not its error.
REPORTS = {"penstock db check"}
# The care of a ledger needs no lifecycle.
UNREAD = {f"penstock db {name}" for name in ("backup", "doubt", "prune", "shell")}
# These answer without a ledger.
BY_ITSELF = {"penstock machines", "penstock alerts policies"}
# A lifecycle's own commands have bad input of their own, tested beside them.
COMMANDS = {name: found for name, found in commands().items() if name.split()[1] not in SHIPPED}


@dataclass
class Case:
    """What a command is given, what it must say, and where it could have left something."""

    options: list[str] = field(default_factory=list)
    says: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    mounts: str = ""


Kind = Callable[[Path, pytest.FixtureRequest], Any]
KINDS: dict[str, tuple[str, Kind]] = {}


def kind(needs: str) -> Callable[[Kind], Kind]:
    def register(make: Kind) -> Kind:
        KINDS[make.__name__] = (needs, make)
        return make

    return register


def written(folder: Path, content: str) -> list[str]:
    (folder / "penstock.toml").write_text(content)
    return ["--config", "penstock.toml"]


@kind("--config")
def no_configuration(folder: Path, request: pytest.FixtureRequest) -> Case:
    return Case(["--config", "nowhere.toml"], ["nowhere.toml does not exist; 'penstock init'"])


@kind("--config")
def a_configuration_that_is_no_toml(folder: Path, request: pytest.FixtureRequest) -> Case:
    return Case(written(folder, "[ledger\n"), ["penstock.toml is not TOML"])


@kind("--config")
def a_configuration_with_three_errors(folder: Path, request: pytest.FixtureRequest) -> Case:
    content = '[ledger]\nurll = "x"\n[worker]\nconcurrency = 0\n[log]\nlevel = "loud"\n'
    says = [
        "penstock.toml: ledger.urll is not a setting; did you mean ledger.url?",
        'penstock.toml: log.level = "loud" must be one of debug, info, warning, error',
        "penstock.toml: worker.concurrency = 0 must be a whole number from 1 to 100,000",
    ]
    return Case(written(folder, content), says)


@kind("--config")
def a_lifecycle_that_is_not_there(folder: Path, request: pytest.FixtureRequest) -> Case:
    return Case(written(folder, 'lifecycles = ["nowhere:lifecycle"]\n'), ["'nowhere' cannot be imported"])


@kind("--config")
def a_lifecycle_without_its_attribute(folder: Path, request: pytest.FixtureRequest) -> Case:
    return Case(written(folder, 'lifecycles = ["json:lifecycle"]\n'), ["module 'json' has no attribute 'lifecycle'"])


@kind("--config")
def a_lifecycle_that_is_none(folder: Path, request: pytest.FixtureRequest) -> Case:
    return Case(written(folder, 'lifecycles = ["json:dumps"]\n'), ["json:dumps is a function, not a penstock"])


@kind("--config")
def a_lifecycle_that_breaks(folder: Path, request: pytest.FixtureRequest) -> Case:
    (folder / "broken_program.py").write_text("1 / 0\n")
    return Case(written(folder, 'lifecycles = ["broken_program:x"]\n'), ["cannot be imported: ZeroDivisionError"])


@kind("--config")
def a_section_of_no_lifecycle(folder: Path, request: pytest.FixtureRequest) -> Case:
    says = "[reprots] is not a section or a lifecycle; did you mean [reports]?"
    return Case(written(folder, "[reprots]\n"), [says])


@kind("--ledger")
def an_address_of_no_ledger(folder: Path, request: pytest.FixtureRequest) -> Case:
    return Case(["--ledger", "mysql://root:hush-hush@h/x"], ["h/x", "sqlite:///"])


@kind("--ledger")
def an_address_with_a_password_in_its_query(folder: Path, request: pytest.FixtureRequest) -> Case:
    address = "postgresql://me@h/x?sslmode=require&ssl%70assword=hush-hush"
    return Case(["--ledger", address], ["sslpassword"])


@kind("--ledger")
def an_address_with_a_secret_where_no_query_seems_to_be(folder: Path, request: pytest.FixtureRequest) -> Case:
    address = "postgresql://me@h/x#?oauth_client_secret=hush-hush"
    return Case(["--ledger", address], ["oauth_client_secret"])


@kind("--ledger")
def a_server_that_is_down(folder: Path, request: pytest.FixtureRequest) -> Case:
    return Case(
        ["--ledger", "postgresql://nobody@127.0.0.1:1/x"], ["postgresql://nobody@127.0.0.1:1/x", "is it running"]
    )


@kind("--ledger")
def a_server_without_that_database(folder: Path, request: pytest.FixtureRequest) -> Case:
    server = str(request.getfixturevalue("postgres_server")).rpartition("/")[0]
    return Case(["--ledger", f"{server}/nowhere"], ['database "nowhere" does not exist'])


@kind("--ledger")
def a_folder_that_is_not_there(folder: Path, request: pytest.FixtureRequest) -> Case:
    return Case(["--ledger", "sqlite:///nowhere/penstock.db"], ["nowhere", "does not exist"])


@kind("--ledger")
def a_file_that_is_no_database(folder: Path, request: pytest.FixtureRequest) -> Case:
    (folder / "letter.db").write_text("Dear Sir or Madam, " * 400)
    return Case(["--ledger", "sqlite:///letter.db"], ["letter.db", "not a database"])


@kind("--ledger")
def a_database_of_somebody_else_on_sqlite(folder: Path, request: pytest.FixtureRequest) -> Case:
    with sqlite.connect(str(folder / "others.db")) as connection:
        connection.execute("CREATE TABLE customer (name TEXT)")
        connection.execute("INSERT INTO customer VALUES ('acme')")
    connection.close()
    return Case(["--ledger", "sqlite:///others.db"], ["others.db", "is not a Penstock ledger"])


@kind("--ledger")
def a_database_of_somebody_else_on_postgres(folder: Path, request: pytest.FixtureRequest) -> Case:
    url = str(request.getfixturevalue("foreign_database"))
    return Case(["--ledger", url], ["is not a Penstock ledger"], [url])


@kind("--ledger")
def a_schema_from_the_future_on_sqlite(folder: Path, request: pytest.FixtureRequest) -> Case:
    shutil.copy(request.getfixturevalue("future_file"), folder / "future.db")
    return Case(["--ledger", "sqlite:///future.db"], ["newer"])


@kind("--ledger")
def a_schema_from_the_future_on_postgres(folder: Path, request: pytest.FixtureRequest) -> Case:
    url = str(request.getfixturevalue("future_database"))
    return Case(["--ledger", url], ["newer"], [url])


@kind("--ledger")
def a_network_filesystem(folder: Path, request: pytest.FixtureRequest) -> Case:
    (folder / "mounts").write_text(f"server:/export {folder.resolve()} nfs4 rw 0 0\n")
    (folder / "penstock.db").touch()
    says = ["is on a network filesystem (nfs4)", "use PostgreSQL"]
    return Case(["--ledger", "sqlite:///penstock.db"], says, mounts=str(folder / "mounts"))


@kind("unit")
def a_reference_that_is_none(folder: Path, request: pytest.FixtureRequest) -> Case:
    return Case(["acme-17"], ["'acme-17' is not a unit reference; write machine:key"])


@kind("unit")
def a_unit_of_no_machine(folder: Path, request: pytest.FixtureRequest) -> Case:
    shutil.copy(request.getfixturevalue("fresh_file"), folder / "fresh.db")
    return Case(["order:acme/17", "--ledger", "sqlite:///fresh.db"], ["no machine is called 'order'"])


@kind("unit")
def a_unit_that_is_not_there(folder: Path, request: pytest.FixtureRequest) -> Case:
    shutil.copy(request.getfixturevalue("fresh_file"), folder / "fresh.db")
    return Case(["invoice:acme/17", "--ledger", "sqlite:///fresh.db"], ["no unit invoice:acme/17"])


@pytest.fixture(scope="session")
def fresh_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fresh") / "penstock.db"
    Ledger.open(f"sqlite:///{path}", App(invoices.lifecycle).machines, create=True).close()
    return path


@pytest.fixture(scope="session")
def future_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("future") / "penstock.db"
    with Ledger.open(f"sqlite:///{path}", App(invoices.lifecycle).machines, create=True) as ledger:
        age(ledger)
    return path


def age(ledger: Ledger) -> None:
    ledger.database.write(lambda c: c.run("UPDATE penstock_meta SET value = '99' WHERE name = 'schema_version'"))


@pytest.fixture(scope="session")
def foreign_database(postgres_server: str) -> Iterator[str]:
    with temporary_database(postgres_server) as url:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE customer AS SELECT 'acme' AS name")
        yield url


@pytest.fixture(scope="session")
def future_database(postgres_server: str) -> Iterator[str]:
    with temporary_database(postgres_server) as url:
        with Ledger.open(url, App(invoices.lifecycle).machines, create=True) as ledger:
            age(ledger)
        yield url


def cases() -> Iterator[Any]:
    """Every command with every kind; in the ordinary run each meets every eighth kind, and every kind some command."""
    met: set[str] = set()
    for turn, (name, command) in enumerate(COMMANDS.items()):
        options = {o for p in command.params for o in p.opts}
        arguments = {p.name for p in command.params if p.param_type_name == "argument"}
        for place, (which, (needs, _)) in enumerate(KINDS.items()):
            waits = which == "a_server_that_is_down" and name in PATIENT
            reports = which.startswith("a_schema_from_the_future") and name in REPORTS
            unread = needs == "--config" and which.startswith(("a_lifecycle", "a_section")) and name in UNREAD
            alone = needs == "--ledger" and name in BY_ITSELF
            if needs in options | arguments and not (waits or reports or unread or alone):
                later = [pytest.mark.nightly] if (turn + place) % 8 and which in met else []
                met.add(which)
                yield pytest.param(name, which, id=f"{name.removeprefix('penstock ')}-{which}", marks=later)


@contextmanager
def unchanged(folder: Path, urls: list[str]) -> Iterator[None]:
    before = files(folder), [rows(url) for url in urls]
    yield
    assert (files(folder), [rows(url) for url in urls]) == before, "something was written"


def files(folder: Path) -> dict[str, str]:
    # An empty sidecar of SQLite's own is no content: a reader of a WAL database cannot do without. Nor is bytecode.
    own = ("-shm", "-wal", ".pyc")
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(own))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def rows(url: str) -> dict[str, list[str]]:
    with psycopg.connect(url) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1").fetchall()
        return {
            name: sorted(
                json.dumps(r[0], default=str) for r in connection.execute(f"SELECT to_jsonb(t) FROM {name} AS t")
            )
            for (name,) in names
        }


@pytest.mark.parametrize(("name", "which"), list(cases()))
def test_bad_input_is_one_line_and_exit_code_2(name, which, penstock, tmp_path, request):
    case: Case = KINDS[which][1](tmp_path, request)
    own = [] if KINDS[which][0] == "unit" else ARGUMENTS.get(name, UNIT.get(name.removeprefix("penstock "), []))
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    act = ["--reason", "stock-taking", "--yes"] if "--digest" in options else []
    given = [*name.split()[1:], *own, *act, *case.options]
    if not (tmp_path / "penstock.toml").exists():
        written(tmp_path, OWN)
    with unchanged(tmp_path, case.urls):
        answer = penstock(*given, cwd=tmp_path, mounts=case.mounts)
    if answer.code == 77:
        pytest.skip(answer.err.strip())
    assert answer.code == 2, answer
    lines = answer.err.splitlines()
    assert all(line.startswith("penstock: ") for line in lines), answer.err
    assert len(lines) == (3 if which == "a_configuration_with_three_errors" else 1), answer.err
    assert [text for text in case.says if text not in answer.err] == [], answer.err
    assert "hush-hush" not in answer.err
    assert answer.out == ""


def test_every_kind_meets_some_command():
    met = {case.values[1] for case in cases() if not case.marks}
    assert met == set(KINDS)


def test_up_wants_a_configuration(penstock, tmp_path):
    answer = penstock("up", cwd=tmp_path)
    assert (answer.code, answer.err) == (
        2,
        "penstock: there is no penstock.toml here; 'penstock init' writes one, --config names another\n",
    )
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("PENSTOCK_LOG", "loud", 'PENSTOCK_LOG = "loud" must be one of debug, info, warning, error'),
        ("PENSTOCK_CONCURRENCY", "0", 'PENSTOCK_CONCURRENCY = "0" must be a whole number from 1 to 100,000'),
        ("PENSTOCK_LEDGER", "x", 'PENSTOCK_LEDGER = "x" must be sqlite:///FILE or postgresql://'),
        ("PENSTOCK_CONFIG", "gone.toml", "gone.toml does not exist"),
    ],
)
def test_what_the_environment_says_is_judged_too(penstock, tmp_path, variable, value, says):
    answer = penstock("worker", cwd=tmp_path, env={variable: value})
    assert answer.code == 2
    assert says in answer.err
    assert len(answer.err.splitlines()) == 1
    assert files(tmp_path) == {}


@pytest.mark.parametrize("wrong", [["--concurrency", "0"], ["--log-level", "loud"]])
def test_an_option_that_is_not_allowed_is_named(penstock, tmp_path, wrong):
    answer = penstock("worker", *wrong, cwd=tmp_path)
    assert answer.code == 2
    assert f"{wrong[0]} = " in answer.err


@pytest.mark.parametrize(
    "given", [["nonsense"], ["status", "--nonsense"], ["history"], ["worker", "--concurrency", "x"]]
)
def test_what_cannot_be_understood_has_the_same_code(penstock, tmp_path, given):
    assert penstock(*given, cwd=tmp_path).code == 2
