"""Which change of a unit is foreign: one that leaves `version` alone and is neither a wake-up nor a tally.

Every claim and commit of Penstock raises `version`. What it writes beside them names itself by a count that rises with
it: a wake-up changes the schedule and raises `wakes`, a tally changes counters and raises `tallies`. A person's wake-up
also says who and why, and leaves the version alone too, so that whoever holds the unit keeps it.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.model.machine import Actor, Machine

Same = Callable[[str], str]
"""The condition under which a column is as it was, in the words of one database."""
_MARKS = frozenset({"version", "wakes"})
_SAID = ("changed_by", "change_reason", "changed_at")
HANDS = tuple(sorted(set(Actor) - {Actor.WORKER}))
"""Those whose every change is in the history. A worker's is where it changes the state or a tracked column."""


def watched(machine: Machine) -> list[str]:
    """The columns that a stranger can change: not what lasts, which is refused, nor what the database computes."""
    left = {"unit_id", *machine.lasting, *machine.generated(), *_MARKS}
    return [machine.column(name) for name in machine.columns if name not in left]


def as_it_was(machine: Machine, same: Same) -> str:
    """The condition under which an update that leaves `version` alone is not foreign."""
    marks = dict.fromkeys(machine.counters, "tallies")
    if machine.driven:
        marks |= dict.fromkeys((machine.due, *_SAID), "wakes")
    return " AND ".join(f"({same(c)} OR NOT {same(marks[c])})" if c in marks else same(c) for c in watched(machine))


def by_hand(machine: Machine, same: Same, by: str, who: str) -> str:
    """The condition under which a change was made by somebody who is not a worker.

    `by` is the new row's `changed_by`, and `who` the word before its colon.

    A claim leaves the last word to whoever changed the unit before: nothing that was said is new then. What the same
    hand says again for the same reason in the same millisecond is one change.
    """
    marks = ("version", "wakes") if machine.driven else ("version",)
    new = " OR ".join(f"NOT {same(c)}" for c in ("changed_at", "changed_by", "change_reason", "last_action"))
    marked = " OR ".join(f"NOT {same(c)}" for c in marks)
    hands = ", ".join(f"'{hand}'" for hand in HANDS)
    # Compared first, because every commit of a worker comes this far: the word need not be cut out of what it wrote.
    nobody = f"{by} >= '{Actor.WORKER}:' AND {by} < '{Actor.WORKER};'"
    return f"(NOT ({nobody}) AND ({new}) AND ({marked}) AND {who} IN ({hands}))"


def reason(machine: Machine, same: Same, named: Callable[[dict[str, str]], str], typed: str) -> str:
    """What the history says of a foreign change: the reason that was typed with it, and the columns it changed.

    `named` joins the names of columns, each to be named unless its condition holds; nothing makes NULL.
    """
    names = named({c: same(c) for c in watched(machine) if c not in {"status", "change_reason"}})
    typed = f"CASE WHEN {same('change_reason')} THEN NULL ELSE {typed} END"
    return f"COALESCE({typed} || ' (changed ' || {names} || ')', 'changed ' || {names}, {typed})"


def freed(machine: Machine, new: str, old: str) -> str:
    """What else a foreign change sets: nobody holds the unit any longer. Whoever held it may have made a call."""
    if not machine.driven:
        return ""
    doubtful = f"{old}.claimed_by IS NOT NULL AND {old}.doubts = 0 AND {new}.doubts = 0"
    return f", claimed_by = NULL, doubts = CASE WHEN {doubtful} THEN 1 ELSE {new}.doubts END"
