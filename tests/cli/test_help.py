"""Help is quick because it loads nothing that it does not need; every reading command speaks JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.ledger.ledger import Ledger
from penstock.runtime.app import load_app
from tests.test_docs import commands

HEAVY = (
    *(
        "rich",
        "sqlalchemy",
        "alembic",
        "psycopg",
        "pysqlite3",
        "httpx2",
        "starlette",
        "uvicorn",
        "structlog",
        "msgspec",
        "asyncio",
    ),
    *(
        "penstock.machine",
        "penstock.ledger",
        "penstock.runtime",
        "penstock.config",
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
    Ledger.open(url, load_app("penstock.examples.invoices:app").machines, create=True).close()
    for command in (["status"], ["doctor"], ["machines"]):
        answer = penstock(*command, "--json", cwd=tmp_path)
        assert (answer.code, answer.err) == (0, "")
        assert json.loads(answer.out)


def test_the_file_the_environment_and_the_option_name_the_ledger_in_this_order(penstock, tmp_path):
    for name in ("file", "variable", "option", "penstock"):
        url = f"sqlite:///{tmp_path / name}.db"
        Ledger.open(url, load_app("penstock.examples.invoices:app").machines, create=True).close()
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
