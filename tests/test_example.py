"""The example lifecycle: the page about it shows it as it is, and its reading and its operation do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import pytest

from penstock import Actor, Ask, Ref, Then, UsageError
from penstock.examples import invoices
from penstock.examples.invoices import Correction, Invoice, InvoiceSettings, S, lifecycle, machine
from penstock.model.clock import VirtualClock
from penstock.operations.carry import carry_out, make_plan
from penstock.operations.reader import Reader
from penstock.testing import temporary_ledger

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "lifecycle.md").read_text()
SHOWN = re.compile(r"^( *)<!-- example -->\n *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def source() -> str:
    """The example without the comments that speak to the linter."""
    return re.sub(r"  # noqa.*$", "", Path(invoices.__file__).read_text(), flags=re.MULTILINE)


def test_the_page_shows_the_example_as_it_is():
    blocks = [textwrap.dedent(code) for _, code in SHOWN.findall(PAGE)]
    assert PAGE.count("<!-- example -->") == len(blocks) >= 10
    assert [code for code in blocks if code not in source()] == []


def test_the_example_imports_nothing_heavy():
    code = (
        "import sys, penstock.examples.invoices\n"
        "heavy = {'sqlalchemy', 'aiohttp', 'rich', 'click', 'alembic', 'psycopg', 'pysqlite3'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_a_failed_invoice_is_corrected():
    with temporary_ledger(lifecycle) as ledger:
        ledger.birth([Invoice(tenant="acme", number="17", amount_minor=-5)], actor=Actor.API, who="test")
        ask = Ask(Reader(ledger.database, [machine]), InvoiceSettings(), ledger.clock.now(), "ana", "a typing error")
        wanted = Correction(invoice=Ref("invoice", "acme/17"), amount_minor=5)
        with pytest.raises(UsageError, match="invoice:acme/17 is QUEUED; only a failed invoice is corrected"):
            make_plan(invoices.correct, ask, wanted, owner="invoices", version="1")
        for state in (S.SENDING, S.FAILED):
            ledger.move(wanted.invoice, state, actor=Actor.WORKER, who="test", reason="refused")
        done = carry_out(ledger, ask, make_plan(invoices.correct, ask, wanted, owner="invoices", version="1"))
        (corrected,) = ledger.get_many(machine, ["acme/17"])
    assert done.count == 1
    assert (corrected.status, corrected.due_at) == (S.QUEUED, ask.now)


def test_shares_are_those_of_then():
    clock = VirtualClock()
    with temporary_ledger(lifecycle, clock=clock) as ledger:
        ledger.birth([Invoice(tenant="acme", number="17", amount_minor=7)], actor=Actor.API, who="test")
        then = clock.now()
        clock.advance(60)
        ledger.move(Ref("invoice", "acme/17"), S.SENDING, actor=Actor.WORKER, who="test", reason="it is sent")
        ask = Ask(Reader(ledger.database, [machine]), InvoiceSettings(), clock.now())
        shares = [invoices.tenants(ask, Then(at=at)).rows for at in (then - timedelta(1), then, None)]
    assert [[(one.status, one.amount_minor) for one in rows] for rows in shares] == [
        [],
        [(S.QUEUED, 7)],
        [(S.SENDING, 7)],
    ]
