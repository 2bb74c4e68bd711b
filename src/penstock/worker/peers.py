"""The other workers of this machine: one whose process has ended is known to be dead before its lease is over."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.ledger.processes import has_ended


class Peers:
    """Remembers which workers there are, as the ledger last said, and looks at their processes."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        #: Workers whose processes have ended and that nobody has reaped yet, as far as this one knows.
        self.dead: set[str] = set()

    def learn(self, processes: Mapping[str, str]) -> None:
        """The workers that the ledger takes for alive, and their processes."""
        self._known = dict(processes)
        self.dead &= self._known.keys()

    def look(self, me: str | None) -> bool:
        """Whether any of them has ended since the last look."""
        found = {worker for worker, process in self._known.items() if has_ended(process, me)} - self.dead
        self.dead |= found
        return bool(found)

    def reaped(self) -> None:
        """Whoever was dead has been seen to."""
        for worker in self.dead:
            self._known.pop(worker, None)
        self.dead.clear()
