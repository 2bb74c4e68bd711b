"""Undoing runs: only what is still theirs, whole or by target, and reported like any other run."""

from __future__ import annotations

import pytest

from penstock.lifecycles.rules import operations
from penstock.lifecycles.rules.metrics import values_of
from penstock.lifecycles.rules.run.machine import Kind, R
from penstock.lifecycles.rules.target.machine import T
from penstock.model.errors import InDoubt, Transient, UsageError
from tests.support.price_shop import After, PriceShop, Refuse, Script, always, euros
from tests.support.prices import prices, target_ref

ONE, OTHER = "p0000-v0", "p0000-v1"


@pytest.mark.by_day
def test_a_run_is_rolled_back_by_a_run_of_its_own(rules_url):
    shop = PriceShop(2, 2)
    before = dict(shop.prices)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        back = bench.roll_back(run_id)
        assert shop.prices == before
        assert (back.kind, back.status, back.applied_count) == (Kind.ROLLBACK, R.APPLIED, 4)
        run = bench.run(run_id)
        assert (run.status, run.rolled_back_count, run.applied_count) == (R.ROLLED_BACK, 4, 0)
        assert set(bench.ended(run_id).values()) == {"ROLLED_BACK"}
        assert bench.hands("rule_target", f"{run_id}/{ONE}", "ROLLED_BACK") == ["api:ada"]
        assert bench.hands("rule_run", str(run_id), "ROLLED_BACK") == ["api:ada"]
        keys = [key for key, _ in bench.events("automation.target.apply")]
        assert len(keys) == len(set(keys)) == 8
        with pytest.raises(UsageError, match="was rolled back already"):
            bench.roll_back(run_id)
        with pytest.raises(UsageError, match="itself a rollback"):
            bench.roll_back(back.id)


def test_targets_are_rolled_back_one_by_one_until_none_is_left(rules_url):
    shop = PriceShop(1, 3)
    before = dict(shop.prices)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        bench.roll_back(run_id, ONE)
        assert bench.run(run_id).status is R.APPLIED
        assert [t.status for t in bench.targets(run_id)] == [T.ROLLED_BACK, T.APPLIED, T.APPLIED]
        assert shop.prices[ONE] == before[ONE]
        assert shop.prices[OTHER] != before[OTHER]
        bench.roll_back(run_id, OTHER, "p0000-v2")
        assert bench.run(run_id).status is R.ROLLED_BACK
        assert shop.prices == before


@pytest.mark.by_day
def test_what_others_have_set_since_is_a_conflict_and_set_aside_by_name(rules_url):
    shop = PriceShop(1, 3)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        shop.edit(ONE, euros(1_234))
        back = bench.roll_back(run_id)
        assert back.status is R.PARTIAL
        assert bench.ended(back.id)[ONE] == "FAILED conflict"
        assert bench.target(back.id, ONE).live_json == euros(1_234).as_json()
        assert bench.run(run_id).status is R.APPLIED
        assert bench.target(run_id, ONE).status is T.APPLIED
        assert shop.prices[ONE] == euros(1_234)
        bench.roll_back(run_id, leave=[ONE])
        assert bench.run(run_id).status is R.ROLLED_BACK
        left = bench.target(run_id, ONE)
        assert (left.status, left.set_aside_by, left.set_aside_reason) == (T.APPLIED, "ada", "because")
        assert shop.prices[ONE] == euros(1_234)


def test_a_rollback_that_fails_is_tried_again_like_any_run(rules_url):
    shop = PriceShop(1, 2)
    before = dict(shop.prices)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        shop.trouble = always("write", lambda: Transient("503"))
        back = bench.roll_back(run_id)
        assert back.status is R.FAILED
        assert bench.run(run_id).status is R.APPLIED
        shop.trouble = lambda *_: None
        bench.retry(back.id)
        bench.work()
        assert bench.run(back.id).status is R.APPLIED
        assert bench.run(run_id).status is R.ROLLED_BACK
        assert shop.prices == before


