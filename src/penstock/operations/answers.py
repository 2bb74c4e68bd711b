"""An answer as exact JSON, the same on every surface."""

from __future__ import annotations

import re
from typing import Any

import msgspec

# What JSON leaves as it is inside a text, and a terminal would obey.
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def json_text(value: Any) -> str:
    """Exact JSON: what a terminal would obey is escaped inside its texts."""
    encoded = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded)
