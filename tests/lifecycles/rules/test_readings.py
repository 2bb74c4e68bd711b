"""What people see: previews, targets page by page, dead letters with advice, prices of a SKU, metrics and alerts."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from penstock.cli.render import Showing, answer_lines, csv_lines
from penstock.cli.terminal import Screen
from penstock.lifecycles.rules import readings
from penstock.lifecycles.rules.definition import read_rule
from penstock.lifecycles.rules.describe import described
from penstock.lifecycles.rules.run.machine import Kind, R
from penstock.lifecycles.rules.target.machine import T
from penstock.model.errors import Rejected, Transient, UnknownUnit
from penstock.model.unit import Ref
from penstock.operations.answers import json_text
from penstock.operations.why import explain
from tests.support.price_shop import PriceShop, always, euros
from tests.support.rules import Desk, desk


def text_of(at: Desk, answer: object) -> str:
    return "\n".join(answer_lines(answer, Showing(Screen(), at.bench.time.now())))


@pytest.mark.by_day
def test_a_preview_shows_totals_the_largest_changes_and_what_is_left_out(ledger_url):
    with desk(ledger_url, PriceShop(3, 2, price=lambda n: 1_000 * (n + 1))) as at:
        at.do("lock", skus=("SKU-p0002-v1",), account="shop")
        at.bench.rule(
            "round",
            selector={"everything": True},
            transform={"amount": "-3.33"},
            rounding={"ending": ".99"},
            priority=1,
        )
        run = at.preview("round")
        shown = at.read("show", run=str(run.id))
        seen = shown.preview
        assert (shown.targets, seen.excluded, seen.falls, seen.rises) == (5, 1, 5, 0)
        assert (seen.before, seen.after) == ("150.00 EUR", "134.95 EUR")
        assert [(c.sku, c.before, c.after, c.change) for c in seen.largest_falls[:2]] == [
            ("SKU-p0000-v0", "10.00", "6.99", "-30.10 %"),
            ("SKU-p0000-v1", "20.00", "16.99", "-15.05 %"),
        ]
        assert shown.next == f"penstock rules queue {shown.run} --preview-digest {str(run.preview_digest)[:12]}"
        lines = text_of(at, shown)
        for said in ("before:", "150.00 EUR", "-30.10 %", "largest falls:", "locked", shown.next):
            assert said in lines
        assert msgspec.json.decode(json_text(shown))["preview"]["digest"] == run.preview_digest


def test_targets_come_page_by_page_and_by_what_became_of_them(ledger_url):
    with desk(ledger_url, PriceShop(5, 1)) as at:
        at.do("lock", skus=("SKU-p0004-v0",), account="shop")
        at.bench.shop.trouble = always("write", lambda: Rejected("no"), "p0001-v0")
        run = at.applied(seconds=30)
        first = at.read("targets", run=str(run.id), limit=3)
        assert ([row.variant for row in first.rows], first.next) == (["p0000-v0", "p0001-v0", "p0002-v0"], "p0002-v0")
        assert first.counts == {"APPLIED": 3, "FAILED": 1, "PREVIEW": 1}
        rest = at.read("targets", run=str(run.id), limit=3, after=first.next)
        assert ([row.variant for row in rest.rows], rest.next) == (["p0003-v0", "p0004-v0"], None)
        (failed,) = at.read("targets", run=str(run.id), failed=True).rows
        assert (failed.sku, failed.status, failed.cause) == ("SKU-p0001-v0", T.FAILED, "refused")
        (locked,) = at.read("targets", run=str(run.id), excluded=True).rows
        assert (locked.excluded, locked.after, locked.why) == ("locked", None, "its SKU is locked")
        applied = at.read("targets", run=str(run.id), status=T.APPLIED)
        first = applied.rows[0]
        assert (first.before, first.after, first.change) == ("10.00 EUR", "9.00 EUR", "-10.00 %")
        lines = list(csv_lines(applied, readings.TargetRow, safe=False))
        assert lines[0].startswith("sku,status,before,after,change,why,variant")
        assert "1000,,900," in lines[1]
        assert (
            at.read("targets", run=str(run.id), status=T.ROLLED_BACK).note
            == f"run {run.unit_id[:8]} has no such targets"
        )


def test_why_counts_the_targets_of_a_run(ledger_url):
    with desk(ledger_url) as at:
        run = at.applied(seconds=30)
        found = explain(at.bench.ledger, "this program has no flow for it", Ref("rule_run", run.unit_id))
        (children,) = [link.says for link in found.links if link.topic == "children"]
        assert children == "4 of 4 rule_target units have ended; the last one wakes it"


def test_runs_are_listed_by_rule_account_and_state(ledger_url):
    with desk(ledger_url) as at:
        done = at.applied(seconds=30)
        at.bench.rule("other", selector={"skus": ["SKU-p0000-v0"]}, transform={"percent": "-1"}, priority=1)
        at.bench.work(1)
        shown = at.preview("other")
        assert [row.run_id for row in at.read("runs").rows] == [str(shown.id), str(done.id)]
        assert [row.run_id for row in at.read("runs", rule="cut").rows] == [str(done.id)]
        assert [row.run_id for row in at.read("runs", status=R.PREVIEW).rows] == [str(shown.id)]
        assert at.read("runs", account="nowhere").rows == []
        assert len(at.read("runs", limit=1).rows) == 1
        with pytest.raises(UnknownUnit, match="no rule is called 'othr'; did you mean other"):
            at.read("runs", rule="othr")
        rows = {row.rule: (row.version, row.last_status, row.does) for row in at.read("list").rows}
        assert rows == {
            "cut": (1, R.APPLIED, "-10 %: everything"),
            "other": (1, R.PREVIEW, "-1 %: SKU SKU-p0000-v0"),
        }


def test_a_run_under_way_says_how_fast_it_goes_and_when_it_ends(ledger_url):
    with desk(ledger_url, PriceShop(8, 1)) as at:
        at.bench.shop.trouble = always("write", lambda: Transient("away"), "p0007-v0")
        run = at.queued()
        at.bench.work(7)
        shown = at.read("show", run=str(run.id))
        assert (shown.status, shown.applied) == (R.APPLYING, 7)
        assert shown.progress.rate == pytest.approx(1.0, rel=0.01)
        assert shown.progress.says == "7 of 8 set, 0 failed, 1.0 a second"
        assert abs(shown.progress.ends_at - at.bench.time.now() - timedelta(seconds=1)) < timedelta(seconds=0.1)
        assert shown.waits == "7 of 8 applied, 0 failed"
        assert shown.next == f"penstock rules show {shown.run} --watch"
        at.bench.work(60)
        shown = at.read("show", run=str(run.id))
        assert (shown.status, shown.progress.rate, shown.failed) == (R.PARTIAL, None, 1)
        assert shown.next == f"penstock rules targets {shown.run} --failed, then penstock rules retry {shown.run}"


@pytest.mark.by_day
def test_dead_letters_are_counted_by_cause_with_what_to_do(ledger_url):
    with desk(ledger_url, PriceShop(4, 1)) as at:
        assert at.read("dead").note == "no dead letters"
        run = at.preview()
        at.bench.shop.edit("p0000-v0", euros(777))
        at.bench.shop.delete("p0001-v0")
        at.bench.shop.trouble = always("write", lambda: Rejected("too low"), "p0002-v0")
        at.do("queue", run=str(run.id))
        at.bench.work(60)
        rows = {row.cause: (row.count, row.advice.split(";")[-1].strip()) for row in at.read("dead").rows}
        assert rows == {
            "conflict": (1, "look at it, then preview the rule again or dismiss it"),
            "deleted": (1, "dismiss it"),
            "refused": (1, "change the rule and preview it again"),
        }
        assert at.read("dead", run=str(run.id)[:8]).rows == at.read("dead").rows
        report = at.read("drain")
        assert report.counts == {"conflict": 1, "deleted": 1, "refused": 1}
        assert [(row.sku, row.cause, row.live) for row in report.rows] == [
            ("SKU-p0000-v0", "conflict", "7.77 EUR"),
            ("SKU-p0001-v0", "deleted", None),
            ("SKU-p0002-v0", "refused", None),
        ]
        assert len(list(csv_lines(report, type(report.rows[0]), safe=False))) == 4
        # Those of a run that was rolled back are dead letters no more.
        at.bench.shop.trouble = lambda *_: None
        at.do("rollback", run=str(run.id))
        at.bench.work(30)
        assert at.read("drain").rows == []


@pytest.mark.by_day
def test_every_price_of_a_sku_is_told_with_who_and_why(ledger_url):
    with desk(ledger_url) as at:
        run = at.applied(seconds=30)
        at.do("rollback", run=str(run.id), who="bob")
        at.bench.work(30)
        rows = at.read("history", sku="SKU-p0000-v0").rows
        assert [(r.before, r.after, r.rule, r.kind, r.by, r.rolled_back) for r in rows] == [
            ("9.00 EUR", "10.00 EUR", "cut", Kind.ROLLBACK, "bob", False),
            ("10.00 EUR", "9.00 EUR", "cut", Kind.APPLY, "ada", True),
        ]
        assert at.read("history", sku="SKU-p0000-v0", account="shop").rows == rows
        with pytest.raises(UnknownUnit, match="no catalogue has the SKU 'NO-SUCH'"):
            at.read("history", sku="NO-SUCH")


def test_a_sku_that_was_never_set_has_no_history(ledger_url):
    with desk(ledger_url) as at:
        assert at.read("history", sku="SKU-p0000-v0").note == "no run has ever set the price of SKU-p0000-v0"


@pytest.mark.by_day
def test_metrics_have_values_and_alerts_fire(ledger_url):
    with desk(ledger_url, PriceShop(30, 1)) as at:
        at.bench.shop.trouble = lambda kind, ids: (
            Rejected("no") if kind == "write" and ids[0] in ("p0001-v0", "p0002-v0") else None
        )
        at.applied()
        values = {row.metric: row.value for row in at.read("metrics").rows}
        assert values["rules.apply.count"] == 28
        assert values["rules.apply.success_rate"] == pytest.approx(28 / 30)
        assert (values["rules.dlq.size"], values["rules.429.count"]) == (2, 0)
        assert len(values) == 6
        firing = {row.alert: (row.severity, row.firing) for row in at.read("alerts").rows}
        assert [name for name, (_, fires) in firing.items() if fires] == ["Low Success Rate"]
        assert len(firing) == 5


def test_reports_are_named_by_the_beginning_of_their_ids(ledger_url):
    with desk(ledger_url) as at:
        assert at.read("reports").rows == []
        at.applied(seconds=120)
        (row,) = at.read("reports").rows
        assert msgspec.to_builtins(at.read("report", report=row.report_id[:10]))["totalChecked"] == 4
        for unknown in ("nonesuch", ""):
            with pytest.raises(UnknownUnit, match="no report"):
                at.read("report", report=unknown)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"transform": {"percent": "-10"}, "selector": {"tags": ["ring", "gold"]}}, "-10 %: tag ring or gold"),
        (
            {
                "transform": {"amount": "2.50"},
                "selector": {"vendors": ["Acme"], "price_at_least": "10"},
                "rounding": {"ending": ".99"},
                "floor": {"amount": "5.00"},
                "ceiling": "90",
            },
            "+2.5 EUR, to .99, at least 5, at most 90: vendor Acme and price from 10",
        ),
        (
            {"transform": {"set_to": "9"}, "selector": {"skus": list("abcde")}},
            "set to 9 EUR: SKU a or b or c and 2 more",
        ),
        (
            {
                "transform": {"beat_by_percent": "2"},
                "selector": {"where": "margin > 3"},
                "floor": {"cost_factor": "1.3"},
            },
            "2 % below the reference, with a floor: margin > 3",
        ),
        ({"transform": {"prices": {"A": {"price": "1"}}}}, "listed prices: the SKUs that it lists"),
    ],
)
def test_a_rule_is_described_in_a_few_words(document, said):
    rule = read_rule({"name": "x", "account": "shop", "currency": "EUR", **document})
    assert described(rule) == said
