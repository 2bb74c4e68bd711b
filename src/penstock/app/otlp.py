"""Sends metrics and spans of a process by OTLP, where `[otlp]` has an address."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog

from penstock.app.metrics import Metrics, catalogue
from penstock.model.errors import LedgerError

if TYPE_CHECKING:
    from penstock.app.process import Process
    from penstock.app.program import Program
    from penstock.ledger.store.database import Database

log = structlog.get_logger()


@contextlib.contextmanager
def sending(process: Process) -> Iterator[None]:
    """Send while the process works. Raises UsageError where the packages are missing."""
    settings = process.program.configuration.kernel.otlp
    if settings.url is None:
        yield
        return
    from penstock.ledger.store.database import open_database
    from penstock.model.trace import tracing
    from penstock.observe import otlp

    otlp.require()
    with contextlib.ExitStack() as stack:
        configuration, clock = process.program.configuration, process.program.clock
        database = open_database(configuration.ledger_url(), clock, connections=2)
        stack.callback(database.close)
        if settings.trace_share > 0:
            spans = otlp.Spans(settings, otlp.resource())
            stack.callback(spans.close)
            stack.enter_context(tracing(spans))
        stack.enter_context(_Sender(process, database).running())
        log.info("otlp.sending", address=settings.url, traces=settings.trace_share)
        yield


class _Sender:
    """Sends the metrics every so often, and once more at the end. Nothing of the work waits for it."""

    def __init__(self, process: Process, database: Database) -> None:
        from penstock.observe import otlp

        self._process = process
        self._database = database
        self._settings = process.program.configuration.kernel.otlp
        self._exporter = otlp.metric_exporter(self._settings)
        self._resource = otlp.resource()
        self._began = process.program.clock.now()
        self._gathered: tuple[Program, Metrics] | None = None
        self._stop = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """On a thread."""
        thread = threading.Thread(target=self._run, name="penstock-otlp", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._exporter.shutdown()  # a repetition that waits is given up
            thread.join(1.0)

    def _run(self) -> None:
        while not self._stop.wait(self._settings.every.total_seconds()):
            self._send()

    def _send(self) -> None:
        from penstock.observe import otlp

        program = self._process.program
        if self._gathered is None or self._gathered[0] is not program:
            self._gathered = program, Metrics(program, self._database, self._process.counts)
        try:
            samples = self._gathered[1].samples()
        except LedgerError as error:
            log.warning("metrics.unanswered", error=str(error))
            return
        now = program.clock.now()
        self._exporter.export(otlp.metrics_data(catalogue(program.app), samples, self._resource, self._began, now))
