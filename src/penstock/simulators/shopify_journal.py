"""What happened at Shopify's simulator, in order, and what it proves.

Every entry has a number that no other has, and the seconds of the simulator's clock. `who` is the token of a call, or
`other` for somebody who edits a price by other means. Of another process the journal comes as lines of JSON.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Literal

import msgspec

OTHER = "other"
ALL = "*"
"""In place of the ids: every variant was read, by a bulk query."""

Prices = tuple[str, str | None]
"""The price and `compareAtPrice`."""


class Read(msgspec.Struct, tag="read", frozen=True, gc=False):
    """Variants were read: the answer may still have been lost."""

    number: int
    at: float
    who: str
    variants: tuple[str, ...]
    points: float


class Mutation(msgspec.Struct, tag="mutation", frozen=True, gc=False):
    """A mutation was carried out; `answer` says whether its caller was told."""

    number: int
    at: float
    who: str
    product: str
    variants: tuple[str, ...]
    points: float
    answer: Literal["given", "lost"]


class Write(msgspec.Struct, tag="write", frozen=True, gc=False):
    """A price changed, or was set to what it was."""

    number: int
    at: float
    who: str
    product: str
    variant: str
    before: Prices
    after: Prices


class Throttle(msgspec.Struct, tag="throttle", frozen=True, gc=False):
    """A call was refused for want of points."""

    number: int
    at: float
    who: str
    requested: float
    available: float


Entry = Read | Mutation | Write | Throttle
_line = msgspec.json.Decoder(Entry).decode
_encode = msgspec.json.Encoder().encode


def to_lines(entries: Iterable[Entry]) -> bytes:
    """One line of JSON for each."""
    return b"".join(_encode(entry) + b"\n" for entry in entries)


def from_lines(text: bytes) -> list[Entry]:
    """The entries in such a text."""
    return [_line(line) for line in text.splitlines()]


def mutations_per_product(entries: Iterable[Entry]) -> Counter[str]:
    """How many mutations were carried out for each product."""
    return Counter(entry.product for entry in entries if isinstance(entry, Mutation))


def prices_seen(entries: Iterable[Entry]) -> dict[str, list[Prices]]:
    """Every price that each variant had, in order, of those that were written to."""
    seen: dict[str, list[Prices]] = {}
    for entry in entries:
        if isinstance(entry, Write):
            seen.setdefault(entry.variant, [entry.before]).append(entry.after)
    return seen


def repeated_unread(entries: Iterable[Entry]) -> list[Mutation]:
    """Mutations of a variant that was mutated before and not read since."""
    unread: dict[str, bool] = defaultdict(bool)
    found: list[Mutation] = []
    for entry in entries:
        if isinstance(entry, Read):
            if entry.variants == (ALL,):
                unread.clear()
            else:
                unread.update(dict.fromkeys(entry.variants, False))
        elif isinstance(entry, Mutation):
            if any(unread[variant] for variant in entry.variants):
                found.append(entry)
            unread.update(dict.fromkeys(entry.variants, True))
    return found


def overwritten(entries: Iterable[Entry]) -> list[Write]:
    """Writes that replaced what somebody else had set."""
    foreign: dict[str, Prices] = {}
    found: list[Write] = []
    for entry in entries:
        if isinstance(entry, Write):
            if entry.who == OTHER:
                foreign[entry.variant] = entry.after
            elif foreign.get(entry.variant) == entry.before and entry.after != entry.before:
                found.append(entry)
                del foreign[entry.variant]
    return found
