"""Customer ids as Google Ads writes them: digits on the wire, and hyphens between them for people."""

from __future__ import annotations

import re

from penstock.model.errors import UsageError

_DIGITS = re.compile(r"[0-9]{1,19}")


def customer_digits(text: str) -> str:
    """A customer's id as digits: hyphens are removed. Raises UsageError for anything else."""
    digits = text.strip().replace("-", "")
    if not _DIGITS.fullmatch(digits):
        raise UsageError(f"{text!r} is not a customer id; write digits, with or without hyphens, like 123-456-7890")
    return digits
