"""Which offers are one offer: the same company, the same title and the same city under another id.

Titles are compared without what says nothing about the job: case, accents, punctuation, marks of gender, cries for
attention, reference numbers. Everything else stays, in its order. Where it is not certain that two offers are the same,
they are not: an offer too many is seen by a person, one that is linked wrongly is not.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from penstock.lifecycles.queries.wording import (
    ANONYMOUS,
    BARE_FORMS,
    DOTTED_FORMS,
    LEADING,
    LETTERED,
    LONG_FORMS,
    NOISE,
    TRAILING,
    URGENT_KINDS,
)

LONGEST_COMPANY = 200
_LONGEST = 1_000
"""A text that is longer is no title."""
_HIDDEN = dict.fromkeys([0xAD, 0xB7, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, *range(0x300, 0x370)])
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "\u0131": "i", "æ": "ae", "œ": "oe", "♯": "#", "\u2019": "'"})
_FOLDED: dict[int, str | int | None] = {**_LETTERS, **_HIDDEN}
# Everything but punctuation and symbols: marks of Indian scripts are part of words, and `\w` does not say so.
_LETTER = (
    r"[^\s\x00-/:-@\[-`{-\xbf\u2000-\u206f\u20a0-\u20cf\u2190-\u2bff\u2e00-\u2e7f\u3000-\u303f\U0001f000-\U0001faff]"
)
_WORD = re.compile(rf"\.net(?!{_LETTER})|{_LETTER}+[+#]*")
_NAME = re.compile(rf"{_LETTER}+[+#]*")

_REFERENCE = re.compile(
    r"(?<![a-z0-9])(?:(?:ref|referencia|reference|req|job id)(?![a-z])|ref(?=\d))"
    r"[\s.:#-]*(?:n\.?o?[.:]?\s?)?(?=[a-z/_-]{0,20}\d[a-z/_-]{0,20}\d)[a-z0-9/_-]+"
)
_SLASH = r"\s?[/|]\s?"
_PAIR = "(?:h{0}m|m{0}h|m{0}f|f{0}m|m{0}w|w{0}m|h{0}d|d{0}h|h{0}f|f{0}h)"
_MARK = re.compile(
    rf"(?<![\w/])(?:[xdw]{_SLASH})?{_PAIR.format(_SLASH)}(?:{_SLASH}(?:x|d|v|n|i|w|nb|divers|diverse|gn))*(?![\w/])"
    rf"|(?<!\w)(?:(?:hombres?|home|male){_SLASH}(?:mujer|mujeres|dona|female)|(?:mujer|mujeres|dona|female){_SLASH}"
    r"(?:hombres?|home|male))(?!\w)"
)
_JOINED = r"\s?(?:[-.,&\\]|y|o|or|and)?\s?"
_BRACKETED = re.compile(
    rf"[(\[]\s*(?:(?:h{_JOINED}m|m{_JOINED}h)(?:[-.,\s]?x)?|mfd|fmd|mwd|wmd|all genders|any gender|indistinto)"
    r"\s*[)\]]"
)
_BOTH = re.compile(rf"(?<![a-z])(?:([a-z]{{3,}})(os?|es?|){_SLASH}\1as?|([a-z]{{3,}})as?{_SLASH}\3(os?|es?|))(?![a-z])")
_ENDING = re.compile(
    r"(?<![a-z])([a-z]{3,})(?:/-?(as?|os?|o?ras?|i?va|ives|a?ria)|\((as?|os?)\))(?:/[ex])?(?![a-z0-9])"
    r"|(?<![a-z])([a-z]{3,})\s?/\s?a(?=\s*(?:$|[^\w\s]))"
)
_AT = re.compile(r"(?<![a-z0-9])([a-z]{3,})@(s?)(?![a-z0-9])")
#: With what a word must end to have an ending of several letters.
_BEFORE = {"r": "r", "o": "r", "i": "iu", "v": "iu"}
_ARTICLES = frozenset(["el", "la", "los", "las", "l", "les", "els", "a", "o", "as", "os"])


def likeness(company: str | None, title: str | None, city: str | None) -> str | None:
    """Equal for the same offer under another id. None where the company or the title is not known: it is like none."""
    if not company or not title:
        return None
    who, what = company_key(company), _title_key(title)
    if who is None or what is None or who in ANONYMOUS:
        return None
    text = f"{who}\0{what}\0{_city_key(city) if city else ''}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@lru_cache(8_192)
def company_key(name: str) -> str | None:
    """The name without case, accents, punctuation and legal form, at most 200 characters. None: it has no letters."""
    words = _NAME.findall(_folded(name[:_LONGEST]).replace("'", ""))
    key = " ".join(_without_form(words))
    if len(key) > LONGEST_COMPANY:
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        key = f"{key[: LONGEST_COMPANY - 17].rstrip()} {digest}"
    return key or None


def _without_form(words: Sequence[str]) -> Sequence[str]:
    """A name is never its legal form alone."""
    while (length := _form(words)) and length < len(words):
        words = words[:-length]
    return words


def _form(words: Sequence[str]) -> int:
    """Of how many words the legal form at the end of a name consists."""
    if not words:
        return 0
    for form in LONG_FORMS:
        if tuple(words[-len(form) :]) == form:
            return len(form)
    if words[-1] in BARE_FORMS:
        return 2 if len(words) > 2 and words[-2] == "co" else 1  # noqa: PLR2004 - "Co." and "Ltd." after a name
    for length in (4, 3, 2):
        last = words[-length:]
        if len(last) == length and all(len(word) == 1 for word in last) and "".join(last) in DOTTED_FORMS:
            return length
    return 0


@lru_cache(2_048)
def _city_key(city: str) -> str:
    text = _folded(city[:_LONGEST])
    place = text.partition("(")[0]
    words: list[str] = _NAME.findall(place) or _NAME.findall(text)
    if "," in place and words and words[-1] in _ARTICLES:  # as registers have it: "Coruña, A"
        words = [words[-1], *words[:-1]]
    return " ".join(words)


@lru_cache(8_192)
def _title_key(title: str) -> str | None:
    if len(title) > _LONGEST:
        return None
    text = _folded(title)
    if "ref" in text or "req" in text or "job id" in text:
        text = _REFERENCE.sub(" ", text)
    text = _without_gender(text)
    if "!" in text or "¡" in text:
        text = " ".join(part for part in re.split("[!¡]+", text) if not NOISE.issuperset(_WORD.findall(part)))
    words = _without_noise(_WORD.findall(text))
    return " ".join(words) or None


def _without_gender(text: str) -> str:
    bracket, slash = "(" in text or "[" in text, "/" in text or "|" in text
    if bracket:
        text = _BRACKETED.sub(" ", text)
    if slash:
        text = _MARK.sub(" ", text)
        text = _BOTH.sub(lambda found: f"{found[1]}{found[2]}" if found[1] else f"{found[3]}{found[4]}", text)
    if bracket or slash:
        text = _ENDING.sub(_masculine, text)
    if "@" in text:
        text = _AT.sub(_unmarked, text)
    return text


def _masculine(found: re.Match[str]) -> str:
    """The word without its other ending: "técnico/a" and "técnica/o" are "técnico"."""
    word = found[1] or found[4]
    ending = found[2] or found[3] or "a"
    if ending in ("o", "os"):
        stem, vowel, plural = word.rpartition("a")
        return f"{stem}o{plural}" if vowel and plural in ("", "s") else found[0]
    if ending in ("a", "as"):
        return found[0] if word in LETTERED or word.endswith("a") else word
    before = "ari" if ending.endswith("ria") else _BEFORE[ending[0]]
    return word if word.removesuffix("s").endswith(before) else found[0]


def _unmarked(found: re.Match[str]) -> str:
    word, plural = found[1], found[2]
    if word.endswith("or"):
        return f"{word}es" if plural else word
    return f"{word}o{plural}"


def _without_noise(words: list[str]) -> list[str]:
    while words and (length := _noise(words, LEADING.get(words[0], ()))):
        words = words[length:]
    while words and (length := _noise(words[::-1], TRAILING.get(words[-1], ()))):
        words = words[:-length]
    return words


def _noise(words: Sequence[str], phrases: Sequence[tuple[str, ...]]) -> int:
    """With how many words of a phrase they begin. What urgent care or an urgent transport is, is not noise."""
    if phrases and len(words) > 1 and words[1] in URGENT_KINDS:
        return 0
    return next((len(phrase) for phrase in phrases if tuple(words[: len(phrase)]) == phrase), 0)


def _folded(text: str) -> str:
    """Without case and accents; what cannot be printed is a space."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKD", text.replace("\u00b4", "'")).casefold().translate(_FOLDED)
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else " " for letter in text)
    return unicodedata.normalize("NFC", text)


