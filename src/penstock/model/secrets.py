"""Secrets that this program gives out: a name to find one by, and 256 random bits of which only a hash is kept.

What is random has no pattern to guess, so that a plain SHA-256 is enough; it is compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import NamedTuple

from penstock.model.clock import Rng

_FORM = re.compile(r"(pst|pss)_([0-9a-f]{20})_([0-9a-f]{64})")
_MASKED = re.compile(r"[0-9a-f]{128}")
_BYTES = 32
TOKEN, SESSION = "pst", "pss"


class Drawn(NamedTuple):
    """A fresh secret: `text` is shown once, `id` and `hash` are kept."""

    id: str
    hash: str
    text: str


def draw(rng: Rng, kind: str = TOKEN) -> Drawn:
    """Draw one."""
    name, secret = rng.token(), rng.secret()
    return Drawn(name, hash_of(secret), f"{kind}_{name}_{secret}")


def parts(text: str, kind: str = TOKEN) -> tuple[str, str] | None:
    """Its id and the hash of its secret; None for a text that is none of that kind."""
    found = _FORM.fullmatch(text)
    return (found[2], hash_of(found[3])) if found is not None and found[1] == kind else None


def hash_of(secret: str) -> str:
    """What is kept of it."""
    return hashlib.sha256(secret.encode()).hexdigest()


def masked(rng: Rng, secret: str) -> str:
    """256 bits in hexadecimal digits, as they may stand in a compressed page: another text each time."""
    mask = bytes.fromhex(rng.secret())
    return mask.hex() + _crossed(mask, bytes.fromhex(secret)).hex()


def unmasked(text: str) -> str:
    """What was masked; nothing for a text that was not."""
    if _MASKED.fullmatch(text) is None:
        return ""
    both = bytes.fromhex(text)
    return _crossed(both[:_BYTES], both[_BYTES:]).hex()


def _crossed(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def same(one: str, other: str) -> bool:
    """Whether two hashes are equal, in a time that does not say where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())
