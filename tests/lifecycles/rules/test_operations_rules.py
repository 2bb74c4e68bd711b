"""What people do to rules: import them from files, price lists and the configuration, and lock SKUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.lifecycles.rules.run.machine import R
from penstock.model.errors import LedgerRefused, UsageError
from penstock.operations.carry import carry_out
from tests.support.price_shop import PriceShop, euros
from tests.support.rules import Desk, desk

RULES = """
[rules.rings]
account = "shop"
currency = "EUR"
priority = 1
[rules.rings.selector]
skus = ["SKU-p0000-v0", "SKU-p0000-v1"]
[rules.rings.transform]
percent = -20

[rules.rest]
account = "shop"
currency = "EUR"
[rules.rest.selector]
everything = true
[rules.rest.transform]
percent = "-5"
"""


def versions(at: Desk) -> list[tuple[str, int, bool]]:
    rows = at.bench.rows("SELECT name, version, current FROM rule ORDER BY name, version")
    return [(name, version, bool(current)) for name, version, current in rows]


def price_list(folder: Path, count: int, **prices: str) -> str:
    path = folder / "prices.csv"
    lines = [f"SKU-p{n:04d}-v0,{prices.get(f'p{n}', '5.00')}" for n in range(count)]
    path.write_text("\n".join(["sku,price", *lines]) + "\n")
    return str(path)


def test_a_file_of_rules_is_imported_and_only_what_changed_gets_a_version(ledger_url, tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    with desk(ledger_url) as at:
        assert at.do("import", file=str(path), reason="").says == (
            "put 2 rules into force: rings (version 1), rest (version 1)"
        )
        assert versions(at) == [("cut", 1, True), ("rest", 1, True), ("rings", 1, True)]
        planned = at.plan("import", file=str(path))
        assert (planned.preview.count, planned.preview.warnings) == (
            0,
            ["rings is unchanged: version 1 stays", "rest is unchanged: version 1 stays"],
        )
        path.write_text(RULES.replace("-20", "-25"))
        assert at.do("import", file=str(path)).says == "put 1 rule into force: rings (version 2)"
        assert versions(at) == [("cut", 1, True), ("rest", 1, True), ("rings", 1, False), ("rings", 2, True)]
        run = at.applied("rings")
        assert (run.status, run.rule_version, at.bench.shop.prices["p0000-v0"]) == (R.APPLIED, 2, euros(750))


def test_json_is_read_too_and_what_is_wrong_is_said_at_once(ledger_url, tmp_path):
    good = {"account": "shop", "currency": "EUR", "transform": {"percent": "-5"}, "selector": {"everything": True}}
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"rules": {"one": good}}))
    with desk(ledger_url) as at:
        at.do("import", file=str(path))
        path.write_text(json.dumps({"rules": {"one": good | {"currency": "EUX"}, "two": good | {"priority": -1}}}))
        with pytest.raises(UsageError, match=r"(?s)currency.*did you mean.*priority"):
            at.plan("import", file=str(path))
        path.write_text(json.dumps({"rules": {"one": good | {"account": "shp"}}}))
        at.refused("import", "no account is called 'shp'; did you mean shop", file=str(path))
        path.write_text("{")
        at.refused("import", "is not JSON", file=str(path))
        at.refused("import", "No such file", file=str(tmp_path / "absent.toml"))
        (tmp_path / "rules.toml").write_text("=")
        at.refused("import", "is not TOML", file=str(tmp_path / "rules.toml"))
        assert versions(at) == [("cut", 1, True), ("one", 1, True)]


def test_a_price_list_becomes_a_rule_however_long_it_is(ledger_url, tmp_path):
    path = price_list(tmp_path, 12_001, p0="9.50", p1="9.60")
    with desk(ledger_url, PriceShop(3, 1)) as at:
        given = {"prices": path, "name": "list", "account": "shop", "currency": "EUR"}
        planned = at.plan("import", **given)
        assert planned.preview.says == "put 1 rule into force: list (version 1)"
        # The version first, then its prices in parts, each in a transaction of its own.
        assert [len(write.rows) for write in at.together("import", **given).first] == [1, 5_000, 5_000, 2_001]
        told: list[tuple[int, int | None]] = []
        carry_out(at.bench.ledger, at.ask(), planned, lambda done, total: told.append((done, total)))
        assert told[-1] == (12_002, 12_002)
        assert at.bench.rows("SELECT count(*) FROM rule_price WHERE rule_version = 1") == [(12_001,)]
        assert at.plan("import", **given).preview.count == 0
        price_list(tmp_path, 3, p0="9.50", p1="9.60")
        assert at.do("import", **given).says == "put 1 rule into force: list (version 2)"
        at.bench.ledger.database.write(lambda cursor: cursor.run("DELETE FROM rule WHERE name = 'cut'"))
        run = at.preview("list")
        at.refused("queue", r"p0002-v0 would go from 10.02 to 5.00 \(-50.10 %\)", run=str(run.id))
        price_list(tmp_path, 3, p0="9.50", p1="9.60", p2="9.70")
        at.do("import", **given)
        run = at.applied("list")
        assert (run.status, run.rule_version) == (R.APPLIED, 3)
        assert [at.bench.shop.prices[f"p000{n}-v0"] for n in range(3)] == [euros(950), euros(960), euros(970)]


def test_an_import_that_dies_between_leaves_nothing_in_force(ledger_url, tmp_path):
    path = price_list(tmp_path, 6_000)
    given = {"prices": path, "name": "list", "account": "shop", "currency": "EUR"}
    with desk(ledger_url) as at:
        for write in at.together("import", **given).first[:2]:
            at.bench.ledger.write([write])
        assert versions(at) == [("cut", 1, True), ("list", 1, False)]
        at.refused("preview", "no rule is called 'list'", rule="list")
        assert at.do("import", **given).says == "put 1 rule into force: list (version 2)"
        assert at.bench.rows("SELECT rule_version, count(*) FROM rule_price GROUP BY 1 ORDER BY 1") == [
            (1, 5_000),
            (2, 6_000),
        ]


def test_of_two_people_who_import_the_same_rule_one_does(ledger_url, tmp_path):
    first = price_list(tmp_path, 10)
    given = {"prices": first, "name": "list", "account": "shop", "currency": "EUR"}
    with desk(ledger_url) as at:
        one = at.plan("import", **given)
        price_list(tmp_path, 20)
        other = at.plan("import", **given)
        carry_out(at.bench.ledger, at.ask(), one)
        with pytest.raises(LedgerRefused):
            carry_out(at.bench.ledger, at.ask(), other)
        assert at.bench.rows("SELECT count(*) FROM rule_price") == [(10,)]


def test_a_bad_price_list_is_refused_with_its_lines(ledger_url, tmp_path):
    path = tmp_path / "prices.csv"
    given = {"prices": str(path), "name": "list", "account": "shop", "currency": "EUR"}
    with desk(ledger_url) as at:
        path.write_text("sku,price\nA,5.00\nA,6.00\n")
        at.refused("import", 'line 3: "A" has a price in line 2 already', **given)
        path.write_text("sku,price\nA,-5.00\nB,NaN\nC,5.001\nD,0.00\n")
        with pytest.raises(UsageError, match=r"(?s)line 2.*line 3.*line 4.*line 5"):
            at.plan("import", **given)
        at.refused("import", "--prices needs --currency too", prices=str(path), name="list", account="shop")
        at.refused("import", "belong to --prices", name="list")
        at.refused("import", "not both", file="rules.toml", **given)
        at.refused("import", "No such file", **given | {"prices": str(tmp_path / "absent.csv")})
        assert versions(at) == [("cut", 1, True)]


def test_the_configuration_is_imported_by_a_preview_on_the_way(ledger_url, tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES.replace("[rules.rings", "[rules.sale"))
    cut = {"selector": {"everything": True}, "transform": {"percent": "-20"}, "priority": 1}
    with desk(ledger_url) as at:
        at.configure(sale=cut, other=cut | {"priority": 2})
        at.refused("import", "'sale' is one of the configuration", file=str(path))
        (row,) = [row for row in at.read("list").rows if row.rule == "sale"]
        assert (row.version, row.changed, row.source) == (None, True, "configuration")
        run = at.preview("sale")
        assert (run.rule_version, run.target_count) == (1, 4)
        assert versions(at) == [("cut", 1, True), ("other", 1, True), ("sale", 1, True)]
        at.configure(sale=cut | {"transform": {"percent": "-15"}})
        run = at.preview("sale")
        assert run.rule_version == 2
        # What the configuration no longer has is no longer in force.
        assert versions(at) == [("cut", 1, True), ("other", 1, False), ("sale", 1, False), ("sale", 2, True)]
        assert "other" not in {row.rule for row in at.read("list").rows}
        assert at.do("import", reason="").count == 0
        at.configure()
        at.refused("preview", "'sale' is no longer in the configuration", rule="sale")
        assert at.do("import").says == "retire sale, which the configuration no longer has"


def test_locked_skus_are_left_out_of_previews(ledger_url):
    with desk(ledger_url) as at:
        assert at.do("lock", skus=("SKU-p0000-v0", "SKU-p0001-v1"), account="shop", reason="a deal").count == 2
        assert [(r.sku, r.locked_by, r.reason) for r in at.read("locked", account="shop").rows] == [
            ("SKU-p0000-v0", "ada", "a deal"),
            ("SKU-p0001-v1", "ada", "a deal"),
        ]
        run = at.preview()
        assert (run.target_count, run.excluded_count) == (2, 2)
        assert [(r.reason, r.count, r.says) for r in at.read("show", run=str(run.id)).left_out] == [
            ("locked", 2, "locked")
        ]
        again = at.plan("lock", skus=("SKU-p0000-v0",), account="shop")
        assert (again.preview.count, again.preview.warnings) == (0, ["SKU-p0000-v0 is locked already"])
        assert at.do("unlock", skus=("SKU-p0000-v0",), account="shop").says == "unlock SKU-p0000-v0 of shop"
        assert [r.sku for r in at.read("locked").rows] == ["SKU-p0001-v1"]


def test_what_is_not_there_is_neither_locked_nor_unlocked(ledger_url):
    with desk(ledger_url) as at:
        at.refused("lock", "the catalogue of shop has no SKU NO-SUCH", skus=("NO-SUCH",), account="shop")
        at.refused("lock", "no account is called 'shp'; did you mean shop", skus=("SKU-p0000-v0",), account="shp")
        at.refused("unlock", "SKU-p0000-v0 of shop is not locked", skus=("SKU-p0000-v0",), account="shop")
        assert at.read("locked").note == "no SKU is locked"
