"""A value and an event have a limit of size; what is larger is refused, by a message that says which and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.model.errors import BrokenFlow, TooLarge, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import MAX_EVENT, MAX_VALUE, Birth, Event, Outcome, Update, Where, Write
from penstock.model.unit import Ref, replace
from tests.support.more_machines import PARCEL, Parcel, parcel, reading
from tests.support.probe import Probe, work

FITS, LARGE = "x" * MAX_VALUE, "x" * (MAX_VALUE + 1)
WIDE = "é" * (MAX_VALUE // 2 + 1)  # fewer characters than the limit, more bytes
SAYS = r"at most 1,048,576; land what is large in the raw sink and keep its key"
BOX = Ref("parcel", "box")


def claimed(world: Any) -> tuple[Any, Parcel]:
    world.born(parcel())
    worker = world.worker()
    (unit,) = worker.claim({"parcel": 1})
    return worker, unit


@pytest.mark.parametrize("change", [{"note": LARGE}, {"note": WIDE}, {"facts": {"all": LARGE}}, {"tags": [WIDE]}])
def test_a_value_of_a_unit(world, change):
    (name,) = change
    worker, unit = claimed(world)
    with pytest.raises(BrokenFlow, match=rf"^parcel:box: {name} cannot be stored: it has 1,048,\d+ bytes, .*{SAYS}"):
        world.commit(worker, Outcome(unit, replace(unit, **change), "grown"))
    with pytest.raises(UsageError, match=rf"^parcel:other: {name} cannot be stored: .*{SAYS}"):
        world.born(parcel("other", **change))
    with pytest.raises(UsageError, match=rf"^parcel:box: {name} cannot be stored: .*{SAYS}"):
        world.ledger.move(BOX, "open", actor=Actor.OPERATOR, who="ann", reason="test", **change)


def test_what_fits_is_kept_whole(world):
    worker, unit = claimed(world)
    rows = [{"sensor": "s", "position": 1, "note": FITS}]
    facts = {"all": FITS[: -len('{"all":""}')]}
    world.commit(worker, Outcome(unit, replace(unit, facts=facts), "grown", writes=[Write(reading, rows)]))
    assert world.unit(BOX).facts == facts
    assert world.one("SELECT note FROM reading") == FITS


@pytest.mark.parametrize("large", [LARGE, WIDE])
def test_a_value_of_a_data_table(world, large):
    worker, unit = claimed(world)
    row = {"sensor": "s", "position": 1, "note": large}
    listed = Write(reading, [[1, "s", large]], columns=["position", "sensor", "note"])
    amend = Update(Where(reading, {"sensor": "s"}), {"note": large})
    for given in ({"writes": [Write(reading, [row])]}, {"writes": [listed]}, {"updates": [amend]}):
        with pytest.raises(TooLarge, match=rf"^parcel:box: reading\.note cannot be stored: .*{SAYS}"):
            world.commit(worker, Outcome(unit, replace(unit), "rows", **given))


def test_an_events_payload(world):
    worker, unit = claimed(world)
    kept, large = ({"text": "y" * size} for size in (MAX_EVENT - 11, MAX_EVENT - 10))
    with pytest.raises(TooLarge, match=r"^parcel:box: the event 'e2' cannot be stored: its payload has 262,145 bytes"):
        world.commit(worker, Outcome(unit, replace(unit), "told", events=[Event("e2", "told", large)]))
    with pytest.raises(UsageError, match="the event 'e3'"):
        world.ledger.together([Birth(parcel("new"))], who="test", events=[Event("e3", "told", large)])
    world.commit(worker, Outcome(unit, replace(unit), "told", events=[Event("e1", "told", kept)]))
    assert world.rows("SELECT event_key FROM event_log") == [("e1",)]


def test_a_step_that_comes_to_too_much_is_a_crashed_one_and_the_worker_goes_on(world):
    world.born(parcel("bad"), parcel("good"))

    class Parcels(Probe):
        machine = PARCEL

    async def act(unit: Any, io: Any) -> Any:
        return Outcome(unit, replace(unit, note=LARGE if unit.name == "bad" else "fine", due_at=None), "noted")

    work(world, Parcels(act), seconds=1)
    assert world.unit(Ref("parcel", "good")).note == "fine"
    bad = world.unit(Ref("parcel", "bad"))
    assert (bad.note, bad.claimed_by, bad.crashes > 0) == (None, None, True)
    assert "note cannot be stored: it has 1,048,577 bytes" in bad.change_reason
