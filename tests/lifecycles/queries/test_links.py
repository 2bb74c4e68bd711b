"""Which new offers are linked to which head."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lifecycles.queries.likeness import Candidate, Link, Ref, links

START = datetime(2026, 1, 1, tzinfo=UTC)
MONTH = timedelta(days=30)


def ref(name: str) -> Ref:
    """`a1` is the offer `1` of the client `a`."""
    return name[0], name[1:]


def offer(name: str, day: float = 0, head: str | None = None, likeness: str | None = "L") -> Candidate:
    return Candidate(ref(name), likeness, START + timedelta(days=day), ref(head) if head else None)


def linked(new: list[Candidate], known: list[Candidate]) -> dict[str, tuple[str, str]]:
    return {"".join(who): ("".join(link.head), link.kind) for who, link in links(new, known, MONTH).items()}


@pytest.mark.parametrize(
    ("new", "known", "expected"),
    [
        pytest.param([offer("a1")], [], {}, id="alone"),
        pytest.param([offer("a2", 3)], [offer("a1")], {"a2": ("a1", "repost")}, id="repost"),
        pytest.param([offer("b1", 3)], [offer("a1")], {"b1": ("a1", "duplicate")}, id="duplicate"),
        pytest.param([offer("a2", 30)], [offer("a1")], {"a2": ("a1", "repost")}, id="just within"),
        pytest.param([offer("a2", 30.01)], [offer("a1")], {}, id="too late"),
        pytest.param([offer("a2", -5)], [offer("a1")], {"a2": ("a1", "repost")}, id="older, but known later"),
        pytest.param([offer("a2", likeness="M")], [offer("a1")], {}, id="not alike"),
        pytest.param([offer("a2", likeness=None)], [offer("a1", likeness=None)], {}, id="like nothing"),
        pytest.param([offer("a1", 3)], [offer("a1")], {}, id="never to itself"),
        pytest.param([offer("a1", 3)], [offer("a1"), offer("a0")], {}, id="a known one stays as it is"),
        pytest.param([offer("a1", 2, head="a0")], [offer("b1", 2)], {}, id="a linked one stays as it is"),
        pytest.param([offer("a1", 2)], [offer("b1", 2), offer("a9", 1, head="a1")], {}, id="a head is not linked"),
        pytest.param(
            [offer("a1"), offer("b1"), offer("a2", 1)],
            [],
            {"b1": ("a1", "duplicate"), "a2": ("a1", "repost")},
            id="among new ones the earlier is the head",
        ),
        pytest.param(
            [offer("a1"), offer("a1", 1), offer("a2", 1)], [], {"a2": ("a1", "repost")}, id="one that comes twice"
        ),
        pytest.param(
            [offer("a3", 50)],
            [offer("a1"), offer("a2", 25, head="a1")],
            {"a3": ("a1", "repost")},
            id="near a member, linked to its head",
        ),
        pytest.param(
            [offer("a2", 25), offer("a3", 50), offer("a4", 75)],
            [offer("a1")],
            {"a2": ("a1", "repost"), "a3": ("a1", "repost"), "a4": ("a1", "repost")},
            id="members that are new carry on",
        ),
        pytest.param(
            [offer("a3", 19)],
            [offer("a1"), offer("b1", 31)],
            {"a3": ("b1", "duplicate")},
            id="the nearest group",
        ),
        pytest.param([offer("c1", 10)], [offer("b1", 20), offer("a1")], {"c1": ("b1", "duplicate")}, id="equally near"),
        pytest.param(
            [offer("c1", 5)], [offer("b1", 5), offer("a1", 5)], {"c1": ("b1", "duplicate")}, id="at one instant"
        ),
        pytest.param(
            [offer("a9", 1)],
            [offer("a2", 1, head="a1")],
            {"a9": ("a1", "repost")},
            id="a head that is not among the known",
        ),
        pytest.param(
            [offer("a9", 1)],
            [offer("a3", 1, head="a2"), offer("a2", head="b1"), offer("b1")],
            {"a9": ("b1", "duplicate")},
            id="a chain that was there is followed",
        ),
        pytest.param(
            [offer("a9", 1)],
            [offer("a1", 1, head="a2"), offer("a2", head="a1")],
            {"a9": ("a1", "repost")},
            id="a circle that was there ends",
        ),
        pytest.param(
            [offer("a1"), offer("a3", 50), offer("a2", 24)],
            [],
            {"a2": ("a1", "repost")},
            id="heads that are linked to by nobody stay heads",
        ),
    ],
)
def test_links(new, known, expected):
    assert linked(new, known) == expected


def offers(clients: str, ids: int) -> st.SearchStrategy[list[Candidate]]:
    names = st.tuples(st.sampled_from(clients), st.integers(0, ids).map(str))
    moments = st.integers(0, 12).map(lambda n: START + timedelta(days=10 * n))
    return st.lists(st.builds(Candidate, names, st.sampled_from(["L", "M", None]), moments), max_size=12)


def expected_links(new: list[Candidate], known: list[Candidate]) -> dict[Ref, Link]:
    """The same, one after the other, looking at all that came before."""
    heads: dict[Ref, Ref] = {}
    before: list[Candidate] = []
    found = {}
    for each in known:
        if each.ref not in heads:
            heads[each.ref] = each.ref
            before.append(each)
    for each in new:
        if each.ref in heads:
            continue
        alike = [other for other in before if other.likeness == each.likeness is not None]
        near = [other for other in alike if abs(other.at - each.at) <= MONTH]
        heads[each.ref] = each.ref
        if near:
            head = heads[min(near, key=lambda other: abs(other.at - each.at)).ref]
            heads[each.ref] = head
            found[each.ref] = Link(head, "repost" if head[0] == each.ref[0] else "duplicate")
        before.append(each)
    return found


@settings(max_examples=100)
@given(offers("ab", 20), offers("bc", 20))
def test_links_are_those_of_looking_at_everything(new, known):
    assert links(new, known, MONTH) == expected_links(new, known)


@settings(max_examples=60)
@given(offers("ab", 20), offers("bc", 20), st.integers(0, 12))
def test_links_never_chain_and_in_parts_they_are_the_same(new, known, cut):
    whole = links(new, known, MONTH)
    assert not {link.head for link in whole.values()} & set(whole)
    first = links(new[:cut], known, MONTH)
    between = [
        Candidate(each.ref, each.likeness, each.at, first[each.ref].head if each.ref in first else None)
        for each in new[:cut]
        if each.ref not in {other.ref for other in known}
    ]
    assert {**first, **links(new[cut:], [*known, *between], MONTH)} == whole


def test_the_order_of_what_is_known_does_not_matter_unless_it_is_equally_near():
    known = [offer("a1"), offer("b1", 20), offer("a2", 5, head="a1"), offer("c1", likeness="M")]
    new = [offer("a7", 4), offer("a8", 18), offer("a9", 2, likeness="M")]
    results = [links(new, list(each), MONTH) for each in permutations(known)]
    assert all(result == results[0] for result in results)
    assert len(results[0]) == 3
