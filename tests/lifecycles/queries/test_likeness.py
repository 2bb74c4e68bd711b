"""Which offers are one offer, on labelled pairs; and the key of a company."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lifecycles.queries.likeness import company_key, likeness

PAIRS = [json.loads(line) for line in (Path(__file__).parent / "likeness.jsonl").read_text().splitlines()]


def alike(pair) -> bool:
    one, other = likeness(*pair["a"]), likeness(*pair["b"])
    return one is not None and one == other


def test_on_labelled_pairs_no_link_is_wrong_and_few_are_missed():
    wrong = [pair for pair in PAIRS if alike(pair) and not pair["same"]]
    missed = [pair for pair in PAIRS if not alike(pair) and pair["same"]]
    right = sum(alike(pair) and pair["same"] for pair in PAIRS)
    precision, recall = right / (right + len(wrong)), right / (right + len(missed))
    sys.stdout.write(f"{len(PAIRS)} pairs, precision {precision:.3f}, recall {recall:.3f}; missed:\n")
    sys.stdout.writelines(f"  {pair['a']} = {pair['b']}\n" for pair in missed)
    assert len(PAIRS) >= 120
    assert (precision, wrong) == (1.0, [])
    assert recall >= 0.9, missed
    assert {pair["why"] for pair in missed} == {"beyond what is done"}


def test_no_two_titles_of_different_pairs_are_alike_by_accident():
    differing = [pair for pair in PAIRS if not pair["same"] and pair["a"][0] == pair["b"][0] == "Acme Soluciones, S.L."]
    titles = {title for pair in differing for title in (pair["a"][1], pair["b"][1]) if title}
    found: dict[str, set[str]] = {}
    for title in titles:
        if key := likeness("Acme", title, None):
            found.setdefault(key, set()).add(title)
    together = sorted(sorted(same) for same in found.values() if len(same) > 1)
    assert together == [["Conductor (C)", "Conductor C"], ["Técnico", "Técnico F/M"]]
    assert len(found) > 100


@settings(max_examples=80)
@given(st.text(max_size=30), st.text(max_size=30), st.none() | st.text(max_size=30))
def test_a_likeness_is_short_and_does_not_mind_case_and_whitespace(company, title, city):
    key = likeness(company, title, city)
    assert key is None or (len(key) == 16 and int(key, 16) >= 0)
    assert likeness(f" {company}\n", f"\t{title} ", city) == key


@pytest.mark.parametrize(
    ("company", "title"),
    [
        *[(None, "Cook"), ("", "Cook"), ("...", "Cook"), ("Confidencial", "Cook"), ("\ud800", "Cook")],
        *[("Acme", None), ("Acme", " "), ("Acme", "¡URGENTE! (H/M)"), ("Acme", "x" * 1_001), ("Acme", "\u202e\u200b")],
    ],
)
def test_an_offer_without_company_or_title_is_like_none(company, title):
    assert likeness(company, title, "Madrid") is None


def test_a_city_that_is_not_known_is_a_city_of_its_own():
    assert likeness("Acme", "Cook", None) == likeness("Acme", "Cook", "") == likeness("Acme", "Cook", " ")
    assert likeness("Acme", "Cook", None) != likeness("Acme", "Cook", "Madrid")


def test_parts_do_not_run_into_each_other():
    assert likeness("Acme Java", "Cook", None) != likeness("Acme", "Java Cook", None)
    assert likeness("Acme", "Cook Madrid", None) != likeness("Acme", "Cook", "Madrid")


def test_other_scripts_keep_what_tells_words_apart():
    assert likeness("Acme", "がか", None) != likeness("Acme", "かか", None)
    assert likeness("Acme", "कि", None) != likeness("Acme", "कु", None)
    assert likeness("Acme", "Инженер", None) == likeness("Acme", "ИНЖЕНЕР", None)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Acme Soluciones, S.L.", "acme soluciones"),
        ("ACME SOLUCIONES SLU", "acme soluciones"),
        ("Müller GmbH & Co. KG", "muller"),
        ("Société Générale S.A.", "societe generale"),
        ("L\u2019Oréal España, S.A.U.", "loreal espana"),
        ("S.L.", "s l"),
        ("SA SA", "sa"),
        ("Ærø A/S", "aero"),
        ("株式会社テスト", "株式会社テスト"),
        ("\x1b[31mAcme\x00 \u202eLtd", "31macme"),
        ("  ", None),
        ("¿?", None),
        ("\ud800", None),
    ],
)
def test_the_key_of_a_company(name, key):
    assert company_key(name) == key


@settings(max_examples=100)
@given(
    st.text(max_size=60) | st.lists(st.sampled_from(["Acme", "S.L.", "co", "s", "l", "Ltd", "&", "ñ"])).map(" ".join)
)
def test_the_key_of_a_company_is_safe_text_and_its_own_key(name):
    key = company_key(name)
    if key is not None:
        assert key.isprintable()
        assert key == key.strip() != ""
        assert company_key(key) == key


def test_long_names_of_companies_differ_in_their_keys():
    one, other = company_key("x" * 300 + " a"), company_key("x" * 300 + " b")
    assert one is not None
    assert one != other
    assert len(one) == 200
    assert company_key(one) == one
