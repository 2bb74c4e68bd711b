"""The generic client against the generic API's simulator: every way of paging, and what becomes of records."""

from __future__ import annotations

import itertools
import json
from datetime import date, datetime, timedelta
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from penstock.connectors.searches import OFFER_COLUMNS, Bad, Item, Wanted
from penstock.model.errors import Rejected
from penstock.simulators.paged import Churn, Fault
from tests.support.paged import NOW, PAGING, Api, described, on

EVERY = pytest.mark.parametrize("style", PAGING)
NUMBERED = pytest.mark.parametrize("style", ["page", "page_fixed", "offset"])


@EVERY
@pytest.mark.parametrize("order", ["newest", "birth"])
@pytest.mark.parametrize("total", [None, "meta.total"])
def test_every_way_reads_the_same_list(style, order, total):
    async def test(api: Api) -> None:
        found, pages = await api.walk(order=order)
        listed = api.simulator.offers.listed(newest_first=order == "newest")
        assert [record.id for record in found] == [str(-number) for _, number in listed]
        assert all(isinstance(record, Item) for record in found)
        assert pages[-1].last
        assert not any(page.cut for page in pages)
        assert {page.total for page in pages} == {205 if total and style != "link" else None}
        assert json.loads(found[0].payload)["title"] == found[0].values[0]  # type: ignore[union-attr]

    on(test, style, given={"total": total, "order": "newest_first" if order == "newest" else "none"})


def test_values_are_those_of_the_columns():
    async def test(api: Api) -> None:
        (first, *_), _ = await api.walk()
        record = json.loads(first.payload)
        assert isinstance(first, Item)
        assert first.at.isoformat(timespec="milliseconds").replace("+00:00", "Z") == record["updated_at"]
        values = dict(zip(api.client.columns, first.values, strict=True))
        assert tuple(values) == OFFER_COLUMNS
        assert values["company"] == record["company"]["name"]
        assert values["city"] == record["places"][0]["city"]
        assert (values["salary_min"], values["salary_max"]) == (float(record["pay"]["min"]), None)
        assert values["published_at"] < NOW

    on(test, records=3)


@EVERY
@pytest.mark.parametrize("count", [0, 1, 19, 20, 29, 30, 31, 60, 61])
def test_lists_of_every_length_end(style, count):
    async def test(api: Api) -> None:
        found, pages = await api.walk()
        assert len(found) == count
        assert pages[-1].last
        assert len(pages) <= count / 10 + 2

    on(test, style, records=count)
    on(test, style, records=count, ends_missing=True)


@pytest.mark.parametrize("style", ["page", "offset"])
def test_pages_overlap_so_that_a_removal_hides_nothing(style):
    async def test(api: Api) -> None:
        before = {str(number) for number in api.simulator.offers}
        found, _ = await api.walk()
        assert api.client.overlaps
        still = before & {str(number) for number in api.simulator.offers}
        assert still <= {record.id for record in found}

    on(test, style, churn=Churn(added=0, bumped=0, removed=1))


@hypothesis.settings(max_examples=50)
@hypothesis.given(
    st.sampled_from(["page", "offset", "cursor", "link", "next"]),
    st.integers(0, 150),
    st.integers(0, 3),
    st.integers(0, 3),
)
@hypothesis.example("page", 31, 1, 3)
def test_nothing_that_stays_is_missed_while_the_list_changes(style, count, added, removed):
    async def test(api: Api) -> None:
        before = {str(number) for number in api.simulator.offers}
        found, done = await api.read()
        assert (done.over, done.following.whole) == (True, True)
        assert before & {str(number) for number in api.simulator.offers} <= found

    given = {"total": "meta.total"}  # else a list that grows with every look at it is read for ever
    on(test, style, records=count, given=given, churn=Churn(added=added, bumped=0, removed=removed))


def test_every_request_for_a_page_is_counted():
    async def test(api: Api) -> None:
        _, pages = await api.walk()
        assert api.client.calls == len(api.simulator.requests)
        assert api.client.calls == len(pages) + 1, "a short page is not taken for the end without a look"

    on(test, "page_fixed", records=15)


@NUMBERED
def test_any_place_can_be_asked_for(style):
    async def test(api: Api) -> None:
        order = [str(number) for number in api.simulator.offers]
        for place in (0, 1, 19, 20, 55, 111, 204):
            page = await api.client.page({}, Wanted(place))
            assert page.place <= place < page.place + len(page.records)
            assert [record.id for record in page.records] == order[page.place : page.place + len(page.records)]
        beyond = await api.client.page({}, Wanted(400))
        assert (list(beyond.records), beyond.last) == ([], True)

    on(test, style)


