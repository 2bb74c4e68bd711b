"""`at` of every address: an answer of then, or why there is none; and nothing is done in the past."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

from penstock.api.routes import PREFIX, Place, places
from penstock.model.clock import instant_text
from penstock.operations.declare import Operation, Reading
from penstock.operations.fields import fields_of
from tests.support.web import Client, Site

UNTIL = "2999-01-01T00:00:00Z"
GIVEN = {"unit": "order:acme/1", "gate": "none", "text": "acme", "alert": "a/b", "action": "x", "cause": "x"}
NOT_THERE = {"alerts show", "bulk show", "gates history"}
"""What tells of one thing, and there is none in this ledger."""


def asked(place: Place, **more: str) -> str:
    names = [one.name for one in fields_of(place.declared.parameters) if one.required]
    return f"{PREFIX}{place.path}?{urlencode({**{name: GIVEN[name] for name in names}, **more})}"


def test_every_reading_of_the_kernel_answers_of_a_moment_or_says_why_not(still_site: Site, still_client: Client):
    told, now = 0, instant_text(still_site.clock.now())
    for place in places(still_site.app):
        if not isinstance(place.declared, Reading) or place.lifecycle.name != "kernel":
            continue
        answer = still_client.get(asked(place, at=now))
        if place.declared.no_past:
            assert (answer.status, answer.json["parameters"]) == (400, {"at": place.declared.no_past}), place.name
        elif place.name in NOT_THERE:
            assert answer.status in {404, 422}, (place.name, answer.text)
        else:
            assert answer.status == 200, (place.name, answer.text)
        told += 1
    assert told > 25


def test_what_is_yet_to_come_is_not_told(still_client: Client):
    answer = still_client.get(f"{PREFIX}/units?at={UNTIL}")
    assert answer.status == 422, answer.text
    assert "2999-01-01T00:00:00.000Z is yet to come" in answer.json["detail"]


def test_a_reading_that_says_nothing_of_the_past_refuses_a_moment(still_client: Client):
    answer = still_client.get(f"{PREFIX}/shop/orders?at={UNTIL}")
    assert (answer.status, [*answer.json["parameters"]]) == (400, ["at"])


@pytest.mark.parametrize("verb", ["preview", "apply"])
def test_nothing_is_done_in_the_past(shop_site: Site, client: Client, verb: str):
    before = shop_site.states()
    for place in places(shop_site.app):
        if isinstance(place.declared, Operation):
            answer = client.post(f"{PREFIX}{place.path}/{verb}?at={UNTIL}", {"reason": "r", "digest": "d"})
            assert answer.status == 400, (place.name, answer.text)
            assert answer.json["parameters"] == {"at": "is for readings alone: nothing can be done in the past"}, (
                place.name
            )
            answer = client.post(f"{PREFIX}{place.path}/{verb}", {"reason": "r", "digest": "d", "at": UNTIL})
            assert (answer.status, "at" in answer.json["parameters"]) == (400, True), (place.name, answer.text)
    assert shop_site.states() == before


def test_a_form_that_was_left_open_does_nothing_in_the_past(shop_site: Site):
    browser = shop_site.browser()
    token = re.search(r'name="csrf" value="([^"]+)"', browser.get("/do/units/park").text)
    assert token is not None
    given = {"units": "order:acme/1", "reason": "r", "act": "preview", "csrf": token[1]}
    assert "What would be done" in browser.send("/do/units/park", **given).text
    answer = browser.send("/do/units/park?at=2026-01-01", **given)
    assert answer.status == 400
    assert "Nothing can be done in the past" in answer.text
