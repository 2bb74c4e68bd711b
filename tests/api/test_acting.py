"""Operations over POST: what is shown, what is done, and what is done once."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.api.answers import BODY_SECONDS
from penstock.api.routes import PREFIX
from penstock.app.person import user
from penstock.model.clock import VirtualClock
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from tests.support.shop import S
from tests.support.web import Answer, Client, Site, site

RESET = f"{PREFIX}/shop/reset"
LOST = {"acme/4", "acme/9"}


def preview(client: Client, path: str = RESET, **given: Any) -> Any:
    answer = client.post(f"{path}/preview", given)
    assert answer.status == 200, answer.body
    return answer.json


def apply(
    client: Client, digest: str, path: str = RESET, headers: dict[str, str] | None = None, **given: Any
) -> Answer:
    wanted = {"reason": "a customer called", **given, "digest": digest}
    return client.post(f"{path}/apply", wanted, **(headers or {}))


def test_what_was_shown_is_done_in_the_name_of_who_asked(client: Client, shop_site: Site):
    shown = preview(client, status="lost")
    assert (shown["count"], shown["says"], set(shown["sample"])) == (2, "reset 2 orders", {f"order:{n}" for n in LOST})
    assert preview(client)["skipped"] == {"it is open": 2, "it is packing": 2, "it is sent": 2, "it is waiting": 2}
    assert {name for name, state in shop_site.states().items() if state == "lost"} == LOST  # nothing is changed yet

    done = apply(client, shown["digest"], status="lost")
    assert (done.status, done.json["count"], done.json["operation"]) == (200, 2, "shop reset")
    assert "lost" not in shop_site.states().values()
    sql = "SELECT actor, reason FROM transition_log WHERE unit_id = 'acme/4' AND to_status = 'open'"
    assert shop_site.rows(sql) == [(f"operator:{user()}", "a customer called")]


def test_another_set_is_refused_whole(client: Client, shop_site: Site):
    shown = preview(client)
    shop_site.ledger.move(Ref.parse("order:acme/1"), S.LOST, actor=Actor.WORKER, who="w", reason="fell")
    refused = apply(client, shown["digest"])
    assert (refused.status, refused.headers["content-type"]) == (409, "application/problem+json")
    assert "preview" in refused.json["detail"]
    assert {name for name, state in shop_site.states().items() if state == "lost"} == {*LOST, "acme/1"}
    assert apply(client, shown["digest"], status="lost").status == 409  # other parameters are another plan


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"reason": "r"}, "digest"),
        ({"digest": "0" * 16}, "reason"),
        ({"digest": "0" * 16, "reason": " "}, "reason"),
        ({"digest": 5, "reason": "r"}, "digest"),
        ({"digest": "0" * 16, "reason": "r", "status": 4}, "status"),
        ({"digest": "0" * 16, "reason": "r", "limit": "4"}, "limit"),
        ({"digest": "0" * 16, "reason": "r", "limit": True}, "limit"),
        ({"digest": "0" * 16, "reason": "r", "lost": "true"}, "lost"),
        ({"digest": "0" * 16, "reason": "r", "shop": "acme"}, "shop"),
        ({"digest": "0" * 16, "reason": "r", "sizes": 1}, "sizes"),
    ],
)
def test_what_is_missing_or_wrong_is_told_by_name(still_client: Client, given: dict[str, Any], wrong: str):
    answer = still_client.post(f"{RESET}/apply", given)
    assert (answer.status, list(answer.json["parameters"])) == (400, [wrong])


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"{}", "text/plain", 415),
        (b"a=b", "application/x-www-form-urlencoded", 415),
        (b" " * 1_000_001, "application/json", 413),
    ],
)
def test_a_body_that_is_none(still_client: Client, body: bytes, kind: str, status: int):
    answer = still_client.call("POST", f"{RESET}/preview", body, {"Content-Type": kind})
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")


def test_a_body_that_trickles_in_is_given_up(site_url: str):
    """However often a little of it comes: each piece takes a second here, and none of them waits in real time."""
    clock = VirtualClock(datetime(2026, 11, 18, 12, tzinfo=UTC))
    with site(site_url, clock=clock) as made:
        application, said = made.application(), list[Any]()

        async def receive() -> Any:
            clock.advance(1.0)
            return {"type": "http.request", "body": b" ", "more_body": True}

        async def send(message: Any) -> None:
            said.append(message)

        headers = [(b"host", b"127.0.0.1:8642"), (b"content-type", b"application/json")]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": f"{RESET}/preview", "raw_path": b"", "query_string": b"", "root_path": "",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8642),
        }  # fmt: skip
        asyncio.run(application(scope, receive, send))
        assert said[0]["status"] == 408
        assert clock.now() - datetime(2026, 11, 18, 12, tzinfo=UTC) <= timedelta(seconds=BODY_SECONDS + 1)


def test_nothing_to_do_is_done_at_once(client: Client):
    shown = preview(client, status="sent")
    done = apply(client, shown["digest"], status="sent")
    assert (done.status, done.json["count"], done.json["skipped"]) == (200, 0, {"it is sent": 2})


def test_many_are_a_bulk_action_to_follow(shop_site: Site):
    shop_site.ledger.birth([_lost(number) for number in range(100, 1_200)], actor=Actor.API, who="test")
    client = shop_site.client()
    shown = preview(client)
    assert shown["bulk"]
    started = apply(client, shown["digest"])
    assert (started.status, started.json["count"]) == (202, 0)
    followed = client.get(started.headers["location"])
    assert followed.json["unit"] == started.json["action"]
    assert followed.json["columns"]["total"] == 1_102


def _lost(number: int) -> Any:
    from datetime import date

    from tests.support.shop import Order

    return Order(shop="acme", number=number, day=date(2026, 11, 1), status=S.LOST)


# -- idempotency


def key(name: str) -> dict[str, str]:
    return {"idempotency_key": name}


def test_the_same_key_is_the_same_act(client: Client, shop_site: Site):
    shown = preview(client)
    first = apply(client, shown["digest"], headers=key("one"))
    again = apply(client, shown["digest"], headers=key("one"))
    assert (first.status, first.json["count"]) == (200, 2)
    assert (again.status, again.body) == (first.status, first.body)
    assert apply(client, shown["digest"], headers=key("two")).status == 409  # without the key it would be another plan

    other = apply(client, shown["digest"], headers=key("one"), lost=True)
    assert (other.status, "fresh key" in other.json["detail"]) == (422, True)
    elsewhere = client.post(f"{PREFIX}/gates/resume/apply", {"gate": "x", "digest": "0" * 16}, **key("one"))
    assert elsewhere.status == 422


def test_what_was_refused_may_be_asked_again_with_its_key(client: Client):
    assert apply(client, "0" * 16, headers=key("one")).status == 409
    shown = preview(client)
    assert apply(client, shown["digest"], headers=key("one")).status == 200


@pytest.mark.parametrize(("why", "status"), [("23514", 409), ("55P03", 503)])
def test_what_the_database_refused_may_be_asked_again_with_its_key(shop_site: Site, why: str, status: int):
    """23514: a constraint; 55P03: somebody had it locked, which SQLite cannot be made to say here."""
    database, client = shop_site.ledger.database, shop_site.client()
    postgres = shop_site.url.startswith("postgres")
    path, wanted = f"{PREFIX}/token/create", {"name": "jo", "role": "viewer"}
    wanted |= {"digest": client.post(f"{path}/preview", wanted).json["digest"]}
    said = f"RAISE EXCEPTION 'not now' USING ERRCODE = '{why}'"
    refusing = [
        f"CREATE FUNCTION not_now() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {said}; END $$",
        "CREATE TRIGGER not_now BEFORE INSERT ON token FOR EACH ROW EXECUTE FUNCTION not_now()",
    ]
    if not postgres:
        refusing = ["CREATE TRIGGER not_now BEFORE INSERT ON token BEGIN SELECT RAISE(ABORT, 'not now'); END"]
    database.write(lambda cursor: [cursor.run(one) for one in refusing])
    refused = client.post(f"{path}/apply", wanted, **key("one"))
    assert refused.status == (status if postgres else 409)
    database.write(lambda cursor: cursor.run("DROP TRIGGER not_now" + (" ON token" if postgres else "")))
    again = client.post(f"{path}/apply", wanted, **key("one"))
    assert (again.status, again.json["count"]) == (200, 1)


def test_a_key_without_an_answer_is_under_way(client: Client, shop_site: Site):
    shown = preview(client)
    assert apply(client, shown["digest"], headers=key("one")).status == 200
    shop_site.ledger.database.write(lambda cursor: cursor.run("UPDATE api_request SET answer = NULL"))
    assert apply(client, shown["digest"], headers=key("one")).status == 409


@pytest.mark.parametrize("name", ["", "x" * 201, "a\tb"])
def test_a_key_that_cannot_be_one(still_client: Client, name: str):
    assert apply(still_client, "0" * 16, headers=key(name)).status == 400


def test_keys_are_forgotten_after_a_day(client: Client, shop_site: Site):
    shown = preview(client)
    apply(client, shown["digest"], headers=key("one"))
    old = "UPDATE api_request SET at = '2020-01-01T00:00:00.000Z'"
    shop_site.ledger.database.write(lambda cursor: cursor.run(old))
    assert apply(client, preview(client)["digest"], headers=key("two")).status == 200
    assert shop_site.rows("SELECT key FROM api_request") == [("two",)]


def test_two_at_once_are_one_act(shop_site: Site):
    client = shop_site.client()
    shown, answers = preview(client), []

    def act() -> None:
        answers.append(apply(client, shown["digest"], headers=key("one")))

    threads = [threading.Thread(target=act) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    done = [one for one in answers if one.status == 200]
    assert {one.status for one in answers} <= {200, 409}
    assert {one.body for one in done} == {done[0].body}
    sql = "SELECT count(*) FROM transition_log WHERE unit_id = 'acme/4' AND to_status = 'open'"
    assert shop_site.rows(sql) == [(1,)]
