"""What the ledger says a worker holds, compared with what it holds: after a failover they may differ for ever.

A claim or a commit that is under way makes a difference too, for a moment. What is put right is therefore what was the
same difference twice in a row, a renewal of the lease apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Key = tuple[str, str]


class Reconciliation:
    """Remembers the differences of one comparison for the next."""

    def __init__(self) -> None:
        self._forgotten: dict[Key, int] = {}
        self._unknown: dict[Key, Any] = {}

    def compare(self, ledger: Mapping[Key, int], held: Mapping[Key, Any]) -> tuple[dict[Key, int], list[Any]]:
        """Claims of the ledger that the worker has forgotten, and what it holds without a claim; each seen twice.

        `ledger` gives the version of each claim, `held` what the worker holds.
        """
        forgotten = {key: version for key, version in ledger.items() if key not in held}
        unknown = {key: one for key, one in held.items() if key not in ledger}
        lasting = {key: version for key, version in forgotten.items() if self._forgotten.get(key) == version}
        lost = [one for key, one in unknown.items() if self._unknown.get(key) is one]
        self._forgotten, self._unknown = forgotten, unknown
        return lasting, lost
