"""The machine: which states an item has, who moves it where, and which columns it has.

The database enforces it: no other move is possible, and every move is in the history. After a change of columns or
edges, `penstock db upgrade` brings the ledger up to it.
"""

from __future__ import annotations

from datetime import datetime

from penstock import Actor, Edge, Machine, OnError, RetryPolicy, State, Unit, done, fault, replace, rest, work


class S(State):
    """The states of an item."""

    NEW = rest("new", "not sent yet")
    SENDING = work("sending", "claimed: the call may have left")
    SENT = done("sent", "the API has it")
    FAILED = fault("failed", "the API refused it, or every try failed")


class Item(Unit):
    """One item. A field is a column; `Unit` brings the schedule, the claim and the history."""

    key = ("item_id",)
    status: S = S.NEW
    item_id: str
    text: str
    remote_id: str | None = None


def again(item: Item, now: datetime) -> Item:
    """What follows when a person sends a failed item again: its tries start anew, at once."""
    return replace(item, attempts=0, due_at=now)


machine = Machine(
    "outgoing",
    Item,
    table="outgoing_item",
    births={S.NEW: {Actor.API, Actor.OPERATOR}},
    edges=[
        # Claiming an item is itself the intent to send it: after a crash, everybody can see that a call may have left.
        Edge(S.NEW, S.SENDING, "claimed", {Actor.WORKER}, on_claim=True),
        Edge(S.SENDING, S.SENT, "accepted", {Actor.WORKER}),
        Edge(S.SENDING, S.NEW, "postponed", {Actor.WORKER}),
        Edge(S.SENDING, S.FAILED, "given_up", {Actor.WORKER}),
        Edge(S.FAILED, S.NEW, "resend", {Actor.OPERATOR}, by_hand=again),
    ],
    terminal={S.SENT},
    on_error=OnError(retry=S.NEW, dead=S.FAILED, policy=RetryPolicy(max_retries=3)),
    checks={"sent_has_remote_id": "status <> 'sent' OR remote_id IS NOT NULL"},
)
