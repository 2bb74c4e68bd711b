"""How a gate stands, as SQL over its row: what the generated columns hold that claims find gates by."""

from __future__ import annotations

# A gate opens again when it is neither closed nor spent.
_OPENS = "CASE WHEN closed_until IS NULL OR next_at > closed_until THEN next_at ELSE closed_until END"
_SHUT = f"held_by IS NULL AND ({_OPENS}) IS NOT NULL AND ({_OPENS}) IS DISTINCT FROM noticed"

STANDS = (
    f"CASE WHEN held_by IS NOT NULL THEN 'held' WHEN {_SHUT} THEN CASE WHEN metered OR throttles > 0 THEN 'shut_asked'"
    " ELSE 'shut' END WHEN metered OR throttles > 0 THEN 'asked' ELSE 'open' END"
)
"""Held by somebody, shut until a moment, to be asked before a claim, or open."""
SHUT_UNTIL = f"CASE WHEN {_SHUT} THEN {_OPENS} END"
"""The moment until which it is shut."""