Ref = tuple[str, str]
"""The client, and the offer's id there."""


class Candidate(Struct, frozen=True):
    """An offer that may be like others. `head` is the one that it is linked to already."""

    ref: Ref
    likeness: str | None
    at: datetime
    head: Ref | None = None


class Link(Struct, frozen=True):
    """What an offer is: that of `head` again in the same client, or the same in another client."""

    head: Ref
    kind: Literal["repost", "duplicate"]


def links(new: Sequence[Candidate], known: Sequence[Candidate], within: timedelta) -> dict[Ref, Link]:
    """Which of the new offers are linked, and to which head.

    An offer joins the group of the one that is nearest in time to it, at most `within` away, among the known ones and
    those before it in `new`; of two equally near, that which was known first. The head of a group is never linked
    itself. An offer that is known, linked or a head already stays as it is.
    """
    first: dict[Ref, Candidate] = {}
    for offer in (*known, *new):
        first.setdefault(offer.ref, offer)
    offers = list(first.values())
    heads = _heads(offers)
    settled = {offer.ref for offer in known} | {offer.head for offer in offers if offer.head}
    found: dict[Ref, Link] = {}
    for offer, near in _neighbours([offer for offer in offers if offer.likeness is not None]):
        if offer.ref in settled or offer.head is not None:
            continue
        reachable = [other for other in near if abs(other.at - offer.at) <= within]
        if reachable:
            nearest = min(reachable, key=lambda other: abs(other.at - offer.at))
            head = heads[offer.ref] = heads[nearest.ref]
            found[offer.ref] = Link(head, "repost" if head[0] == offer.ref[0] else "duplicate")
    return found


