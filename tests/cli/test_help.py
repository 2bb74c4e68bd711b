"""Help is quick because it loads nothing that it does not need; every reading command speaks JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.app.app import load_app
from penstock.examples.invoices import Invoice
from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from penstock.model.unit import unit_id_of
from tests.test_docs import commands

INVOICES = "penstock.examples.invoices:app"
HEAVY = (
    *(
        "rich",
        "sqlalchemy",
        "alembic",
        "psycopg",
        "pysqlite3",
        "aiohttp",
        "starlette",
        "uvicorn",
        "structlog",
        "msgspec",
        "asyncio",
    ),
    *(
        "penstock.model.machine",
        "penstock.ledger",
        "penstock.worker",
        "penstock.settings.config",
        "penstock.cli.run",
        "penstock.cli.show",
    ),
)
WRITING = {"init", "up", "worker", "demo"}


@pytest.mark.parametrize("given", [[], ["status"], ["up"], ["db", "upgrade"]])
def test_help_loads_nothing_heavy(given):
    code = (
        "import sys, penstock.cli.main as m\n"
        f"sys.argv = ['penstock', *{given!r}, '--help']\n"
        "try:\n m.main()\nexcept SystemExit as stopped:\n assert not stopped.code\n"
        f"sys.stderr.write(repr([n for n in {HEAVY!r} if n in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    assert done.stderr == "[]"


@pytest.mark.parametrize("name", [name for name in commands() if name.split()[1] not in {*WRITING, "db"}])
def test_every_command_outside_the_writing_ones_has_json(name):
    assert "--json" in {option for parameter in commands()[name].params for option in parameter.opts}


def test_json_is_exact_and_alone_on_standard_output(penstock, tmp_path):
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    Ledger.open(url, load_app(INVOICES).machines, create=True).close()
    for command in (["status"], ["doctor"], ["machines"]):
        answer = penstock(*command, "--json", cwd=tmp_path)
        assert (answer.code, answer.err) == (0, "")
        assert json.loads(answer.out)


def test_text_from_outside_is_shown_and_not_obeyed(penstock, tmp_path):
    """An error message of a provider stands in a reason; it must not steer the terminal of whoever reads it."""
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    evil = "\x1b]0;owned\x07 \x1b[2J\u202e\x9b31m\nforged row"
    with Ledger.open(url, load_app(INVOICES).machines, create=True) as ledger:
        unit = Invoice(tenant=f"t\x1b[1m{evil[:3]}", number="1", amount_minor=1)
        ledger.birth([unit], actor=Actor.API, who="test\x1b[7m", reason=evil)
        ref = f"invoice:{unit_id_of(unit)}"
    for command in (["history", ref], ["why", ref, "--app", INVOICES], ["status"], ["events", "list"], ["doctor"]):
        answer = penstock(*command, cwd=tmp_path)
        assert answer.code == 0, answer
        assert not set(answer.out + answer.err) & set("\x1b\x07\x9b\u202e"), command
    assert "\\x1b]0;owned\\x07" in penstock("history", ref, cwd=tmp_path).out
    found = json.loads(penstock("history", ref, "--json", cwd=tmp_path).out)
    assert found[0]["reason"] == evil
    unknown = penstock("history", "invoice:\x1b[2Jx", cwd=tmp_path)
    assert (unknown.code, "\x1b" in unknown.err) == (2, False)


def test_the_file_the_environment_and_the_option_name_the_ledger_in_this_order(penstock, tmp_path):
    for name in ("file", "variable", "option", "penstock"):
        url = f"sqlite:///{tmp_path / name}.db"
        Ledger.open(url, load_app(INVOICES).machines, create=True).close()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "penstock.toml").write_text('[ledger]\nurl = "sqlite:///../file.db"\n')
    variable = {"PENSTOCK_LEDGER": "sqlite:///variable.db"}
    named = ["--config", "conf/penstock.toml"]

    def opened(*given: str, env: dict[str, str] | None = None) -> str:
        answer = penstock("status", "--json", *given, cwd=tmp_path, env=env)
        assert answer.code == 0, answer.err
        return str(json.loads(answer.out)["url"]).rpartition("/")[2]

    assert opened() == "penstock.db"
    assert opened(*named) == "file.db"
    assert opened(env={"PENSTOCK_CONFIG": "conf/penstock.toml"}) == "file.db"
    assert opened(*named, env=variable) == "variable.db"
    assert opened(*named, "--ledger", "sqlite:///option.db", env=variable) == "option.db"