@pytest.mark.parametrize(
    ("style", "given"),
    [
        ("page", {"last": 4}),
        ("page_fixed", {"last": 4}),
        ("page", {"most_records": 100}),
        ("offset", {"most_records": 100}),
    ],
)
def test_what_the_api_does_not_serve_is_cut(style, given):
    async def test(api: Api) -> None:
        found, pages = await api.walk()
        reach = 100 if "most_records" in given else 4 * (20 if style == "page_fixed" else 30)
        assert len(found) == reach
        assert pages[-1].cut
        assert not pages[-1].last
        asked = len(api.simulator.requests)
        beyond = await api.client.page({}, Wanted(reach))
        assert (list(beyond.records), beyond.cut) == ([], True)
        assert len(api.simulator.requests) == asked

    ((kind, own),) = PAGING[style].items()
    on(test, style, given={"paging": {kind: own | given}}, last_page=given.get("last"))


@pytest.mark.parametrize("count", [41, 59, 60])
def test_a_short_page_is_no_end_where_nothing_after_it_is_served_unless_a_total_says_so(count):
    given = {"paging": {"page": {"size": 20, "last": 3}}}

    async def test(api: Api) -> None:
        found, pages = await api.walk()
        assert len(found) == count
        assert (pages[-1].last, pages[-1].cut) == (False, True)
        assert len(api.simulator.requests) == len(pages) == 3

    async def told(api: Api) -> None:
        _, pages = await api.walk()
        assert (pages[-1].last, pages[-1].cut) == (True, False)

    async def passed(api: Api) -> None:
        _, pages = await api.walk()
        assert (pages[-1].last, pages[-1].cut) == (True, False)

    on(test, "page_fixed", given=given, records=count, last_page=3)
    on(told, "page_fixed", given=given | {"total": "meta.total"}, records=count, last_page=3)
    # A list that ends before the last page has its end proved, by one more request.
    on(passed, "page_fixed", given={"paging": {"page": {"size": 20, "last": 4}}}, records=count, last_page=4)


def test_an_api_that_counts_from_elsewhere():
    async def test(api: Api) -> None:
        found, _ = await api.walk()
        assert len(found) == 205

    on(test, "page", given={"paging": {"page": PAGING["page"]["page"] | {"first": 0}}}, first_page=0)
    on(test, "offset", given={"paging": {"offset": PAGING["offset"]["offset"] | {"first": 1}}}, first_offset=1)


@pytest.mark.parametrize("total", [None, "meta.total"])
def test_a_size_that_the_api_does_not_keep_is_refused_and_not_taken_for_the_end(total):
    async def test(api: Api) -> None:
        with pytest.raises(Rejected, match="has 20 records where 30"):
            await api.first()

    given = {"total": total}
    on(test, "page", given=given, largest=20)
    on(test, "page_fixed", given=given | {"paging": {"page": {"size": 30}}})

    async def ignored(api: Api) -> None:
        with pytest.raises(Rejected, match="has 20 records where 15"):
            await api.first()

    on(ignored, "page", given={"paging": {"page": {"size": 15, "size_parameter": "page_size"}}})

    async def harmless(api: Api) -> None:
        found, _ = await api.walk()
        assert len(found) == 205

    on(harmless, "offset", given=given, largest=20)


@pytest.mark.parametrize("style", ["page", "page_fixed", "offset"])
@pytest.mark.parametrize("given", [1, 2, 5, 9, 10])
def test_a_page_of_a_few_records_is_not_taken_for_the_end(style, given):
    async def test(api: Api) -> None:
        with pytest.raises(Rejected, match=f"has {given} records where .* and more follow"):
            await api.walk()

    ((kind, own),) = PAGING[style].items()
    # Without a parameter of the size the simulator gives what is usual, or as many as it gives at most.
    on(test, style, given={"paging": {kind: own | {"size": 30}}}, largest=given)


@NUMBERED
@pytest.mark.parametrize("count", [1, 5, 9])
def test_a_short_list_costs_one_more_request_unless_a_total_says_that_it_ends(style, count):
    async def test(api: Api) -> None:
        found, pages = await api.walk()
        assert len(found) == count
        assert pages[-1].last
        assert len(api.simulator.requests) == len(pages) + 1

    async def told(api: Api) -> None:
        found, pages = await api.walk()
        assert len(found) == count
        assert len(api.simulator.requests) == len(pages) == 1

    on(test, style, records=count)
    on(told, style, records=count, given={"total": "meta.total"})