def test_a_rollback_whose_answer_is_lost_is_settled_by_a_read(rules_url):
    shop = PriceShop(1, 2)
    before = dict(shop.prices)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        shop.trouble = Script("write", [After(InDoubt("closed"))])
        back = bench.roll_back(run_id)
        assert (back.status, bench.run(run_id).status) == (R.APPLIED, R.ROLLED_BACK)
        assert shop.prices == before
        assert len(shop.writes()) == 2


@pytest.mark.parametrize("by", ["rollback", "leaving"])
def test_the_dead_letters_of_a_run_that_is_rolled_back_are_dismissed(rules_url, by):
    shop = PriceShop(1, 3)
    with prices(rules_url, shop) as bench:
        shop.trouble = always("write", lambda: Refuse({ONE: "INVALID: no"}), ONE)
        run_id = bench.apply()
        assert bench.run(run_id).status is R.PARTIAL
        assert values_of(bench.ledger, bench.time.now()).dead == 1
        shop.trouble = lambda *_: None
        if by == "rollback":
            bench.roll_back(run_id)
        else:
            bench.roll_back(run_id, leave=[OTHER, "p0000-v2"])
            assert {t.set_aside_by for t in bench.targets(run_id)} == {None, "ada"}
        assert bench.run(run_id).status is R.ROLLED_BACK
        assert bench.ended(run_id)[ONE] == "FAILED refused"
        assert values_of(bench.ledger, bench.time.now()).dead == 0
        dismissed = bench.rows("SELECT unit_id, version, changed_by FROM dismissal WHERE machine = 'rule_target'")
        assert dismissed == [(f"{run_id}/{ONE}", bench.target(run_id, ONE).version, "ada")]
        with pytest.raises(UsageError, match="is ROLLED_BACK"):
            bench.retry(run_id, ONE)


@pytest.mark.parametrize("works", [True, False])
def test_a_target_that_is_tried_again_while_its_run_is_rolled_back_goes_on_afterwards(rules_url, works):
    shop = PriceShop(3, 1)
    with prices(rules_url, shop) as bench:
        shop.trouble = always("write", lambda: Refuse({ONE: "INVALID: no"}), ONE)
        run_id = bench.apply()
        bench.slowly()
        back = bench.roll_back(run_id, seconds=2)
        assert back.status is R.APPLYING
        with pytest.raises(UsageError, match="is being rolled back by run"):
            bench.retry(run_id)
        bench.ledger.move_by_hand(target_ref(run_id, ONE), "QUEUED", who="ada", reason="'penstock dead retry' can")
        if works:
            shop.trouble = lambda *_: None
        bench.work(60)
        assert bench.run(back.id).status is R.APPLIED
        run = bench.run(run_id)
        assert (run.status, run.rolled_back_count) == (R.APPLIED if works else R.PARTIAL, 2)
        bench.roll_back(run_id)
        assert bench.run(run_id).status is R.ROLLED_BACK


def test_a_later_run_of_the_same_prices_makes_the_first_ones_conflicts(rules_url):
    shop = PriceShop(1, 1)
    with prices(rules_url, shop) as bench:
        first = bench.apply()
        second = bench.apply()
        assert shop.prices[ONE] == euros(810)
        back = bench.roll_back(first)
        assert bench.ended(back.id) == {ONE: "FAILED conflict"}
        bench.roll_back(second)
        assert shop.prices[ONE] == euros(900)
        bench.roll_back(first)
        assert shop.prices[ONE] == euros(1_000)
        assert {bench.run(first).status, bench.run(second).status} == {R.ROLLED_BACK}


def test_cancelling_a_rollback_leaves_the_rest_applied(rules_url):
    shop = PriceShop(20, 1)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        bench.slowly()
        back = bench.roll_back(run_id, seconds=8)
        bench.do(operations.cancel, back.id)
        bench.work(10)
        back = bench.run(back.id)
        run = bench.run(run_id)
        assert (back.status, run.status) == (R.PARTIAL, R.APPLIED)
        assert run.rolled_back_count == back.applied_count > 0
        assert run.applied_count == back.failed_count > 0
        bench.roll_back(run_id)
        assert bench.run(run_id).status is R.ROLLED_BACK
