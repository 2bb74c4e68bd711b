"""What was shown, as one digest: queueing is bound to it, so that nothing is queued but what was seen.

The order of the targets makes no difference, and none of them is kept: each is hashed to 2,048 bits, and the hashes are
added up. So long a sum cannot be forged by choosing targets, as a sum of short hashes could.
"""

from __future__ import annotations

import hashlib

import msgspec

from penstock.lifecycles.rules.outcomes import Target

_BYTES = 256
_MODULUS = 1 << (8 * _BYTES)


class PreviewDigest:
    """The digest of a preview, target by target. The same for the same rule, account and targets, in any order."""

    def __init__(self, rule_digest: str, account: str) -> None:
        self._head = (rule_digest, account)
        self._count = 0
        self._sum = 0
        self._encode = msgspec.json.Encoder().encode

    def add(self, variant_id: str, target: Target) -> None:
        before, after = target.before, target.after
        line = self._encode(
            (variant_id, before.currency, before.amount, before.compare_at, after.amount, after.compare_at)
        )
        self._sum += int.from_bytes(hashlib.shake_128(line).digest(_BYTES))
        self._count += 1

    def hexdigest(self) -> str:
        """The digest so far."""
        head = self._encode((*self._head, self._count))
        return hashlib.sha256(head + b"\0" + (self._sum % _MODULUS).to_bytes(_BYTES)).hexdigest()
