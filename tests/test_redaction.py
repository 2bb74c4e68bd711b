"""A secret that was revealed once is replaced in every text, in whatever form it stands there."""

from __future__ import annotations

import base64
import html
import json
import subprocess
import sys
from urllib.parse import quote, quote_plus

import pytest

from penstock.ledger.schema.columns import LONGEST_TEXT, plain, readable
from penstock.model.errors import Rejected
from penstock.settings.redaction import MARK, PATTERNS, conceal, holds, redact

SECRET = 's3cret "quoted" \\ päss/w+rd'
FORMS = {
    "as it is": SECRET,
    "in JSON": json.dumps({"token": SECRET}),
    "in JSON, not only ASCII": json.dumps({"token": SECRET}, ensure_ascii=False),
    "in a repr": repr(Rejected(f"GET /x: 401 {SECRET}")),
    "in a URL": f"https://host/?token={quote(SECRET)}&x=1",
    "in a URL, strictly": f"https://host/?token={quote(SECRET, safe='')}&x=1",
    "in a URL, as lax as may be": "https://host/?token=" + SECRET.replace(" ", "%20").replace('"', "%22"),
    "in a URL, in JSON, in a repr": repr(json.dumps({"path": "/x?token=" + SECRET.replace(" ", "%20")})),
    "in JSON in JSON": json.dumps(json.dumps(SECRET)),
    "in a form": f"token={quote_plus(SECRET)}",
    "in a URL in a URL": f"https://host/?next={quote(f'/x?token={quote(SECRET)}')}",
    "in a URL in a URL, in lower case": quote(quote(SECRET)).lower(),
    "in a form in a URL": quote(f"token={quote_plus(SECRET)}"),
    "in JSON in a URL": quote(json.dumps({"token": SECRET})),
    "in HTML": f"<p>{html.escape(SECRET)}</p>",
    "in HTML, by numbers": "".join(c if c.isalnum() and c.isascii() else f"&#{ord(c)};" for c in SECRET),
    "in HTML, by hexadecimal numbers": "".join(
        c if c.isalnum() and c.isascii() else f"&#x{ord(c):04X};" for c in SECRET
    ),
    "in HTML in HTML": html.escape(html.escape(SECRET)),
    "in HTML in JSON": json.dumps(html.escape(SECRET)),
    "in HTML in a URL": quote(html.escape(SECRET), safe=""),
    "in JSON in HTML": html.escape(json.dumps(SECRET)),
    "as Basic authorisation": "Basic " + base64.b64encode(f"user:{SECRET}".encode()).decode(),
    "for another user": "Basic " + base64.b64encode(f"users:{SECRET}".encode()).decode(),
    "for a third user": "Basic " + base64.b64encode(f"a user:{SECRET}:x".encode()).decode(),
    "for URLs": base64.urlsafe_b64encode(SECRET.encode()).decode(),
}


@pytest.fixture
def concealed():
    conceal(SECRET)


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_in_every_form(concealed, form):
    shown = redact(FORMS[form])
    assert MARK in shown
    assert not any(part in shown for part in ("s3cret", "quoted", "ss/w", "w+rd"))
    assert len(shown) < len(FORMS[form])
    assert holds(f"before {FORMS[form]} after")


@pytest.mark.parametrize("secret", ["****", "ä+/=", "-a-b-c-", "....x", "é" * 9])
def test_a_secret_without_words_is_found_in_long_texts_too(secret):
    conceal(secret)
    for text in (secret, json.dumps(secret), quote(secret), base64.b64encode(f"user:{secret}".encode()).decode()):
        assert holds(f"before {text} after") == (MARK in redact(f"before {text} after"))
    assert holds(f"before {secret} after")


def test_what_holds_a_part_of_a_secret_does_not_hold_it(concealed):
    assert not holds("s3cret, quoted, and nothing else")
    assert not holds("nothing of it")


def test_what_stands_beside_it_stays(concealed):
    assert redact(f"before {SECRET} after") == f"before {MARK} after"
    assert redact("nothing to hide") == "nothing to hide"


def test_of_two_secrets_the_longer_is_replaced_whole():
    conceal("long-secret")
    conceal("long-secret-and-longer")
    assert redact("x long-secret-and-longer y") == f"x {MARK} y"


def test_a_text_is_searched_before_it_is_cut(concealed):
    assert SECRET[:6] not in readable("x" * (LONGEST_TEXT - 6) + SECRET)


def test_no_value_of_a_column_holds_a_secret(concealed):
    assert plain(f"é {SECRET}") == f"é {MARK}"
    assert plain("plain " + SECRET) == f"plain {MARK}"
    assert json.loads(plain({"deep": [SECRET]})) == {"deep": [MARK]}


def test_a_key_of_several_lines_is_found():
    conceal("-----BEGIN KEY-----\nMIIB\tAgEA\n-----END KEY-----")
    for text in (
        "-----BEGIN KEY-----\nMIIB\tAgEA\n-----END KEY-----",
        r"-----BEGIN KEY-----\\nMIIB\tAgEA\n-----END KEY-----",
    ):
        assert redact(f"<{text}>") == f"<{MARK}>"


def test_what_is_too_short_would_hide_everything_else():
    before = list(PATTERNS)
    conceal("abc")
    assert before == PATTERNS


def test_without_a_secret_there_is_no_pattern():
    code = "from penstock.settings.redaction import PATTERNS, redact; print(PATTERNS, redact('x'))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "[] x\n"
