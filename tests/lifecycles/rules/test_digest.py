"""The digest of a preview: whatever is shown is in it, and the order is not."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.lifecycles.rules.digest import PreviewDigest
from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.outcomes import Target

amounts = st.integers(1, 5)
targets = st.builds(
    lambda before, compare_before, after, compare_after, currency: Target(
        Price(before, compare_before, currency), Price(after, compare_after, currency)
    ),
    amounts,
    st.none() | amounts,
    amounts,
    st.none() | amounts,
    st.sampled_from(["USD", "EUR"]),
)
previews = st.dictionaries(st.text(max_size=3), targets, max_size=6)


def digest(preview: list[tuple[str, Target]], rule_digest: str = "r", account: str = "shop") -> str:
    found = PreviewDigest(rule_digest, account)
    for variant_id, target in preview:
        found.add(variant_id, target)
    return found.hexdigest()


@given(previews, st.randoms(use_true_random=False))
def test_the_order_makes_no_difference(preview, chance: random.Random):
    shuffled = list(preview.items())
    chance.shuffle(shuffled)
    assert digest(shuffled) == digest(list(preview.items()))


@given(previews, previews)
def test_different_previews_have_different_digests(one, other):
    assert (digest(list(one.items())) == digest(list(other.items()))) is (one == other)


@given(previews)
def test_rule_account_and_repetition_are_part_of_it(preview):
    known = list(preview.items())
    found = {digest(known), digest(known, "other"), digest(known, account="other"), digest(known, "rs", "hop")}
    assert len(found) == 4
    if known:
        assert digest([*known, known[0]]) not in found
        assert digest(known[1:]) not in found


def test_every_part_of_a_target_is_part_of_it():
    def one(*, variant="v", currency="USD", before=5, was: int | None = 7, after=4, now=6) -> str:
        return digest([(variant, Target(Price(before, was, currency), Price(after, now, currency)))])

    found = [
        one(),
        one(variant="w"),
        one(currency="EUR"),
        one(before=6),
        one(was=8),
        one(was=None),
        one(after=3),
        one(now=5),
    ]
    assert len(set(found)) == len(found)


def test_it_can_be_asked_while_it_goes_on():
    found = PreviewDigest("r", "shop")
    empty = found.hexdigest()
    found.add("v1", Target(Price(1, None, "USD"), Price(2, None, "USD")))
    assert found.hexdigest() != empty
    assert len(empty) == 64