def test_a_list_that_grows_while_its_end_is_looked_for_is_no_error():
    async def test(api: Api) -> None:
        page = await api.client.page({}, Wanted())
        assert (len(page.records), page.last) == (20, False)

    on(test, "page_fixed", records=19, churn=Churn(added=2, bumped=0, removed=0))


@pytest.mark.parametrize("style", ["page", "offset"])
def test_a_page_that_repeats_for_ever_is_noticed(style):
    async def test(api: Api) -> None:
        api.simulator.every["list", 1] = Fault(twist="repeat")
        with pytest.raises(Rejected, match="repeats the one from"):
            await api.walk()

    ((kind, own),) = PAGING[style].items()
    on(test, style, given={"paging": {kind: own | {"size": 20}}})


@pytest.mark.parametrize("style", ["cursor", "link", "next"])
def test_a_next_page_that_repeats_is_refused(style):
    async def test(api: Api) -> None:
        api.simulator.every["list", 1] = Fault(twist="repeat")
        with pytest.raises(Rejected, match="repeats"):
            await api.walk()
        assert len(api.simulator.requests) <= 2

    on(test, style)


@pytest.mark.parametrize("style", ["link", "next"])
def test_a_link_to_another_host_is_not_followed(style):
    async def test(api: Api) -> None:
        api.simulator.every["list", 2] = Fault(twist="foreign")
        page = await api.first()
        assert page.after is not None
        assert page.after.startswith(f"/{style}?")
        with pytest.raises(Rejected, match="leads away from http://localhost, and is not followed: https://elsewhere"):
            await api.client.page({}, Wanted(token=page.after))
        assert len(api.simulator.requests) == 2
        for token in ("https://elsewhere.example.com/", "@elsewhere.example.com/", "x"):
            with pytest.raises(Rejected, match="not one of this client's"):
                await api.client.page({}, Wanted(token=token))

    on(test, style)


@pytest.mark.parametrize("style", ["link", "next"])
def test_relative_links_are_followed(style):
    async def test(api: Api) -> None:
        assert len((await api.walk(category="python"))[0]) == len(api.simulator.offers.listed(categories=["python"]))

    on(test, style, relative=True)


def test_a_cursor_of_the_last_record_with_a_flag():
    async def test(api: Api) -> None:
        found, _ = await api.walk()
        assert len(found) == 205

    paging = {"cursor": {"next": "meta.next_cursor", "more": "meta.has_more"}}
    on(test, "cursor", given={"paging": paging})

    async def wrong(api: Api) -> None:
        with pytest.raises(Rejected, match="neither text nor a number"):
            await api.first()
        with pytest.raises(Rejected, match="not one of this client's"):
            await api.client.page({}, Wanted(token="1-2"))

    on(wrong, "cursor", given={"paging": {"cursor": {"next": "data.items.-1"}}})


@EVERY
@pytest.mark.parametrize("form", ["iso", "date", "unix"])
def test_the_api_leaves_out_what_is_older_and_nothing_else(style, form):
    async def test(api: Api) -> None:
        since = NOW - timedelta(days=20, milliseconds=-7)
        found, _ = await api.walk(since)
        needed = {str(-number) for _, number in api.simulator.offers.listed(since=since)}
        assert needed <= {record.id for record in found}
        assert len(needed) <= len(found) < 100
        assert all("since" in request.parameters for request in api.simulator.requests)

    on(test, style, given={"since": {"parameter": "since", "format": form}})


def test_a_cursor_keeps_the_date_with_which_it_was_begun():
    async def test(api: Api) -> None:
        page = await api.client.page({}, Wanted(since=NOW - timedelta(days=60)))
        await api.client.page({}, Wanted(token=page.after, since=NOW))
        sent = [request.parameters["since"] for request in api.simulator.requests]
        assert sent == [["2026-09-16T11:59:59Z"]] * 2

    on(test, "cursor", given={"since": {"parameter": "since"}})


