"""The metrics of a program: the kernel's, and those of its lifecycles. `Metrics.text` is what `/metrics` answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.observe.catalogue import CATALOGUE, Metric, Sample
from penstock.observe.metrics import of_ledger, of_process, render

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.program import Program
    from penstock.ledger.store.database import Database

_SECONDS = 5.0


def catalogue(app: App) -> tuple[Metric, ...]:
    """Every metric of a program."""
    return (*CATALOGUE, *(metric for one in app.lifecycles for metric in one.metrics))


class Metrics:
    """Gathers what the ledger says at most every few seconds, whoever asks. It blocks: call it off the event loop.

    `counts` is `Process.counts`: what the worker of this process has counted. A process without a worker has none.
    """

    def __init__(
        self, program: Program, database: Database, counts: Callable[[], Mapping[str, Mapping[str, int]]] | None = None
    ) -> None:
        self._program = program
        self._database = database
        self._counts = counts
        self._kept: tuple[float, list[Sample]] | None = None

    def samples(self) -> list[Sample]:
        """What is measured now."""
        now = self._program.clock.elapsed()
        if self._kept is None or now - self._kept[0] > _SECONDS:
            found = of_ledger(self._database, self._program.app.machines)
            for one in self._program.app.own:
                found += one.measure(self._database, self._program.clock.now())
            self._kept = (now, found)
        own = [] if self._counts is None else list(of_process(self._counts()))
        return [*own, *self._kept[1]]

    def text(self) -> tuple[bytes, str]:
        """The answer to Prometheus, and its content type."""
        return render(catalogue(self._program.app), self.samples())
