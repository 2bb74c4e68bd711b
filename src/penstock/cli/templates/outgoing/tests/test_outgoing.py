"""The lifecycle `outgoing`: its decision as a table, its flow on virtual time over a real ledger."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from penstock import Act, Actor, Http, Ledger, Look, Ref, Throttled, Wait
from penstock.testing import KILL, Fault, InProcess, check_hands, inject, temporary_ledger, work_until_idle

from outgoing import lifecycle
from outgoing.decide import decide
from outgoing.fake import Fake
from outgoing.flow import Sending
from outgoing.machine import Item, S, machine
from outgoing.settings import OutgoingSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
USUAL = OutgoingSettings()


@pytest.mark.parametrize(
    ("item", "seen", "decision"),
    [
        ({"status": S.NEW}, None, Wait(None, "nothing to do")),
        ({"status": S.SENDING}, None, Act("send", "the API does not have it")),
        ({"status": S.SENDING, "attempts": 1}, None, Look("an earlier call may have arrived")),
        ({"status": S.SENDING, "doubts": 1}, None, Look("an earlier call may have arrived")),
        ({"status": S.SENDING, "attempts": 1}, "", Act("send", "the API does not have it")),
        ({"status": S.SENDING, "attempts": 1}, "r-1", Act("record", "the API has it as r-1", counts_attempt=False)),
    ],
)
def test_what_is_decided(item: dict[str, Any], seen: str | None, decision: object) -> None:
    assert decide(Item(item_id="1", text="hello", **item), NOW, USUAL, seen) == decision


def test_a_look_comes_first_where_the_settings_say_so() -> None:
    item = Item(item_id="1", text="hello", status=S.SENDING)
    assert isinstance(decide(item, NOW, OutgoingSettings(look_first=True), None), Look)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with temporary_ledger(lifecycle) as made:
        yield made


def flow(ledger: Ledger, fake: Fake) -> Sending:
    return Sending(USUAL, Http(USUAL.url, ledger.clock, transport=InProcess(fake)))


def born(ledger: Ledger, *texts: str) -> None:
    now = ledger.clock.now()
    items = [Item(item_id=str(number), text=text, due_at=now) for number, text in enumerate(texts, 1)]
    ledger.birth(items, actor=Actor.API, who="test")


def status(ledger: Ledger, item_id: str) -> S:
    found: S = ledger.get(Ref("outgoing", item_id)).status
    return found


def test_every_item_is_sent_once(ledger: Ledger) -> None:
    fake = Fake()
    born(ledger, "one", "two", "three")
    work_until_idle(ledger, [flow(ledger, fake)])
    assert (fake.posts, len(fake.stored)) == (3, 3)
    assert {status(ledger, item_id) for item_id in "123"} == {S.SENT}


def test_an_answer_that_was_lost_is_looked_for(ledger: Ledger) -> None:
    fake = Fake(lose_every=1)
    born(ledger, "one")
    work_until_idle(ledger, [flow(ledger, fake)])
    assert (fake.posts, status(ledger, "1")) == (1, S.SENT)


def test_what_fails_for_a_while_is_tried_again(ledger: Ledger) -> None:
    fake = Fake()
    born(ledger, "one", "two")
    work_until_idle(ledger, [inject(flow(ledger, fake), Fault("send", Throttled("too fast", 60), times=2))])
    assert len(fake.stored) == 2


def test_what_the_api_refuses_is_a_dead_letter(ledger: Ledger) -> None:
    fake = Fake()
    born(ledger, "")
    work_until_idle(ledger, [flow(ledger, fake)])
    assert status(ledger, "1") is S.FAILED


@pytest.mark.parametrize("after", [False, True])
def test_a_worker_that_is_killed_sends_nothing_twice(ledger: Ledger, after: bool) -> None:
    fake = Fake()
    born(ledger, "one")
    work_until_idle(ledger, [inject(flow(ledger, fake), Fault("send", KILL, after=after))])
    assert (fake.posts, status(ledger, "1")) == (1, S.SENT)


def test_moves_by_hand_keep_the_checks() -> None:
    assert check_hands(machine) > 0
