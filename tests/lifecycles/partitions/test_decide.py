"""What a verdict makes of a state, and what is decided for an extraction: pure, so every case is tried."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.google_ads.customer import customer_digits
from penstock.lifecycles.partitions.decide import Landed, decide, judge
from penstock.lifecycles.partitions.machine import Extraction, P, PartitionState, X
from penstock.lifecycles.partitions.settings import PartitionSettings
from penstock.lifecycles.partitions.validate import Verdict
from penstock.model.errors import UsageError
from penstock.model.outcome import Act, Look, Wait
from penstock.model.unit import replace as other
from penstock.raw.paths import run_id_at
from tests.support.partitions import KEY

NOW = datetime(2026, 11, 15, tzinfo=UTC)


def run(n: int) -> str:
    return run_id_at(NOW + timedelta(hours=n))


def verdict(n: int, *, good: bool) -> Verdict:
    return Verdict(run(n), "1", 3, () if good else ("it is bad",))


def unit(status: X, **columns) -> Extraction:
    return Extraction(
        source="google_ads", customer_id="1", query_name="q", logical_date=KEY.logical_date, status=status, **columns
    )


@pytest.mark.parametrize(
    ("found", "seen", "expected"),
    [
        (unit(X.EXTRACTING), None, Act("begin", "", counts_attempt=False)),
        (unit(X.EXTRACTING, run_id="r"), None, Act("extract", "")),
        (unit(X.EXTRACTING, run_id="r", attempts=1), None, Look("")),
        (unit(X.EXTRACTING, run_id="r", doubts=1), None, Look("")),
        (unit(X.EXTRACTING, run_id="r", doubts=1), Landed(None), Act("extract", "")),
        (unit(X.EXTRACTING, run_id="r", doubts=1), Landed(0), Act("record", "", counts_attempt=False)),
        (unit(X.LANDED, run_id="r"), None, Act("judge", "", counts_attempt=False)),
        (unit(X.WANTED), None, Wait(None, "")),
        (unit(X.DONE, run_id="r"), None, Wait(None, "")),  # nobody configures it
        (unit(X.FAILED), None, Wait(None, "")),
    ],
)
def test_what_is_decided(found, seen, expected):
    decision = decide(found, NOW, PartitionSettings(), seen)
    assert decision.reason
    assert type(decision) is type(expected)
    if isinstance(decision, Act):
        assert isinstance(expected, Act)
        assert (decision.what, decision.counts_attempt) == (expected.what, expected.counts_attempt)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12), st.booleans())
def test_an_older_run_never_replaces_a_newer_one(runs, keep):
    """Whatever order runs are judged in: the checks of the table hold, and the authoritative run only gets newer."""
    state: PartitionState | None = None
    for n, good in runs:
        before = state
        judged = judge(KEY, state, verdict(n, good=good), NOW, keep_last_good=keep)
        state = judged.after
        if before is not None and before.current_run_id is not None:
            assert state.current_run_id is not None
            assert state.current_run_id >= before.current_run_id
        if state.status is P.SUCCESS:
            assert state.current_run_id is not None
            assert state.record_count is not None
            assert not state.error_message
        else:
            assert state.status is P.FAILED
            assert state.current_run_id is not None
            assert state.error_message
            assert state.attempt_count >= 1
        if keep and before is not None and before.status is P.SUCCESS and before.current_run_id != run(n):
            assert state.status is P.SUCCESS
        assert state.attempt_count == (0 if before is None else before.attempt_count) + 1


def test_a_bad_rerun_fails_a_good_partition_unless_the_last_good_is_kept():
    good = judge(KEY, None, verdict(1, good=True), NOW).after
    failed = judge(KEY, good, verdict(2, good=False), NOW)
    assert (failed.verdict, failed.after.status, failed.after.current_run_id) == ("failed", P.FAILED, run(2))
    kept = judge(KEY, good, verdict(2, good=False), NOW + timedelta(hours=1), keep_last_good=True)
    assert kept.verdict == "kept"
    assert (kept.after.status, kept.after.current_run_id, kept.after.attempt_count) == (P.SUCCESS, run(1), 2)
    assert kept.after.updated_at == NOW, "the state was not written"


def test_the_good_run_itself_is_not_kept_when_it_turns_out_bad():
    good = judge(KEY, None, verdict(1, good=True), NOW).after
    again = judge(KEY, good, verdict(1, good=False), NOW, keep_last_good=True, evaluated=True)
    assert (again.verdict, again.after.status, again.after.attempt_count) == ("failed", P.FAILED, 1)


def test_a_named_person_may_point_at_an_older_run():
    newer = judge(KEY, None, verdict(5, good=True), NOW).after
    assert judge(KEY, newer, verdict(1, good=True), NOW).verdict == "older"
    pointed = judge(KEY, newer, verdict(1, good=True), NOW, pointed_by="anna (bad day)")
    assert (pointed.verdict, pointed.after.current_run_id) == ("success", run(1))
    assert "anna (bad day)" in pointed.reason


def test_after_a_reset_any_run_may_come():
    reset = other(judge(KEY, None, verdict(5, good=True), NOW).after, status=P.PENDING, current_run_id=None)
    assert judge(KEY, reset, verdict(1, good=True), NOW).after.current_run_id == run(1)


@given(st.integers(1, 10**12).map(str), st.lists(st.integers(0, 12), max_size=4))
def test_hyphens_are_removed_from_a_customer_id(digits, places):
    text = digits
    for place in places:
        text = f"{text[:place]}-{text[place:]}"
    assert customer_digits(text) == digits


@pytest.mark.parametrize("text", ["", "-", "12a", "١٢٣", "1.5", "../1", "1 2"])
def test_anything_else_is_not_a_customer_id(text):
    with pytest.raises(UsageError, match="is not a customer id"):
        customer_digits(text)
