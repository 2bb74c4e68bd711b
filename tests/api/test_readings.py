"""Readings over GET: what they take, what they answer, and that they change nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from penstock.api.app import make_application
from penstock.api.desk import Desk
from penstock.api.routes import PREFIX, places
from penstock.app.discover import load
from penstock.app.shipped import SHIPPED
from penstock.cli.setup import open_ledger
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor, table_names
from penstock.model.clock import SystemClock
from penstock.operations.answers import json_text
from penstock.operations.conversion import offered
from penstock.operations.declare import Reading
from penstock.worker.schedule import keep_schedules
from tests.support import shop
from tests.support.web import Client, Site


def orders(client: Client, **given: str) -> set[str]:
    answer = client.get(f"{PREFIX}/shop/orders?{urlencode(given)}")
    assert answer.status == 200, answer.body
    return {row["unit"].removeprefix("order:acme/") for row in answer.json["rows"]}


def test_an_answer_is_what_the_command_prints(client: Client, shop_site: Site):
    answer = client.get(f"{PREFIX}/shop/order/show?unit=order:acme/3")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    desk = shop_site.desks[0]
    asked = desk.ask(shop.lifecycle, who=answer.json["asked_by"])
    assert answer.body.decode() == json_text(shop.order_show(asked, shop.OneOrder(unit="order:acme/3"))) + "\n"


def test_the_query_string_is_the_options(client: Client):
    assert orders(client, status="lost") == {"4", "9"}
    assert orders(client, lost="true") == {"4", "9"}
    assert orders(client, **{"from": "2026-11-02"}) == set()
    assert orders(client, shop="acme", lost="yes", limit="1") == {"4"}


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("status=lots", {"status": "must be one of open, packing, sent, waiting, lost; did you mean lost?"}),
        ("limit=0", {"limit": "must be a whole number from 1 to 1,000"}),
        ("limit=1&limit=2", {"limit": "is given more than once"}),
        ("older_than=long", {"older_than": "must be a span, for example 90d or 6h"}),
        ("limits=3", {"limits": "is not a parameter here; did you mean limit?"}),
        ("since=2026-11-01", {"since": "is not a parameter here"}),
        ("weight=nan&before=now", None),
    ],
)
def test_what_cannot_be_read_is_told_by_name(still_client: Client, query: str, wrong: dict[str, str] | None):
    answer = still_client.get(f"{PREFIX}/shop/orders?{query}")
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    found = answer.json
    assert wrong is None or found["parameters"] == wrong
    assert set(found["parameters"]) == {part.partition("=")[0] for part in query.split("&")}
    assert (found["title"], found["status"]) == ("Bad Request", 400)


def test_a_parameter_that_is_missing_is_told(still_client: Client):
    answer = still_client.get(f"{PREFIX}/shop/order/show")
    assert (answer.status, answer.json["parameters"]) == (400, {"unit": "is missing: the order, as order:shop/number"})


def test_pages_follow_each_other_by_their_links(client: Client):
    seen: list[str] = []
    address: str | None = f"{PREFIX}/units?machine=order&limit=4"
    while address:
        answer = client.get(address)
        seen += [row["unit"] for row in answer.json["rows"]]
        link = answer.headers.get("link")
        assert (link is None) == (answer.json["next"] is None)
        address = link and link.removeprefix("<").removesuffix('>; rel="next"')
    assert len(seen) == len(set(seen)) == 10


def test_a_unit_has_an_address_of_its_own(client: Client):
    for path, name in (("", "show"), ("/history", "history"), ("/why", "why")):
        own = client.get(f"{PREFIX}/units/order/acme/4{path}")
        asked = client.get(f"{PREFIX}/units/{name}?unit=order:acme/4").json
        assert (own.status, {**own.json, "now": 0}) == (200, {**asked, "now": 0})
    assert client.get(f"{PREFIX}/units/order/acme%2F4").json["unit"] == "order:acme/4"
    for path in ("order/acme/99", "nothing/acme/4"):
        gone = client.get(f"{PREFIX}/units/{path}")
        assert (gone.status, gone.headers["content-type"]) == (404, "application/problem+json")
    assert client.get(f"{PREFIX}/units/order/x").status == 422
    assert client.get(f"{PREFIX}/units/order/acme/4?unit=order:acme/5").status == 400


def test_lines_are_streamed(client: Client):
    answer = client.get(f"{PREFIX}/shop/export")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert len(answer.body.decode().splitlines()) == 10


def test_what_is_not_there_is_a_problem(still_client: Client):
    gone = still_client.get("/api/v1/nothing")
    assert (gone.status, "openapi.json" in gone.json["detail"]) == (404, True)
    wrong = still_client.post(f"{PREFIX}/shop/orders", {})
    assert (wrong.status, set(wrong.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


def test_a_reading_is_given_up_in_time(shop_site: Site):
    class Late(SystemClock):
        """A minute passes with every look."""

        at = 0.0

        def elapsed(self) -> float:
            self.at += 60
            return self.at

    shop_site.clock = Late()
    answer = shop_site.client().get(f"{PREFIX}/units")
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert "within 30 s" in answer.json["detail"]


def test_health(client: Client, shop_site: Site):
    assert client.get("/healthz").body == b"alive\n"
    assert client.get("/readyz").body == b"ready\n"
    shop_site.ledger.database.write(lambda cursor: cursor.run("DROP TABLE api_request"))
    fresh = shop_site.client()
    assert fresh.get("/healthz").status == 200
    told = fresh.get("/readyz")
    assert (told.status, "penstock db upgrade" in told.json["detail"]) == (503, True)


# -- every lifecycle


@pytest.fixture
def everything(ledger_url: str, tmp_path: Path) -> Iterator[tuple[Desk, Client]]:
    """Every shipped lifecycle, switched on with its defaults."""
    path = tmp_path / "penstock.toml"
    path.write_text(
        "".join(f"[{name}]\n" for name in SHIPPED) + f'[ledger]\nurl = "{ledger_url}"\n[raw]\nurl = "raw"\n'
    )
    program = load(path, environment={})
    wanted = program.wanted()
    with Ledger.open(
        ledger_url,
        wanted.machines,
        create=True,
        data_tables=program.tables,
        migrations=wanted.migrations,
        views=wanted.views,
    ) as ledger:
        keep_schedules(ledger, program.schedules(), "config-v1")
    desk = Desk(lambda: program, lambda: open_ledger(program))
    yield desk, Client(make_application(desk))
    desk.close()


def contents(desk: Desk) -> dict[str, list[str]]:
    """Every row of every table."""
    database = desk.ledger().database

    def work(cursor: Cursor) -> dict[str, list[str]]:
        names = sorted(table_names(database, cursor))
        return {name: sorted(str(tuple(row)) for row in cursor.rows(f'SELECT * FROM "{name}"')) for name in names}

    return database.read(work)


def test_every_reading_of_every_lifecycle_answers_and_none_writes(everything: tuple[Desk, Client]):
    desk, client = everything
    before = contents(desk)
    answered: dict[str, int] = {}
    for place in places(desk.program.app):
        if not isinstance(place.declared, Reading):
            continue
        fields = [one for one in offered(place.declared.parameters) if one.required]
        given = [(one.name, str((one.meta.examples or ["2026-11-01"])[0])) for one in fields]
        answer = client.get(f"{PREFIX}{place.path}?{urlencode(given)}")
        assert answer.status in ({200} if not fields else {200, 404, 422}), (place.name, answer.body)
        assert place.declared.answer.__name__ == "Lines" or json.loads(answer.body), place.name
        answered[place.name] = answer.status
    assert len(answered) > 30
    assert sum(status == 200 for status in answered.values()) > 20
    assert contents(desk) == before


def test_what_belongs_to_a_terminal_is_not_offered(everything: tuple[Desk, Client]):
    _, client = everything
    assert client.get(f"{PREFIX}/partitions/wait?partitions=x").status == 404
    for path in ("harvest/show?run=x", "rules/show?run=x", "queries/show?query=x"):
        assert "watch" in client.get(f"{PREFIX}/{path}&watch=true").json["parameters"], path
    answer = client.post(f"{PREFIX}/rules/import/preview", {"file": "/etc/passwd"})
    assert (answer.status, answer.json["parameters"]) == (400, {"file": "is not a parameter here"})


def test_prometheus_can_scrape_it(client: Client):
    answer = client.get("/metrics")
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    text = answer.body.decode()
    assert 'penstock_units{machine="order",state="lost"} 2.0' in text
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z_]+(\{[^}]*\})? [0-9.eE+-]+(NaN)?", line), line
