"""`penstock db`, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.examples.invoices import machine as invoices
from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from tests.support.console import Console
from tests.support.hand import Hand
from tests.support.postgres import VERSION, _package

PROGRAMS = {"PATH": f"{_package() / f'pginstall{VERSION}' / 'bin'}:{os.environ['PATH']}"}


def upgraded(penstock: Console, url: str, folder: Path) -> None:
    (folder / "penstock.toml").write_text('lifecycles = ["penstock.examples.invoices:lifecycle"]\n')
    answer = penstock("db", "upgrade", "--ledger", url, cwd=folder)
    assert answer.code == 0, answer.err
    assert "is ready: " in answer.out
    assert "invoice" in answer.out


@pytest.fixture
def ledger(penstock, ledger_url, tmp_path):
    upgraded(penstock, ledger_url, tmp_path)
    return ledger_url


def sent(url: str, *numbers: str) -> None:
    from penstock.examples.invoices import Invoice

    with Ledger.open(url, [invoices]) as ledger:
        for number in numbers:
            ledger.birth([Invoice(tenant="acme", number=number, amount_minor=1)], actor=Actor.API, who="test")
            for status, changes in (("SENDING", {}), ("SENT", {"remote_id": "r"})):
                ref = Ref("invoice", f"acme/{number}")
                ledger.move(ref, status, actor=Actor.WORKER, who="test", reason="on", **changes)


def shell(url: str, text: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "db", "shell", "--ledger", url]
    environment = os.environ | PROGRAMS
    return subprocess.run(
        command, input=text, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


# doubt


def test_units_are_put_in_doubt_and_a_restored_ledger_asks_for_it(penstock, tmp_path):
    from penstock.examples.invoices import Invoice

    url = f"sqlite:///{tmp_path}/penstock.db"
    (tmp_path / "penstock.toml").write_text(
        f'lifecycles = ["penstock.examples.invoices:lifecycle"]\n[ledger]\nurl = "{url}"\n'
    )
    assert penstock("db", "upgrade", cwd=tmp_path).code == 0
    with Ledger.open(url, [invoices]) as ledger:
        ledger.birth([Invoice(tenant="acme", number="1", amount_minor=1)], actor=Actor.API, who="test")
    assert penstock("db", "backup", tmp_path / "copy.db", cwd=tmp_path).code == 0
    (tmp_path / "copy.db").replace(tmp_path / "penstock.db")
    refused = penstock("worker", cwd=tmp_path)
    assert refused.code == 2
    assert "was restored from a backup" in refused.err
    assert "run 'penstock db doubt'" in refused.err

    asked = penstock("db", "doubt", cwd=tmp_path)
    assert (asked.code, "there is no terminal to ask on" in asked.err) == (2, True)
    counted = penstock("db", "doubt", "--dry-run", cwd=tmp_path)
    assert counted.code == 0
    assert "invoice: 1\n" in counted.out
    assert "schedule: 0\n" in counted.out
    done = penstock("db", "doubt", "--yes", "--json", cwd=tmp_path)
    assert done.code == 0
    found = json.loads(done.out)
    assert {"machine": "invoice", "units": 1} in found["counts"]
    assert found["doubted"] == 1
    with Ledger.open(url, [invoices]) as ledger:
        assert ledger.read(lambda c: c.rows("SELECT doubts FROM invoice"))[0][0] == 1
        ledger.incarnation().register()


def test_an_instant_that_cannot_be_read_is_refused(penstock, ledger, tmp_path):
    answer = penstock("db", "doubt", "--since", "yesterday", "--yes", "--ledger", ledger, cwd=tmp_path)
    assert (answer.code, "--since must be an instant" in answer.err) == (2, True)


# upgrade and check


def test_upgrade_twice_changes_nothing_and_check_agrees(penstock, ledger, tmp_path):
    assert penstock("db", "upgrade", "--ledger", ledger, cwd=tmp_path).code == 0
    answer = penstock("db", "check", "--ledger", ledger, cwd=tmp_path)
    assert (answer.code, answer.err) == (0, "")
    assert "schema 1, this program knows 1" in answer.out
    assert "all is well: schema, tables, definitions, triggers" in answer.out


def test_check_says_what_differs_and_what_to_do(penstock, ledger, tmp_path):
    with Hand(ledger) as hand:
        hand.type("DROP TRIGGER penstock_invoice_guard" + (" ON invoice" if hand.dialect == "postgresql" else ""))
        hand.type("DROP INDEX invoice_due")
        hand.type("ALTER TABLE invoice ADD COLUMN odd text")
        hand.type("UPDATE penstock_meta SET value = '2' WHERE name = 'schema_version'")
        hand.type("UPDATE machine_definition SET digest = 'other' WHERE name = 'schedule'")
    answer = penstock("db", "check", "--ledger", ledger, "--json", cwd=tmp_path)
    assert answer.code == 1
    found = json.loads(answer.out)
    assert (found["ledger"], found["program"]) == (2, 1)
    told = {(f["check"], f["subject"]): f["message"] for f in found["findings"]}
    assert "this program can work with it; use a newer program" in told[("schema", "kernel")]
    assert told[("tables", "invoice.odd")] == "the ledger has this column, the program does not; it needs a migration"
    assert told[("tables", "invoice.invoice_due")] == "the index is missing; run 'penstock db upgrade'"
    assert "run 'penstock db upgrade'" in told[("definitions", "schedule")]
    assert "is missing" in told[("triggers", "penstock_invoice_guard")]
    assert penstock("db", "check", "--ledger", ledger, cwd=tmp_path).code == 1


def test_check_makes_no_ledger(penstock, tmp_path):
    answer = penstock("db", "check", "--ledger", "sqlite:///none.db", cwd=tmp_path)
    assert answer.code == 2
    assert "not a Penstock ledger yet; run 'penstock db upgrade'" in answer.err
    assert list(tmp_path.iterdir()) == []


# backup


def test_backup_tells_where_and_how_much(penstock, ledger, tmp_path):
    target = tmp_path / "copy"
    answer = penstock("db", "backup", target, "--ledger", ledger, cwd=tmp_path, env=PROGRAMS)
    assert answer.code == 0, answer.err
    assert answer.out.replace("\n", "").startswith(f"{target}: ")
    again = penstock("db", "backup", target, "--ledger", ledger, cwd=tmp_path, env=PROGRAMS)
    assert again.code == 2
    assert "exists already" in again.err
    forced = penstock("db", "backup", target, "--force", "--json", "--ledger", ledger, cwd=tmp_path, env=PROGRAMS)
    assert json.loads(forced.out) == {"path": str(target), "size": target.stat().st_size}


# prune and history --at


def test_prune_counts_asks_and_prunes(penstock, ledger, tmp_path):
    sent(ledger, "1", "2")
    before = penstock("history", "invoice:acme/1", "--ledger", ledger, "--json", cwd=tmp_path).out
    dry = penstock("db", "prune", "--older-than", "1d", "--dry-run", "--ledger", ledger, cwd=tmp_path)
    assert dry.code == 0, dry.err
    assert "nothing is old enough" in dry.out
    asked = penstock("db", "prune", "--older-than", "1d", "--ledger", ledger, cwd=tmp_path)
    assert asked.code == 2
    assert "there is no terminal to ask on; count with --dry-run, then give --yes" in asked.err

    def prune(*options: str) -> dict[str, object]:
        # Everything is old enough after its second: a span of nothing cannot be asked for.
        answer = penstock("db", "prune", "--older-than", "1s", "--json", *options, "--ledger", ledger, cwd=tmp_path)
        assert answer.code == 0, answer.err
        found: dict[str, object] = json.loads(answer.out)
        return found

    import time

    time.sleep(1.1)
    counted = prune("--dry-run")
    rows = {(c["table"], c["machine"]): c["rows"] for c in counted["counts"]}  # type: ignore[attr-defined]
    assert rows[("invoice", "invoice")] == 2
    assert rows[("transition_log", "invoice")] == 6
    assert counted["pruned"] == {}
    assert penstock("history", "invoice:acme/1", "--ledger", ledger, "--json", cwd=tmp_path).out == before
    assert prune("--keep-units", "--machine", "invoice", "--yes")["pruned"] == {"transition_log": 4}
    assert prune("--machine", "invoice", "--yes")["pruned"] == {"invoice": 2, "transition_log": 2}
    doctor = penstock("doctor", "--ledger", ledger, "--json", cwd=tmp_path)
    found = [
        f for f in json.loads(doctor.out)["findings"] if f["check"] in {"present", "contiguous", "permits", "states"}
    ]
    assert found == []


def test_prune_of_an_unknown_machine_or_span_is_refused(penstock, ledger, tmp_path):
    for options, says in (
        (["--machine", "nothing"], "no machine is called 'nothing'"),
        (["--older-than", "soon"], "span"),
    ):
        answer = penstock("db", "prune", "--yes", *options, "--ledger", ledger, cwd=tmp_path)
        assert answer.code == 2
        assert says in answer.err


def test_configured_ages_are_used(penstock, ledger, tmp_path):
    sent(ledger, "1")
    (tmp_path / "penstock.toml").write_text('[prune]\ninvoice = "1s"\n')
    import time

    time.sleep(1.1)
    answer = penstock("db", "prune", "--yes", "--json", "--ledger", ledger, cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["pruned"] == {"invoice": 1}


def test_history_up_to_a_moment(penstock, ledger, tmp_path):
    sent(ledger, "1")
    rows = json.loads(penstock("history", "invoice:acme/1", "--ledger", ledger, "--json", cwd=tmp_path).out)["rows"]

    def then(moment: str, *options: str) -> str:
        answer = penstock("history", "invoice:acme/1", "--at", moment, "--ledger", ledger, *options, cwd=tmp_path)
        assert answer.code == 0, answer.err
        return answer.out.replace("\n", " ")

    exact = json.loads(then(rows[-1]["at"], "--json"))
    assert exact["rows"][-1]["target"] == "SENT"
    assert "was SENT at" in exact["note"]
    assert "was not born at 2000-01-01T00:00:00.000Z" in json.loads(then("2000-01-01T00:00:00Z", "--json"))["note"]
    for wrong in ("yesterday", "2026-01-01T00:00:00"):
        answer = penstock("history", "invoice:acme/1", "--at", wrong, "--ledger", ledger, cwd=tmp_path)
        assert (answer.code, answer.err) == (
            2,
            "penstock: --at must be an instant, for example 2026-11-15T19:31:00Z\n",
        )


# shell


def test_a_shell_takes_statements_from_a_pipe(ledger, tmp_path):
    sent(ledger, "1")
    done = shell(ledger, "SELECT unit_id, status\nFROM invoice;\n", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "unit_id" in done.stdout
    assert "acme/1" in done.stdout


def test_a_sqlite_shell_shows_tables_and_how_they_were_made(penstock, tmp_path):
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    upgraded(penstock, url, tmp_path)
    done = shell(url, ".tables\n.schema gate\n.help\nSELECT NULL AS a, x'00ff' AS b;\n.quit\nSELECT wrong;\n", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "table  invoice" in done.stdout
    assert "CREATE TABLE gate (" in done.stdout
    assert "CREATE TABLE invoice" not in done.stdout
    assert "NULL  00ff" in done.stdout


def test_a_shells_first_error_ends_it(penstock, tmp_path):
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    upgraded(penstock, url, tmp_path)
    sent(url, "1")
    text = "UPDATE invoice SET status = 'QUEUED';\nSELECT 'not reached';\n"
    done = shell(url, text, tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == "penstock: invoice cannot go from SENT to QUEUED"
    assert "not reached" not in done.stdout
    orphan = shell(
        url,
        "INSERT INTO invoice (unit_id, tenant, number, status, amount_minor, gate_id)"
        " VALUES ('a/1', 'a', '1', 'QUEUED', 1, 'nowhere')",
        tmp_path,
    )
    assert orphan.returncode == 1
    assert "FOREIGN KEY" in orphan.stderr


def test_psql_that_is_missing_is_told(penstock, postgres_url, tmp_path):
    upgraded(penstock, postgres_url, tmp_path)
    answer = penstock("db", "shell", "--ledger", postgres_url, cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert answer.code == 2
    assert "psql is not on the PATH, and this command needs it" in answer.err
