"""The command line of erasures: what will be erased is shown and asked for, done without a worker, and told."""

from __future__ import annotations

import json

from penstock.ledger.ledger import Ledger
from penstock.lifecycles.queries import MACHINES
from penstock.lifecycles.queries.offer_store import company_id
from penstock.lifecycles.queries.tables import companies, offers
from penstock.model.clock import SystemClock
from penstock.model.outcome import Write

CONFIG = """
ledger.url = "sqlite:///penstock.db"

[queries.feed_jsonl.feed]
folder = "feed"
"""
ALIKE = ("updated_at", "first_seen_at", "last_seen_at")


def test_a_company_is_erased_at_once_and_its_name_is_nowhere(tmp_path, penstock):
    (tmp_path / "feed").mkdir()
    (tmp_path / "penstock.toml").write_text(CONFIG)
    assert penstock("db", "upgrade", cwd=tmp_path).code == 0
    now, key = SystemClock().now(), str(company_id("Zoraida"))
    offer = {"client": "feed", "offer_id": "1", "title": "Alisado", "company": "Zoraida", "company_key": key}
    company = {"company_key": key, "name": "Zoraida", "first_seen_at": now, "last_seen_at": now}
    with Ledger.open(f"sqlite:///{tmp_path / 'penstock.db'}", MACHINES) as ledger:
        ledger.write([Write(offers, [offer | dict.fromkeys(ALIKE, now) | {"content_hash": "x"}])])
        ledger.write([Write(companies, [company])])
    words = ("queries", "erase", "company:Zoraida", "--reason", "request 17")
    refused = penstock(*words, cwd=tmp_path)
    assert (refused.code, f"erase company {key} (2 rows)" in refused.err) == (2, True)
    assert penstock(*words[:-2], "--yes", cwd=tmp_path).code == 2
    done = penstock(*words, "--yes", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)["rows"]
    assert (row["erased"], row["status"], row["reason"]) == (f"company:{key}", "done", "request 17")
    shown = penstock("queries", "erasures", cwd=tmp_path)
    assert f"company:{key}" in shown.out
    with Ledger.open(f"sqlite:///{tmp_path / 'penstock.db'}", MACHINES) as ledger:
        assert ledger.read(lambda c: c.rows("SELECT title, company FROM offers")) == [(None, None)]
