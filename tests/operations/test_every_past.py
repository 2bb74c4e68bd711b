"""Every reading can be asked for a moment of the past, or says why not; none has another word for it."""

from __future__ import annotations

from penstock.app.app import App
from penstock.app.shipped import SHIPPED, shipped
from penstock.examples import invoices
from penstock.operations.fields import fields_of

WITHOUT = [
    "harvest: prices",
    "kernel: alerts policies",
    "kernel: doctor",
    "kernel: guards",
    "kernel: machines",
    "kernel: raw unneeded",
    "partitions: inspect",
    "partitions: wait",
]
"""What is not of a moment."""


def readings():
    for lifecycle in App(*map(shipped, SHIPPED), invoices.lifecycle).lifecycles:
        yield from ((f"{lifecycle.name}: {one.name}", one) for one in lifecycle.readings)


def test_every_reading_has_a_past_or_says_why_not():
    past = {name: {one.name: one for one in fields_of(reading.parameters)} for name, reading in readings()}
    assert len(past) > 30
    assert sorted(name for name, reading in readings() if reading.no_past) == WITHOUT
    assert sorted(name for name, fields in past.items() if "at" not in fields) == WITHOUT
    assert not [name for name, fields in past.items() if "as_of" in fields]


def test_what_says_that_it_has_no_past_is_a_short_sentence_that_goes_on():
    for name, reading in readings():
        if reading.no_past:
            assert reading.no_past[0].islower(), name
            assert not reading.no_past.endswith("."), name
            assert len(reading.no_past) <= 120, name