def test_parameters_go_where_the_description_says():
    async def test(api: Api) -> None:
        await api.first(kinds=["python", "java"], text="C# & Ñ", remote=True, style="page", most=3)
        (request,) = api.simulator.requests
        assert request.style == "page"
        own = {name: values for name, values in request.parameters.items() if name not in ("page", "per_page")}
        assert own == {
            "category": ["python", "java"],
            "q": ["C# & Ñ"],
            "remote": ["true"],
            "lang": ["es"],
            "most": ["3"],
        }

    given = {
        "path": "/{style}",
        "parameters": {"lang": "es", "most": 5},
        "send_as": {"kinds": "category", "text": "q"},
        "headers": {"accept": "text/json", "X-Version": "2"},
    }
    on(test, given=given)

    async def joined(api: Api) -> None:
        await api.first(category=["python", "java"])
        (request,) = api.simulator.requests
        assert request.parameters["category"] == ["python,java"]
        assert (request.headers["accept"], request.headers["x-version"]) == ("text/json", "2")

    on(joined, given=given | {"path": "/page", "lists": "comma"})


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({}, "no parameter 'style', which the path needs"),
        ({"style": ".."}, "cannot be part of a path"),
        ({"style": "page", "page": 3}, "which the paging or 'since' sets"),
        ({"style": "page", "deep": {"a": 1}}, "'deep' cannot be sent"),
    ],
)
def test_a_query_that_cannot_be_asked_says_why(parameters: dict[str, Any], said):
    async def test(api: Api) -> None:
        with pytest.raises(Rejected, match=said):
            await api.client.page(parameters, Wanted())
        assert not api.simulator.requests

    on(test, given={"path": "/{style}"})


@pytest.mark.parametrize("style", ["page", "link"])
def test_bad_records_are_set_aside_one_by_one(style):
    async def test(api: Api) -> None:
        listing = api.simulator.offers
        wrong = {number: defect for number in listing if (defect := listing.defect(number)) is not None}
        found, _ = await api.walk()
        assert len(found) == len(listing)
        bad = [record for record in found if isinstance(record, Bad)]
        usable = {"NUL", "half of a pair", "huge number"}
        assert len(bad) == sum(defect not in usable for defect in wrong.values())
        assert usable < set(wrong.values())
        reasons = " ".join(sorted({record.reason for record in bad}))
        for said in (
            "no id",
            "neither text",
            "301 characters",
            "no date",
            "as 'iso'",
            "'pay.min'",
            "'title'",
            "object",
        ):
            assert said in reasons
        for record in found:
            json.loads(record.payload)
            assert len(record.payload) <= 200_000
            assert "\0" not in record.payload
            record.payload.encode()
        good = {record.id: record for record in found if isinstance(record, Item)}
        odd = [good[str(number)] for number, defect in wrong.items() if defect in usable]
        assert any(record.values[0] == "Chief\ufffd Officer" for record in odd)
        assert all(record.id is not None for record in bad if "pay.min" in record.reason)

    on(test, style, records=400, bad=0.3)


def test_a_table_of_its_own():
    async def test(api: Api) -> None:
        (first, *_), _ = await api.walk()
        assert isinstance(first, Item)
        values = dict(zip(api.client.columns, first.values, strict=True))
        assert list(values) == ["title", "views", "pay", "remote", "changed", "day", "tags"]
        assert [type(value) for value in values.values()] == [str, int, float, bool, datetime, date, str]
        assert json.loads(values["tags"])[0] == "simulated"
        assert values["changed"] == first.at.replace(microsecond=0)

    fields = {
        "title": {"path": "title"},
        "views": {"path": "views", "type": "integer"},
        "pay": {"path": "pay.max", "type": "number"},
        "remote": {"path": "remote", "type": "boolean"},
        "changed": {"path": "updated_unix", "type": "instant", "format": "unix"},
        "day": {"path": "updated_day", "type": "date"},
        "tags": {"path": "tags", "type": "json"},
    }
    on(test, given={"offer": None, "table": "jobs", "fields": fields}, records=5)


@pytest.mark.parametrize(
    ("path", "form"), [("updated_ms", "unix_ms"), ("updated_unix", "unix"), ("updated_day", "date")]
)
def test_dates_of_every_format(path, form):
    async def test(api: Api) -> None:
        found, _ = await api.walk()
        expected = [key[0] for key in api.simulator.offers.listed()]
        unit = {"unix_ms": 1, "unix": 1_000, "date": 86_400_000}[form]
        assert [round(record.at.timestamp() * 1_000) for record in found if record.at] == [
            -key // unit * unit for key in expected
        ]
        assert all(a.at >= b.at for a, b in itertools.pairwise(found) if a.at and b.at)

    on(test, given={"date": path, "date_format": form})


def test_what_it_says_of_itself():
    for style, by_place, overlaps in (
        *(("page", True, True), ("page_fixed", True, False), ("offset", True, True)),
        *(("cursor", False, False), ("link", False, False), ("all", False, False)),
    ):

        async def test(api: Api, expected: tuple[bool, bool] = (by_place, overlaps)) -> None:
            assert (api.client.by_place, api.client.overlaps) == expected
            assert api.client.newest_first

        on(test, style, records=1)
    assert described("link").get("records") is None
