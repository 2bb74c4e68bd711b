"""Whole runs on virtual time: what is applied, what is tried again and when, and what is in doubt."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from penstock.lifecycles.rules.run.machine import R
from penstock.lifecycles.rules.target.machine import T
from penstock.model.errors import Fatal, InDoubt, Rejected, Throttled, Transient
from penstock.model.limits import GateLimits, Limit
from penstock.model.unit import replace
from tests.support.price_shop import After, Hang, PriceShop, Refuse, Script, always, euros
from tests.support.prices import GATE, prices

ONE = "p0000-v0"
OTHER = "p0000-v1"


def cut(shop: PriceShop) -> dict[str, Any]:
    """Every price as the rule makes it."""
    return {one: euros((price.amount * 9 + 5) // 10) for one, price in shop.prices.items()}


def seconds_between(calls: Any) -> list[float]:
    return [(b.at - a.at).total_seconds() for a, b in pairwise(calls)]


@pytest.mark.by_day
def test_every_price_is_read_then_set_once(rules_url):
    shop = PriceShop(4, 3)
    wanted = cut(shop)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        run = bench.run(run_id)
        assert (run.status, run.applied_count, run.error) == (R.APPLIED, 12, None)
        assert run.queued_at <= run.started_at <= run.finished_at
        assert shop.prices == wanted
        assert sorted(call.product for call in shop.writes()) == ["p0000", "p0001", "p0002", "p0003"]
        assert {len(call.variants) for call in shop.writes()} == {3}
        assert [len(call.variants) for call in shop.reads()] == [12]  # of four products, by one call
        keys = [key for key, _ in bench.events("automation.target.apply")]
        assert keys == sorted(f"{run_id}:{one}:apply:0" for one in wanted)
        assert bench.events("automation.run.finished") == [(f"automation.run.finished:{run_id}:0", None)]
        assert bench.edges("rule_run", str(run_id)) == ["PREVIEW", "QUEUED", "APPLYING", "APPLIED"]
        assert bench.edges("rule_target", f"{run_id}/{ONE}") == ["PREVIEW", "QUEUED", "APPLYING", "APPLIED"]
        assert bench.hands("rule_run", str(run_id), "QUEUED") == ["api:ada"]
        assert bench.hands("rule_target", f"{run_id}/{ONE}", "QUEUED") == ["api:ada"]


def test_reads_are_of_at_most_so_many_variants(rules_url):
    shop = PriceShop(5, 5)
    with prices(rules_url, shop, at_once=7) as bench:
        assert bench.run(bench.apply()).status is R.APPLIED
        assert all(len(call.variants) <= 7 for call in shop.reads())


def test_the_catalogue_follows_what_was_set_and_what_was_undone(rules_url):
    shop = PriceShop(1, 2)

    def known() -> list[int]:
        return [row[0] for row in bench.rows("SELECT unit_amount FROM catalogue ORDER BY variant_id")]

    with prices(rules_url, shop) as bench:
        shop.trouble = always("write", lambda: Refuse({OTHER: "INVALID: no"}), OTHER)
        run_id = bench.apply()
        assert known() == [900, 1_001]
        bench.roll_back(run_id)
        assert known() == [1_000, 1_001]


@pytest.mark.parametrize(("refused", "status"), [([ONE], R.PARTIAL), ([ONE, OTHER], R.FAILED)])
def test_what_the_provider_refuses_fails_at_once(rules_url, refused, status):
    shop = PriceShop(1, 2)
    shop.trouble = lambda kind, ids: (
        Refuse({one: "INVALID: no" for one in refused if one in ids}) if kind == "write" else None
    )
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        assert bench.run(run_id).status is status
        assert [one for one, state in bench.ended(run_id).items() if state == "FAILED refused"] == refused
        failed = bench.target(run_id, ONE)
        assert (failed.attempts, failed.error) == (0, "INVALID: no")
        assert len(shop.writes(ONE)) == 1
        assert (f"{run_id}:{ONE}:apply:0", None) in bench.events("automation.target.apply")


def test_an_error_that_will_never_go_away_fails_at_once(rules_url):
    shop = PriceShop(1, 1)
    shop.trouble = always("write", lambda: Rejected("this price is not allowed"))
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        assert bench.ended(run_id) == {ONE: "FAILED refused"}
        assert len(shop.writes()) == 1


@pytest.mark.by_day
def test_a_call_is_made_four_times_after_two_four_and_eight_seconds(rules_url):
    shop = PriceShop(2, 1)
    shop.trouble = always("write", lambda: Transient("503"), ONE)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        assert bench.run(run_id).status is R.PARTIAL
        assert bench.ended(run_id) == {ONE: "FAILED retries", "p0001-v0": "APPLIED"}
        calls = shop.writes(ONE)
        assert len(calls) == 4
        for waited, base in zip(seconds_between(calls), (2, 4, 8), strict=True):
            assert base * 0.8 <= waited <= base * 1.2 + 0.1
        assert bench.target(run_id, ONE).attempts == 3
        assert (f"{run_id}:{ONE}:apply:3", None) in bench.events("automation.target.apply")
        tries = ["QUEUED", "APPLYING"] * 4
        assert bench.edges("rule_target", f"{run_id}/{ONE}") == ["PREVIEW", *tries, "FAILED"]


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_call_that_works_in_the_end_says_how_often_it_was_tried(rules_url, failures):
    shop = PriceShop(1, 1)
    shop.trouble = Script("write", [Transient("503")] * failures)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        assert bench.target(run_id, ONE).status is T.APPLIED
        tried = [(f"{run_id}:{ONE}:apply:{attempt}", None) for attempt in range(failures + 1)]
        assert bench.events("automation.target.apply") == tried


def test_a_read_that_fails_is_charged_like_a_call(rules_url):
    shop = PriceShop(1, 1)
    shop.trouble = always("read", lambda: Rejected("who are you"))
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        assert bench.ended(run_id) == {ONE: "FAILED retries"}
        assert (len(shop.reads()), shop.writes()) == (4, [])


@pytest.mark.parametrize(
    "answer", [lambda: Transient("503"), lambda: Throttled("slow", 5.0), lambda: InDoubt("closed")]
)
def test_the_variants_of_a_product_are_tried_again_by_one_call(rules_url, answer):
    shop = PriceShop(1, 4)
    shop.trouble = Script("write", [answer(), answer()])
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        assert bench.run(run_id).status is R.APPLIED
        assert [len(call.variants) for call in shop.writes()] == [4, 4, 4]


def test_a_variant_that_somebody_has_set_is_left_out_of_the_call(rules_url):
    shop = PriceShop(1, 4)
    with prices(rules_url, shop) as bench:
        shop.edit(ONE, euros(555))
        bench.apply()
        assert [call.variants for call in shop.writes()] == [("p0000-v1", "p0000-v2", "p0000-v3")]


# In doubt.


def lost_before() -> InDoubt:
    return InDoubt("the connection closed")


def lost_after() -> After:
    return After(InDoubt("the connection closed"))


@pytest.mark.by_day
def test_a_lost_call_that_arrived_is_found_by_a_read(rules_url):
    shop = PriceShop(1, 2)
    shop.trouble = Script("write", [lost_after()], only=ONE)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        assert bench.run(run_id).status is R.APPLIED
        assert len(shop.writes(ONE)) == 1
        assert bench.target(run_id, ONE).change_reason == "already there"
        assert (f"{run_id}:{ONE}:apply:1", None) in bench.events("automation.target.apply")


@pytest.mark.parametrize("configured", [True, False])
def test_an_account_that_is_paused_or_gone_stops_its_gate_and_goes_on_when_it_is_back(rules_url, configured):
    with prices(rules_url, PriceShop(1, 2)) as bench:
        settings, accounts = bench.settings, bench.accounts
        bench.accounts = {}
        bench.settings = settings if configured else replace(settings, accounts={})
        run_id = bench.apply()
        ((held_by, why),) = bench.rows("SELECT held_by, held_reason FROM gate WHERE gate_id = :g", g=GATE)
        said = "is paused by the configuration" if configured else "add [rules.accounts.shop]"
        assert (held_by, said in why) == ("fatal", True)
        bench.settings, bench.accounts = settings, accounts
        bench.ledger.gates.resume(GATE, who="ada")
        bench.work()
        assert bench.run(run_id).status is R.APPLIED


def test_a_lost_call_that_did_not_arrive_is_made_again(rules_url):
    shop = PriceShop(1, 1)
    shop.trouble = Script("write", [lost_before()])
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        assert bench.ended(run_id) == {ONE: "APPLIED"}
        assert [call.kind for call in shop.calls[-4:]] == ["read", "write", "read", "write"]


def test_a_lost_call_over_which_somebody_set_another_price_is_a_conflict(rules_url):
    shop = PriceShop(1, 1)

    def trouble(kind: str, ids: Any) -> Any:
        if kind == "write":
            shop.trouble = lambda kind, _: shop.edit(ONE, euros(777)) if kind == "read" else None
            return lost_after()
        return None

    shop.trouble = trouble
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        failed = bench.target(run_id, ONE)
        assert bench.ended(run_id) == {ONE: "FAILED conflict"}
        assert failed.live_json == euros(777).as_json()
        assert failed.error == "the live price is 7.77 EUR; it was 10.00 EUR, and was to become 9.00 EUR"
        assert shop.prices[ONE] == euros(777)


def test_four_lost_calls_that_never_arrive_are_all_it_gets(rules_url):
    shop = PriceShop(1, 1)
    shop.trouble = always("write", lost_before)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=200)
        assert bench.ended(run_id) == {ONE: "FAILED retries"}
        assert len(shop.writes()) == 4
        assert shop.calls[-1].kind == "read"  # never given up unseen


@pytest.mark.parametrize("last", [lost_before, lambda: Transient("503")])
def test_lost_calls_and_failed_ones_count_together(rules_url, last):
    """However they are mixed, four calls are made and not one more."""
    shop = PriceShop(1, 1)
    answers = [lost_before(), Transient("503"), Transient("503"), last(), *[lost_before()] * 9]
    shop.trouble = Script("write", answers)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=600)
        assert bench.ended(run_id) == {ONE: "FAILED retries"}
        assert len(shop.writes()) == 4


def test_a_lost_last_call_that_arrived_is_applied(rules_url):
    shop = PriceShop(1, 1)
    shop.trouble = Script("write", [Transient("503")] * 3 + [lost_after()])
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=200)
        assert bench.ended(run_id) == {ONE: "APPLIED"}
        assert bench.target(run_id, ONE).attempts == 3


@pytest.mark.by_day
@pytest.mark.parametrize("arrived", [True, False])
def test_while_reads_fail_a_target_in_doubt_stays_for_hours(rules_url, arrived):
    shop = PriceShop(1, 1)
    blind = [False]

    def trouble(kind: str, ids: Any) -> Any:
        if kind == "read" and blind[0]:
            return Transient("the shop is away")
        if kind == "write" and not blind[0]:
            blind[0] = True
            return lost_after() if arrived else lost_before()
        return None

    shop.trouble = trouble
    with prices(rules_url, shop, look_every=timedelta(minutes=5)) as bench:
        run_id = bench.apply()
        bench.hours(5)
        doubtful = bench.target(run_id, ONE)
        assert (doubtful.status, bench.run(run_id).status) == (T.APPLYING, R.APPLYING)
        assert doubtful.in_doubt_since is not None
        assert doubtful.attempts == 3
        assert len(shop.writes()) == 1
        shop.trouble = lambda *_: None
        bench.hours(1)
        assert bench.ended(run_id) == {ONE: "APPLIED"}
        assert len(shop.writes()) == (1 if arrived else 2)


@pytest.mark.parametrize("arrived", [True, False])
def test_a_step_that_takes_too_long_is_in_doubt(rules_url, arrived):
    shop = PriceShop(1, 1)
    shop.trouble = Script("write", [Hang(takes_effect=arrived)])
    with prices(rules_url, shop, step_timeout=timedelta(seconds=30)) as bench:
        run_id = bench.start()
        bench.work(31.5, watch=0.5)
        assert bench.target(run_id, ONE).in_doubt_since is not None
        bench.work(60)
        assert bench.ended(run_id) == {ONE: "APPLIED"}
        assert len(shop.writes()) == (1 if arrived else 2)


# Throttles, outages and credentials are the gate's.


@pytest.mark.by_day
@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_throttle_waits_as_long_as_it_says_and_charges_nobody(rules_url, kind):
    shop = PriceShop(2, 1)
    shop.trouble = Script(kind, [Throttled("slow down", 25.0)])
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=120)
        assert bench.run(run_id).status is R.APPLIED
        assert {t.attempts for t in bench.targets(run_id)} == {0}
        assert any(25 <= waited <= 28 for waited in seconds_between(shop.calls[1:]))
        keys = [key for key, _ in bench.events("automation.target.apply")]
        assert keys == sorted(f"{run_id}:{one}:apply:0" for one in shop.prices)


def test_throttles_that_say_nothing_wait_16_32_and_64_seconds(rules_url):
    shop = PriceShop(1, 1)
    shop.trouble = Script("write", [Throttled("slow down") for _ in range(4)])
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=400)
        assert bench.ended(run_id) == {ONE: "APPLIED"}
        for waited, base in zip(seconds_between(shop.writes()), (16, 32, 64, 64), strict=True):
            assert base <= waited <= base * 1.1 + 1
        assert bench.events("gate.breaker") == []
        assert bench.target(run_id, ONE).attempts == 0


def test_more_than_five_throttles_open_the_breaker(rules_url):
    shop = PriceShop(1, 1)
    shop.trouble = Script("write", [Throttled("slow down", 1.0) for _ in range(6)])
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=30)
        assert [severity for _, severity in bench.events("gate.breaker")] == ["critical"]
        bench.work(120)
        assert bench.ended(run_id) == {ONE: "APPLIED"}
        assert seconds_between(shop.writes())[-1] >= 60
        assert bench.target(run_id, ONE).attempts == 0


def test_a_throttle_of_a_target_in_doubt_leaves_it_in_doubt(rules_url):
    shop = PriceShop(1, 1)
    shop.trouble = Script("write", [lost_after()])
    with prices(rules_url, shop) as bench:
        run_id = bench.start()
        bench.work(1)
        shop.trouble = Script("read", [Throttled("slow down", 30.0)])
        bench.work(10)
        doubtful = bench.target(run_id, ONE)
        assert (doubtful.status, doubtful.in_doubt_since is not None) == (T.QUEUED, True)
        bench.work(60)
        assert bench.ended(run_id) == {ONE: "APPLIED"}
        assert len(shop.writes()) == 1


def test_wrong_credentials_stop_the_account_until_it_is_resumed(rules_url):
    shop = PriceShop(3, 1)
    shop.trouble = always("read", lambda: Fatal("the token is not valid"))
    with prices(rules_url, shop) as bench:
        run_id = bench.apply(seconds=60)
        assert bench.run(run_id).status is R.APPLYING
        assert {t.attempts for t in bench.targets(run_id)} == {0}
        assert len(shop.reads()) == 1
        shop.trouble = lambda *_: None
        bench.ledger.gates.resume(GATE, "ada")
        bench.work(60)
        assert bench.run(run_id).status is R.APPLIED


# What others do.


@pytest.mark.by_day
def test_what_others_have_changed_or_deleted_is_left_alone(rules_url):
    shop = PriceShop(2, 2)
    with prices(rules_url, shop) as bench:
        shop.edit(ONE, euros(1_234))
        shop.edit(OTHER, euros(900 + 1))  # what we would have set
        shop.delete("p0001-v0")
        run_id = bench.apply()
        assert bench.run(run_id).status is R.PARTIAL
        assert bench.ended(run_id) == {
            ONE: "FAILED conflict",
            OTHER: "APPLIED",
            "p0001-v0": "FAILED deleted",
            "p0001-v1": "APPLIED",
        }
        assert shop.writes(ONE) == shop.writes(OTHER) == shop.writes("p0001-v0") == []
        assert shop.prices[ONE] == euros(1_234)


def test_excluded_targets_stay_in_the_preview(rules_url):
    shop = PriceShop(1, 3)
    with prices(rules_url, shop) as bench:
        bench.rule("few", priority=1, selector={"everything": True}, transform={"set_to": "10.00"})
        run_id = bench.apply("few")
        excluded = bench.target(run_id, ONE)
        assert (excluded.status, excluded.included, excluded.excluded_code) == (T.PREVIEW, False, "no_change")
        assert bench.run(run_id).status is R.APPLIED
        assert (bench.run(run_id).target_count, bench.run(run_id).excluded_count) == (2, 1)
        assert shop.writes(ONE) == []


@pytest.mark.parametrize(("failed", "severity"), [(0, None), (1, "warning"), (3, "critical")])
def test_a_run_that_succeeds_too_rarely_raises_one_alert(rules_url, failed, severity):
    shop = PriceShop(20, 1)
    bad = sorted(shop.prices)[:failed]
    shop.trouble = lambda kind, ids: Refuse({b: "no" for b in bad if b in ids}) if kind == "write" else None
    with prices(rules_url, shop) as bench:
        bench.rule(
            "bold", priority=1, selector={"everything": True}, transform={"percent": "-10"}, limits={"stop_at": 100}
        )
        bench.apply("bold")
        assert [found for _, found in bench.events("rules.success_rate")] == ([severity] if severity else [])


def test_nineteen_targets_say_nothing_of_the_success_rate(rules_url):
    shop = PriceShop(19, 1)
    shop.trouble = always("write", lambda: Rejected("no"))
    with prices(rules_url, shop) as bench:
        assert bench.run(bench.apply()).status is R.FAILED
        assert bench.events("rules.success_rate") == []


def test_what_the_shop_says_of_its_bucket_lowers_ours(rules_url):
    """Others may use it too, and a plan may be smaller than the configuration says."""
    shop = PriceShop(3, 2)
    shop.bucket = (40.0, 50.0)
    with prices(rules_url, shop) as bench:
        gates = bench.ledger.gates
        gates.providers = [GateLimits(GATE, (Limit("points", 100.0, 2_000.0),))]
        gates.apply()
        bench.hours(1)
        run_id = bench.apply()
        assert set(bench.ended(run_id).values()) == {"APPLIED"}
        ((rate, tokens),) = bench.rows("SELECT rate, tokens FROM gate_limit WHERE name = 'points'")
        assert rate == 50
        assert tokens <= 40
