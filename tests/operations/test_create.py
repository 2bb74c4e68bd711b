"""`units create`: columns by name and type; whatever is wrong is one line, and nothing is written."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from penstock.model.errors import UsageError
from tests.operations.conftest import NOW, O


def count(desk):
    return desk.rows("SELECT count(*) FROM shop_order")[0][0]


def test_a_unit_is_made_of_texts_and_is_due_at_once(desk):
    values = ("shop=acme", "number=17", "amount=-3", "placed=2026-11-01", 'tags={"a": 1}')
    planned = desk.plan("units create", machine="order", set=(*values, "confirmed_at=2026-11-01T10:00:00+01:00"))
    assert (planned.preview.says, planned.preview.sample) == ("create 1 order unit", ["order:acme/17"])
    assert count(desk) == 0
    done = desk.do("units create", machine="order", set=(*values, "confirmed_at=2026-11-01T10:00:00+01:00"))
    unit = desk.unit("order:acme/17")
    assert (done.count, unit.status, unit.due_at, unit.changed_by) == (1, O.NEW, NOW, "operator:jo")
    assert (unit.amount, unit.placed, unit.tags) == (-3, date(2026, 11, 1), {"a": 1})
    assert unit.confirmed_at == datetime(2026, 11, 1, 9, tzinfo=UTC)
    assert unit.label == "acme-17", "the machine completes it"


def test_many_are_made_of_documents(desk):
    rows = tuple({"shop": "a/b %", "number": n, "label": "x"} for n in range(50))
    assert desk.do("units create", machine="order", rows=rows).count == 50
    assert desk.unit("order:a%2Fb %25/7").label == "x"


def test_a_value_may_have_equals_signs_and_any_text(desk):
    hostile = "a=b'; DROP TABLE shop_order; --é\n"
    desk.do("units create", machine="order", set=("shop=s", "number=1", f"label={hostile}"))
    assert desk.unit("order:s/1").label == hostile


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (("shop=acme", "nmber=1"), "order has no column 'nmber' that can be set; did you mean number?"),
        (("shop=acme", "number=1", "version=3"), "order has no column 'version' that can be set"),
        (("shop=acme", "number=x"), "number: 'x' must be a whole number"),
        (("shop=acme", "number=1", "placed=soon"), "placed: 'soon' must be a date such as 2026-11-15"),
        (("shop=acme", "number=1", "confirmed_at=2026-11-01T10:00:00"), "has no time zone"),
        (("shop=acme", "number=1", "tags={"), "tags: '{' is not JSON"),
        (("shop=acme", "number=1", "tags=[1]"), "must be a JSON object"),
        (("shop=acme", "number=1", "status=lost"), "status: 'lost' must be one of new, sent, held, failed"),
        (("shop=acme", "number=1", "status=held"), "only api may create a unit as held, not operator"),
        (("shop=acme",), "number must be set for a new order"),
        (("shop=a\0b", "number=1"), "has a NUL character"),
        (("shop=acme", "number=1", "confirmed_at=0001-01-01T00:00:00+14:00"), "confirmed_at cannot be stored"),
        (("shop=acme", "number=1", f"tags={'[' * 20_000}"), "is not JSON"),
        (("shop=acme", "number=1", "shop=globex"), "the column 'shop' is given twice"),
        (("number",), "'number' must be column=value"),
        ((), "say what to create"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(desk, values, says):
    with pytest.raises(UsageError) as refused:
        desk.do("units create", machine="order", set=values)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert count(desk) == 0


def test_rows_are_named_and_either_all_are_made_or_none(desk):
    good = {"shop": "acme", "number": 1}
    for bad, says in (
        ({"shop": "acme", "number": "2"}, "row 2: number: '2' must be a whole number"),
        ({"shop": "acme", "number": None}, "row 2: number: None must be a whole number"),
        ({"shop": "acme", "number": 2**70}, "row 2: number cannot be stored: 1180591620717411303424 does not fit"),
        ({"shop": "acme", "number": 2, "tags": {"a": "b\0"}}, "row 2: tags cannot be stored: it has a NUL character"),
        ({"shop": "acme", "number": 2, "label": "\ud800"}, "row 2: label cannot be stored"),
        ({"shop": "acme", "number": 1}, "row 2: repeats order:acme/1"),
    ):
        with pytest.raises(UsageError) as refused:
            desk.do("units create", machine="order", rows=(good, bad))
        assert says in str(refused.value)
        assert count(desk) == 0


def test_a_key_that_exists_is_refused(desk):
    desk.orders(1)
    with pytest.raises(UsageError, match="order:acme/1 exists already; nothing was created"):
        desk.plan("units create", machine="order", rows=({"shop": "z", "number": 1}, {"shop": "acme", "number": 1}))
    assert count(desk) == 1


def test_an_unknown_machine_is_put_right(desk):
    with pytest.raises(UsageError, match="no machine is called 'oder'; did you mean order"):
        desk.plan("units create", machine="oder", set=("a=b",))


def test_a_guarded_unit_has_no_schedule(desk):
    assert desk.do("units create", machine="price", set=("name=gold",)).count == 1


def test_a_bulk_action_is_not_made_by_hand(desk):
    texts = dict.fromkeys(("action_id", "operation", "says", "target", "digest", "requested_by", "reason"), "x")
    row = {**texts, "requested_at": "2026-11-01T10:00:00Z", "parts": [1], "total": 5}
    with pytest.raises(UsageError, match="row 1: a bulk action is started by an operation on many units"):
        desk.plan("units create", machine="bulk_action", rows=(row,))
