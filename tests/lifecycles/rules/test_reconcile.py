"""Comparing what runs have set with the live prices: when, what the report says, and how a difference is mended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from penstock.lifecycles.rules import undo
from penstock.lifecycles.rules.run.machine import Kind, R
from penstock.model.clock import instant
from penstock.model.errors import Rejected, Transient
from penstock.model.machine import Actor
from penstock.model.unit import replace
from tests.support.price_shop import PriceShop, Refuse, always, euros
from tests.support.prices import CUT, Prices, prices, target_ref

ONE, OTHER = "p0000-v0", "p0000-v1"
MISMATCH = "automation.reconciliation.mismatch"


def reports(bench: Prices, run_id: UUID) -> list[dict[str, Any]]:
    names = "occasion, started_at, total_checked, mismatches, superseded, missing, finished_at, id, rule_run_id"
    rows = bench.rows(f"SELECT {names} FROM reconciliation_report ORDER BY started_at")
    found = [dict(zip(names.split(", "), row, strict=True)) for row in rows]
    return [one for one in found if str(one["rule_run_id"]) == str(run_id)]


def counts(report: dict[str, Any]) -> tuple[int, int, int, int]:
    return report["total_checked"], report["mismatches"], report["superseded"], report["missing"]


def mismatches(bench: Prices, report: dict[str, Any]) -> list[tuple[Any, ...]]:
    """(target, expected, actual, difference) of a report."""
    rows = bench.rows(
        "SELECT report_id, target_id, expected, actual, difference FROM reconciliation_mismatch ORDER BY target_id"
    )
    return [row[1:] for row in rows if str(row[0]) == str(report["id"])]


@pytest.mark.by_day
def test_a_run_is_compared_at_once_then_after_an_hour_then_daily_for_thirty_days(rules_url):
    shop = PriceShop(1, 2)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        end = bench.run(run_id).finished_at
        bench.hours(24 * 40)
        found = reports(bench, run_id)
        assert [one["occasion"] for one in found] == ["immediate", "delayed", *["periodic"] * 30]
        waited = [instant(one["started_at"]) - end for one in found]
        assert waited[0] <= timedelta(minutes=5)
        wanted = [timedelta(hours=1), *(timedelta(days=n) for n in range(1, 31))]
        assert all(w <= found <= w + timedelta(seconds=5) for found, w in zip(waited[1:], wanted, strict=True))
        assert {counts(one) for one in found} == {(2, 0, 0, 0)}
        assert bench.events(MISMATCH) == []


@pytest.mark.by_day
def test_a_difference_is_reported_and_repaired_by_a_run_of_its_own(rules_url):
    shop = PriceShop(1, 4)
    with prices(rules_url, shop) as bench:
        shop.trouble = always("write", lambda: Refuse({"p0000-v3": "no"}), "p0000-v3")
        run_id = bench.apply(seconds=10)
        shop.trouble = lambda *_: None
        shop.prices[ONE] = euros(950)  # not by a hand that the shop minds: a repair may replace it
        shop.prices[OTHER] = euros(901, 1_100)
        shop.delete("p0000-v2")
        bench.work(120)
        (report,) = reports(bench, run_id)
        assert counts(report) == (3, 3, 0, 1)
        assert mismatches(bench, report) == [
            (ONE, 900, 950, 50),
            (OTHER, 901, 901, 0),  # its crossed-out price
            ("p0000-v2", 902, None, None),
        ]
        keys = [key for key, _ in bench.events(MISMATCH)]
        assert keys == [f"{UUID(str(report['id']))}:{one}:mismatch" for one in (ONE, OTHER, "p0000-v2")]
        assert [severity for _, severity in bench.events("rules.mismatch")] == ["warning"]

        bench.do(undo.reconcile, run_id, repair=True)
        bench.work(30)
        repair = bench.runs()[-1]
        assert (repair.kind, repair.of_run_id, repair.status, repair.target_count) == (
            Kind.REPAIR,
            run_id,
            R.APPLIED,
            2,
        )
        assert shop.prices[ONE] == euros(900)
        assert shop.prices[OTHER] == euros(901)
        bench.hours(2)
        assert counts(reports(bench, run_id)[-1]) == (1, 1, 2, 1)  # the repair has what it set again
        assert counts(reports(bench, repair.id)[-1]) == (2, 0, 0, 0)


def test_what_a_later_run_has_set_is_superseded_and_what_was_undone_is_left_out(rules_url):
    shop = PriceShop(1, 2)
    with prices(rules_url, shop) as bench:
        first = bench.apply(seconds=10)
        bench.roll_back(first, OTHER, seconds=10)
        bench.apply(seconds=10)
        bench.do(undo.reconcile, first)
        bench.work(5)
        (report,) = reports(bench, first)
        assert report["occasion"] == "by hand"
        assert counts(report) == (0, 0, 1, 0)
        bench.hours(24 * 3)
        assert bench.events(MISMATCH) == []


def test_comparing_by_hand_does_not_use_up_an_occasion(rules_url):
    shop = PriceShop(1, 1)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=10)
        bench.do(undo.reconcile, run_id)
        bench.hours(2)
        assert [one["occasion"] for one in reports(bench, run_id)] == ["by hand", "immediate", "delayed"]


def test_many_prices_are_compared_in_parts_and_with_few_calls(rules_url):
    shop = PriceShop(600, 4)
    with prices(rules_url, shop, approve_above=10_000) as bench:
        run_id = bench.apply(seconds=30)
        assert bench.run(run_id).status is R.APPLIED
        reads = len(shop.reads())
        shop.edit("p0599-v3", euros(1))
        bench.work(120)
        assert [counts(one) for one in reports(bench, run_id)] == [(2_400, 1, 0, 0)]
        assert len(shop.reads()) - reads == 10  # two parts of a thousand and one of four hundred, 250 at a time


def test_where_the_shop_has_a_bulk_read_all_prices_come_at_once(rules_url):
    shop = PriceShop(10, 2)
    shop.bulk = True
    with prices(rules_url, shop, bulk_read_above=10) as bench:
        run_id = bench.apply(seconds=10)
        reads = len(shop.reads())
        shop.edit(ONE, euros(1))
        shop.delete(OTHER)
        bench.work(120)
        assert [counts(one) for one in reports(bench, run_id)] == [(20, 2, 0, 1)]
        assert len(shop.reads()) == reads


def test_bulk_comparisons_go_one_after_the_other(rules_url):
    shop = PriceShop(600, 2)
    shop.bulk = True
    with prices(rules_url, shop, bulk_read_above=10, approve_above=10_000) as bench:
        first = bench.apply(seconds=30)
        bench.rule("next", **CUT, priority=1)
        second = bench.apply("next", seconds=10)
        asked = len([call for call in shop.calls if call.kind == "catalogue"])
        bench.do(undo.reconcile, first)
        bench.do(undo.reconcile, second)
        bench.work(15)
        assert [counts(one) for one in reports(bench, first)] == [(0, 0, 1_200, 0)]
        assert [counts(one) for one in reports(bench, second)] == [(1_200, 0, 0, 0)]
        assert len([call for call in shop.calls if call.kind == "catalogue"]) - asked == 2


def test_what_a_run_sets_while_another_is_compared_is_no_difference(rules_url):
    shop = PriceShop(1, 2)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=10)

        def rolled_back_meanwhile(kind, _ids):
            if kind == "read":
                shop.trouble = lambda *_: None
                shop.prices[ONE] = euros(1_000)
                back = target_ref(run_id, ONE)
                bench.ledger.move(back, "ROLLED_BACK", actor=Actor.API, who="ada", reason="a rollback at the same time")

        shop.trouble = rolled_back_meanwhile
        bench.do(undo.reconcile, run_id)
        bench.work(5)
        assert [counts(one) for one in reports(bench, run_id)] == [(1, 0, 1, 0)]
        assert bench.events(MISMATCH) == []


@pytest.mark.by_day
@pytest.mark.parametrize("error", [lambda: Transient("the shop is away"), lambda: Rejected("not you")])
def test_while_the_shop_is_away_a_comparison_waits_and_somebody_is_told_once(rules_url, error):
    shop = PriceShop(1, 1)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=10)
        shop.trouble = always("read", error)
        bench.hours(6)
        run = bench.run(run_id)
        assert (run.status, run.parked_at) == (R.APPLIED, None)
        assert reports(bench, run_id) == []
        assert [severity for _, severity in bench.events("rules.not_compared")] == ["warning"]
        shop.trouble = lambda *_: None
        bench.hours(1)
        assert [one["occasion"] for one in reports(bench, run_id)] == ["immediate"]
        assert bench.run(run_id).attempts == 0
        bench.hours(24)
        assert [one["occasion"] for one in reports(bench, run_id)] == ["immediate", "periodic"]


def test_prices_in_another_currency_are_not_compared(rules_url):
    shop = PriceShop(1, 1)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=10)
        before = dict(shop.prices)
        shop.prices.update({one: replace(price, currency="USD") for one, price in before.items()})
        bench.hours(1)
        run = bench.run(run_id)
        assert (run.parked_at, reports(bench, run_id)) == (None, [])
        assert "the shop's prices are in USD now, and the run's are in EUR" in (run.change_reason or "")
        shop.prices.update(before)
        bench.hours(1)
        assert len(reports(bench, run_id)) == 1


def test_a_run_of_an_account_that_is_paused_waits(rules_url):
    shop = PriceShop(1, 1)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=10)
        known, bench.accounts = bench.accounts, {}
        bench.hours(3)
        assert (bench.run(run_id).parked_at, reports(bench, run_id)) == (None, [])
        bench.accounts = known
        bench.hours(2)
        assert [one["occasion"] for one in reports(bench, run_id)] == ["immediate"]


def test_a_provider_that_lies_is_found_out(rules_url):
    """It says that a price is set, and shows another to everybody else."""
    shop = PriceShop(1, 2)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=10)
        assert bench.run(run_id).status is R.APPLIED
        shop.lies[ONE] = replace(shop.prices[ONE], amount=1_000)
        bench.work(120)
        (report,) = reports(bench, run_id)
        assert mismatches(bench, report) == [(ONE, 900, 1_000, 100)]
