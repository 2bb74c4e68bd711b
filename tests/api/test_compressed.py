"""What is long goes out compressed to who takes that; no secret stands still in what is compressed."""

from __future__ import annotations

import gzip
import re

import pytest

from penstock.model.clock import Rng
from penstock.model.secrets import masked, unmasked
from tests.support.web import Answer, Client, Site

FORM = "/do/units/wake?units=order:acme/5"


@pytest.fixture
def browser(shop_site: Site) -> Client:
    return Client(shop_site.application(pages=True))


def zipped(client: Client, path: str, takes: str = "br, gzip") -> Answer:
    return client.get(path, accept_encoding=takes)


@pytest.mark.parametrize("path", ["/", "/read/units", "/static/desk.css", FORM, "/api/v1/machines", "/metrics"])
def test_what_is_long_is_compressed(browser: Client, path: str):
    plain, packed = browser.get(path), zipped(browser, path)
    assert (plain.status, packed.status) == (200, 200)
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
    assert int(packed.headers["content-length"]) == len(packed.body) < len(plain.body) / 2
    if path.startswith(("/static/", "/api/")):
        assert gzip.decompress(packed.body) == plain.body


@pytest.mark.parametrize("takes", ["", "br", "gzip;q=0", "gzip;q=0.0, br", "x-gzip", "identity, gzip;q=0"])
def test_who_does_not_take_it_does_not_get_it(browser: Client, takes: str):
    assert "content-encoding" not in zipped(browser, "/", takes).headers


@pytest.mark.parametrize("takes", ["gzip", "GZIP", "deflate, gzip;q=0.5", "gzip;q=1.0, br"])
def test_who_takes_it_among_others_gets_it(browser: Client, takes: str):
    assert zipped(browser, "/", takes).headers["content-encoding"] == "gzip"


def test_short_answers_and_answers_to_a_post_are_left_as_they_are(browser: Client):
    assert "content-encoding" not in zipped(browser, "/healthz").headers
    csrf = csrf_in(zipped(browser, FORM))
    sent = {"Content-Type": "application/x-www-form-urlencoded", "Accept-Encoding": "gzip"}
    shown = browser.call("POST", FORM, f"csrf={csrf}&act=preview&units=order:acme/5&reason=x".encode(), sent)
    assert shown.status == 200
    assert len(shown.body) > 1_000
    assert "content-encoding" not in shown.headers


def csrf_in(answer: Answer) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', gzip.decompress(answer.body).decode())
    assert found is not None
    return found[1]


def test_the_csrf_token_is_another_text_in_each_page_and_each_is_good(browser: Client):
    seen = {csrf_in(zipped(browser, f"{FORM}&reason=guess{n}")) for n in range(20)}
    assert len(seen) == 20
    parts = {one[place : place + 16] for one in seen for place in (0, 64, 112)}
    assert len(parts) == 60  # nothing stands still for a guess to match
    for one in seen:
        assert browser.send(FORM, csrf=one, act="preview", units="order:acme/5", reason="x").status == 200


@pytest.mark.parametrize("secret", ["0" * 64, "f" * 64, "0123456789abcdef" * 4])
def test_what_is_masked_is_read_again(secret: str):
    texts = [masked(Rng(), secret) for _ in range(3)]
    assert {unmasked(one) for one in texts} == {secret}
    assert len({*texts}) == 3


@pytest.mark.parametrize("text", ["", "f" * 64, "F" * 128, "0" * 127, "0" * 130, "é" * 128])
def test_what_was_not_masked_is_nothing(text: str):
    assert unmasked(text) == ""
