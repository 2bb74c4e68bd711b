"""What to do about an alert: the runbook's entries, which `docs/alerts.md` shows too."""

from __future__ import annotations

import re
from pathlib import Path

FILE = Path(__file__).with_suffix(".md")
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def entry(policy: str) -> str | None:
    """The entry of a policy, as one paragraph without links; None for a policy of somebody's own."""
    for part in FILE.read_text().split("### "):
        name, _, text = part.partition("\n")
        if name == policy:
            return _LINK.sub(r"\1", " ".join(text.split()))
    return None
