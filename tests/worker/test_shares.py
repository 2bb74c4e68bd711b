"""Who has how much of a claim: machines that have work share the room, and the others are asked now and then."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.model.clock import VirtualClock
from penstock.worker.shares import Shares


def made() -> tuple[Shares, VirtualClock]:
    clock = VirtualClock(datetime(2026, 11, 18, tzinfo=UTC))
    return Shares(["a", "b", "c", "d"], clock), clock


def test_at_first_all_have_equal_shares() -> None:
    shares, _ = made()
    assert shares.of(10) == [{"a": 3, "b": 3, "c": 3, "d": 3}]


def test_one_that_had_work_has_the_room_of_those_that_had_none() -> None:
    shares, clock = made()
    shares.noted({"a": 3, "b": 3, "c": 3, "d": 3}, {"a"})
    assert shares.of(10)[0] == {"a": 10}
    clock.advance(0.1)
    assert shares.of(10) == [{"a": 7, "b": 1, "c": 1, "d": 1}, {"a": 3, "b": 3, "c": 3, "d": 3}]


def test_one_that_has_work_again_shares_at_once() -> None:
    shares, clock = made()
    shares.noted({"a": 3, "b": 3, "c": 3, "d": 3}, {"a"})
    clock.advance(0.1)
    shares.noted({"a": 7, "b": 1, "c": 1, "d": 1}, {"a", "d"})
    assert shares.of(10)[0] == {"a": 5, "d": 5}


def test_where_none_had_any_all_are_asked() -> None:
    shares, _ = made()
    shares.noted({"a": 3, "b": 3, "c": 3, "d": 3}, set())
    assert shares.of(2) == [{"a": 1, "b": 1, "c": 1, "d": 1}]


def test_a_machine_that_takes_no_more_is_not_called_empty() -> None:
    shares, _ = made()
    shares.noted({"a": 3, "b": 0, "c": 3, "d": 3}, {"a", "c", "d"})
    assert shares.of(8) == [{"a": 2, "b": 2, "c": 2, "d": 2}]
