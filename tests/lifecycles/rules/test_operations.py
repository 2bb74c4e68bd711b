"""What people do to runs: preview, approve, queue, pause, resume and cancel, each by legal edges or not at all."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from penstock.lifecycles.rules.run.machine import Mode, R, rule_run
from penstock.lifecycles.rules.target.machine import rule_target
from penstock.model.errors import PlanChanged, Transient, UnknownUnit, UsageError
from penstock.model.unit import unit_id_of
from penstock.operations.carry import carry_out, check_digest, make_plan
from penstock.testing import check_hands
from tests.support.price_shop import PriceShop, always, euros
from tests.support.prices import START
from tests.support.rules import Desk, desk

ENDLESS = timedelta(days=3650)


def test_the_declaration_is_light():
    """Help reads it: no database driver, no client, no event loop."""
    heavy = ("sqlalchemy", "psycopg", "pysqlite3", "aiohttp", "asyncio", "rich", "structlog")
    code = f"import sys, penstock.lifecycles.rules; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_only_a_failed_target_is_moved_by_hand():
    assert check_hands(rule_run) == 0
    assert check_hands(rule_target) > 0


def test_a_preview_is_a_run_that_sends_nothing_until_it_is_queued(ledger_url):
    with desk(ledger_url) as at:
        planned = at.plan("preview", rule="cut", reason="")
        assert planned.preview.says == "preview cut (version 1) for shop"
        assert at.together("preview", rule="cut").harmless
        run = at.preview()
        assert (run.status, run.target_count, run.needs_approval) == (R.PREVIEW, 4, False)
        assert run.metadata == {"actor": "ada", "correlationId": str(run.id), "source": "operator"}
        assert at.bench.shop.writes() == []
        planned = at.plan("queue", run=str(run.id)[:8])
        assert planned.preview.says == "set 4 prices of shop by cut"
        assert not at.together("queue", run=str(run.id)).harmless
        at.do("queue", run=str(run.id)[:8], preview_digest=str(run.preview_digest)[:12])
        assert at.bench.hands("rule_run", run.unit_id, "QUEUED") == ["api:ada"]
        at.bench.work(30)
        assert at.run(str(run.id)).status is R.APPLIED
        assert at.bench.shop.prices["p0000-v0"] == euros(900)


def test_a_plan_of_one_request_is_the_same_plan_and_another_request_has_its_digest(ledger_url):
    with desk(ledger_url) as at:
        ids = [unit_id_of(at.together("preview", rule="cut").births[0].unit) for _ in range(2)]
        assert ids[0] != ids[1]
        first, second = at.plan("preview", rule="cut"), at.plan("preview", rule="cut")
        check_digest(second, first.preview.digest)
        with pytest.raises(PlanChanged):
            check_digest(at.plan("preview", rule="cut", queue=True), first.preview.digest)


def test_what_cannot_be_previewed_is_refused(ledger_url):
    with desk(ledger_url) as at:
        at.refused("preview", "no rule is called 'cit'; did you mean cut", rule="cit")
        at.refused("preview", "no rule is called 'spring'; there are cut", rule="spring")
        at.bench.rule("old", active=False, selector={"everything": True}, transform={"percent": "-5"})
        at.refused("preview", "'old' is not active", rule="old")
        now = at.bench.time.now()
        end = now + timedelta(hours=1)
        at.refused("preview", "is before its start", rule="cut", start_at=now + timedelta(hours=2), end_at=end)
        at.refused("preview", "is in the past", rule="cut", end_at=now - timedelta(hours=1))
        at.refused("preview", "has no time zone", rule="cut", end_at=end.replace(tzinfo=None))
        with pytest.raises(UsageError, match="rules cancel needs a reason"):
            at.plan("cancel", run="x", reason=" ")


def test_a_catalogue_that_was_never_read_whole_cannot_be_previewed(ledger_url):
    with desk(ledger_url) as at:
        at.bench.ledger.database.write(lambda cursor: cursor.run("DELETE FROM catalogue_reading"))
        at.refused("preview", "never read whole; 'penstock schedules run catalogue-shop'", rule="cut")


def test_runs_are_named_by_the_beginning_of_their_ids(ledger_url):
    with desk(ledger_url) as at:
        run = at.preview()
        assert at.read("show", run=f"rule_run:{run.id}").run_id == str(run.id)
        for _ in range(17):  # of so many, two begin with the same digit
            at.do("preview", rule="cut")
        first = sorted(str(one.id)[0] for one in at.bench.runs())
        twice = next(one for one in first if first.count(one) > 1)
        at.refused("queue", f"more than one run begins with '{twice}'", run=twice)
        with pytest.raises(UnknownUnit, match="no run 'nonesuch' in the ledger"):
            at.plan("queue", run="nonesuch")
        with pytest.raises(UnknownUnit):
            at.plan("queue", run="")
        at.bench.work(5)


def test_queueing_is_bound_to_what_was_shown(ledger_url):
    with desk(ledger_url) as at:
        run = at.preview()
        at.refused("queue", "has the digest .* not 0000", run=str(run.id), preview_digest="0000")
        at.bench.shop.prices["p0000-v0"] = euros(1_234)
        at.bench.shop.delete("p0001-v1")
        at.bench.read_catalogue()
        at.refused(
            "queue", "the catalogue has moved .*: 2 targets differ; 'penstock rules preview cut'", run=str(run.id)
        )
        again = at.preview()
        assert again.target_count == 3
        at.do("queue", run=str(again.id))
        at.bench.work(30)
        assert at.run(str(again.id)).status is R.APPLIED
        assert at.bench.shop.prices["p0000-v0"] == euros(1_111)


def test_a_lock_and_another_rule_move_the_preview_too(ledger_url):
    with desk(ledger_url) as at:
        run = at.preview()
        at.do("lock", skus=("SKU-p0000-v0",), account="shop")
        at.refused("queue", "1 target differs", run=str(run.id))
        at.do("unlock", skus=("SKU-p0000-v0",), account="shop")
        at.configure(first={"selector": {"skus": ["SKU-p0001-v0"]}, "transform": {"set_to": "5.00"}, "priority": 1})
        at.do("import")
        at.refused("queue", "1 target differs", run=str(run.id))


def test_a_rule_that_has_changed_since_is_previewed_again(ledger_url):
    with desk(ledger_url) as at:
        at.configure(sale={"selector": {"everything": True}, "transform": {"percent": "-20"}, "priority": 1})
        run = at.preview("sale")
        at.configure(sale={"selector": {"everything": True}, "transform": {"percent": "-30"}, "priority": 1})
        at.do("import")
        at.refused("queue", "previewed with version 1, and 2 is in force", run=str(run.id))
        at.configure()
        at.do("import")
        at.refused("queue", "'sale' is no longer in force", run=str(run.id))
        at.refused("preview", "no rule is called 'sale'", rule="sale")


def test_limits_refuse_with_the_number_that_broke_them(ledger_url):
    with desk(ledger_url) as at:
        limits = {"most_targets": 3, "most_percent": 40, "most_share": 50}
        at.bench.rule("deep", selector={"everything": True}, transform={"percent": "-60"}, limits=limits, priority=1)
        run = at.preview("deep")
        for number in ("4 targets are more than most_targets, 3", "most_percent, 40 %", r"4 of 4 items \(100.00 %\)"):
            at.refused("queue", number, run=str(run.id))
        shown = at.read("show", run=str(run.id))
        assert len(shown.preview.refused) == 3
        assert shown.next == "penstock rules preview deep, once the rule or its limits are changed"


def test_a_rule_that_means_nothing_is_shown_and_not_queued(ledger_url):
    with desk(ledger_url) as at:
        at.bench.rule("none", selector={"tags": ["unheard-of"]}, transform={"percent": "-10"})
        run = at.preview("none")
        assert run.target_count == 0
        at.refused("queue", "the rule means none of the 4 items", run=str(run.id))
        at.bench.rule("gone", selector={"skus": ["SKU-p0000-v0", "NO-SUCH"]}, transform={"percent": "-10"})
        run = at.preview("gone")
        at.refused("queue", "does not have 1 of the rule's SKUs: NO-SUCH", run=str(run.id))
        # One that was to be queued at once stays a preview, and says why.
        run = at.preview("none", queue=True)
        assert (run.status, run.queue_when_ready) == (R.PREVIEW, False)
        assert run.error == "the rule means none of the 4 items"


def test_a_large_run_is_approved_by_another_person(ledger_url):
    with desk(ledger_url, approve_above=3) as at:
        run = at.preview()
        name = str(run.id)[:8]
        assert run.needs_approval
        (need,) = at.needs()
        assert (need.who, need.command) == ("you", f"penstock rules approve {name}")
        assert need.act[0].given == {"run": name, "preview_digest": run.preview_digest}
        at.refused("queue", f"another person than ada must approve it, with 'penstock rules approve {name}'", run=name)
        at.refused("approve", "was asked for by ada; another person must approve it", run=name)
        at.refused("approve", "was asked for by ada; another person must approve it", run=name, who="ada (token)")
        at.refused("approve", "not beef", run=name, who="bob", preview_digest="beef")
        at.do("approve", run=name, who="bob", reason="seen")
        assert (at.run(str(run.id)).approved_by, at.run(str(run.id)).approved_at) == ("bob", at.bench.time.now())
        log = "SELECT actor, from_status, to_status, reason FROM transition_log WHERE unit_id = :u ORDER BY seq"
        assert at.bench.rows(log, u=run.unit_id)[-1] == ("operator:bob", "PREVIEW", "PREVIEW", "seen")
        at.refused("approve", "approved by bob already", run=name, who="bob")
        assert at.needs()[0].command.startswith(f"penstock rules queue {name} --preview-digest ")
        at.do("queue", run=name)
        assert at.needs() == []
        at.bench.work(30)
        assert at.run(str(run.id)).status is R.APPLIED
        at.refused("approve", "only a preview is approved", run=name, who="bob")


def test_a_small_run_needs_no_approval_and_a_preview_under_way_none_yet(ledger_url):
    with desk(ledger_url) as at:
        run = at.preview()
        at.refused("approve", "needs no approval", run=str(run.id), who="bob")
        waiting = str(at.do("preview", rule="cut").follows).partition(":")[2]
        at.refused("queue", "is not complete", run=waiting)
        at.bench.work(5)


def test_a_sale_starts_and_ends_when_it_was_told_to(ledger_url):
    with desk(ledger_url) as at:
        start, end = START + timedelta(hours=1), START + timedelta(hours=3)
        run = at.queued(start_at=start, end_at=end)
        at.bench.work(1800)
        assert at.run(str(run.id)).status is R.QUEUED
        assert at.read("show", run=str(run.id)).waits == "waits for its start"
        at.bench.hours(1)
        assert at.run(str(run.id)).status is R.APPLIED
        at.bench.hours(2)
        assert at.run(str(run.id)).status is R.ROLLED_BACK
        assert at.bench.shop.prices["p0000-v0"] == euros(1_000)


def test_a_sale_that_is_over_is_not_queued(ledger_url):
    with desk(ledger_url) as at:
        run = at.preview(end_at=START + timedelta(hours=1))
        at.bench.work(7200)
        at.refused("queue", "which has passed; preview it again", run=str(run.id))


def test_a_run_is_paused_and_goes_on(ledger_url):
    with desk(ledger_url) as at:
        run = at.queued()
        at.do("pause", run=str(run.id), reason="lunch")
        at.refused("pause", "is paused already, by ada: lunch", run=str(run.id))
        at.bench.work(60)
        paused = at.run(str(run.id))
        assert (paused.status, paused.mode, paused.mode_reason) == (R.QUEUED, Mode.PAUSED, "lunch")
        assert at.read("show", run=str(run.id)).waits == "paused by ada: lunch"
        assert at.bench.shop.writes() == []
        at.do("resume", run=str(run.id), reason="")
        at.bench.work(60)
        assert at.run(str(run.id)).status is R.APPLIED
        at.refused("resume", "has ended as APPLIED; it cannot be resumed", run=str(run.id))


def test_an_applying_run_is_paused_between_its_calls(ledger_url):
    with desk(ledger_url, PriceShop(6, 1)) as at:
        at.bench.shop.trouble = always("write", lambda: Transient("away"), "p0003-v0")
        run = at.queued()
        at.bench.work(1)
        at.do("pause", run=str(run.id))
        at.bench.work(60)
        assert (at.run(str(run.id)).status, at.run(str(run.id)).applied_count) == (R.APPLYING, 5)
        calls = len(at.bench.shop.writes("p0003-v0"))
        at.bench.work(120)
        assert len(at.bench.shop.writes("p0003-v0")) == calls
        at.bench.shop.trouble = lambda *_: None
        at.do("resume", run=str(run.id))
        at.bench.work(60)
        assert at.run(str(run.id)).status is R.APPLIED


def test_a_cancelled_run_that_waits_for_its_start_ends_at_once(ledger_url):
    with desk(ledger_url) as at:
        run = at.queued(start_at=START + timedelta(days=9))
        at.do("cancel", run=str(run.id), reason="a typing error")
        at.refused("cancel", "is being ended already: cancelled by ada: a typing error", run=str(run.id))
        at.refused("resume", "is halting, not paused", run=str(run.id))
        at.bench.work(30)
        ended = at.run(str(run.id))
        assert (ended.status, ended.failed_count, ended.target_count) == (R.FAILED, 4, 4)
        assert ended.error == "0 applied, 4 failed, of 4; stopped: cancelled by ada: a typing error"
        assert {t.cause for t in at.bench.targets(run.id)} == {"halted"}
        assert at.bench.shop.writes() == []
        at.refused("cancel", "has ended as FAILED", run=str(run.id))


def test_a_cancelled_run_behind_another_one_ends_without_waiting_for_it(ledger_url):
    with desk(ledger_url, PriceShop(3, 1)) as at:
        at.bench.shop.trouble = always("write", lambda: Transient("away"))
        first = at.queued()
        at.do("pause", run=str(first.id))
        at.do("resume", run=str(first.id))
        at.bench.work(1)
        at.do("pause", run=str(first.id))
        second = at.queued()
        at.bench.work(10)
        assert at.run(str(first.id)).status is R.APPLYING
        waits = at.read("show", run=str(second.id)).waits
        assert waits == f"run {first.id} of shop is applying; this one waits for it"
        at.do("cancel", run=str(second.id))
        at.bench.work(30)
        assert (at.run(str(second.id)).status, at.run(str(second.id)).failed_count) == (R.FAILED, 3)
        assert at.run(str(first.id)).status is R.APPLYING
        # It never had the lane, and leaves it to the first.
        assert at.bench.rows("SELECT status, run_id FROM rule_lane")[0][0] == "TAKEN"
        at.bench.shop.trouble = lambda *_: None
        at.do("resume", run=str(first.id))
        at.bench.work(60)
        assert at.run(str(first.id)).status is R.APPLIED


def test_a_preview_is_neither_paused_nor_cancelled(ledger_url):
    with desk(ledger_url) as at:
        run = at.preview()
        for name in ("pause", "cancel", "resume"):
            at.refused(name, "is a preview, which sends nothing", run=str(run.id))


def test_a_run_that_changed_meanwhile_is_looked_at_again(ledger_url):
    with desk(ledger_url) as at:
        run = at.queued()
        planned = at.plan("pause", run=str(run.id))
        at.bench.work(60)
        assert at.run(str(run.id)).status is R.APPLIED
        with pytest.raises(UsageError, match="has ended as APPLIED"):
            carry_out(at.bench.ledger, at.ask(), planned)


def _plan_queue(at: Desk, run: Any) -> Any:
    operation = at.plan("queue", run=str(run.id)).operation
    return make_plan(operation, at.ask("bob"), operation.parameters(run=str(run.id)), owner="rules", version="v1")


def test_of_two_people_who_queue_one_does(ledger_url):
    with desk(ledger_url) as at:
        run = at.preview()
        first, second = _plan_queue(at, run), _plan_queue(at, run)
        assert carry_out(at.bench.ledger, at.ask("bob"), first).count == 1
        with pytest.raises(UsageError, match="is QUEUED; only a preview is queued"):
            carry_out(at.bench.ledger, at.ask("bob"), second)
        at.bench.work(30)