def _heads(offers: Iterable[Candidate]) -> dict[Ref, Ref]:
    """The head of every offer: itself if it is not linked. Of links in a circle, one is taken for the head."""
    linked = {offer.ref: offer.head for offer in offers if offer.head is not None and offer.head != offer.ref}
    heads: dict[Ref, Ref] = {}
    for offer in offers:
        path: dict[Ref, None] = {}
        ref = offer.ref
        while ref not in heads and ref in linked and ref not in path:
            path[ref] = None
            ref = linked[ref]
        head = heads.get(ref, ref)
        heads.update(dict.fromkeys((*path, ref), head))
    return heads


def _neighbours(offers: Sequence[Candidate]) -> Iterator[tuple[Candidate, Sequence[Candidate]]]:
    """Every offer in turn, with those nearest in time among the ones before it: the first known first.

    All stand in the order of time. Taken out from the last to the first, each leaves between the two that are wanted.
    Of several at one time only the first stands there, for it is nearest to the others.
    """
    first: dict[tuple[str | None, datetime], int] = {}
    for index, offer in enumerate(offers):
        first.setdefault((offer.likeness, offer.at), index)
    standing = [first[place] for place in sorted(first, key=lambda place: (place[0] or "", place[1]))]
    beside = [(one, two) for one, two in pairwise(standing) if offers[one].likeness == offers[two].likeness]
    later, earlier = dict(beside), {two: one for one, two in beside}
    near: list[Sequence[int]] = [()] * len(offers)
    for index in reversed(range(len(offers))):
        foremost = first[offers[index].likeness, offers[index].at]
        if foremost != index:
            near[index] = (foremost,)
            continue
        before, after = earlier.pop(index, None), later.pop(index, None)
        near[index] = sorted(each for each in (before, after) if each is not None)
        if before is not None:
            _join(later, before, after)
        if after is not None:
            _join(earlier, after, before)
    for offer, others in zip(offers, near, strict=True):
        yield offer, [offers[other] for other in others]


def _join(beside: dict[int, int], one: int, two: int | None) -> None:
    if two is None:
        del beside[one]
    else:
        beside[one] = two
