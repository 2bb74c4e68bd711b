"""The job that keeps the spreadsheet in step with the ledger, and its schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.app.lifecycle import job
from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.model.errors import UsageError
from penstock.settings.shapes import written
from penstock.worker.schedule_unit import Schedule

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.worker.flow import Io
    from penstock.worker.job import JobResult

SCHEDULE = "queries-sheet"


@job("sync-sheet", "Writes companies and offers to the spreadsheet, and reads people's feedback.")
async def sync_sheet(settings: QueriesSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001 - one shape
    """Its connections live as long as one synchronisation."""
    from penstock.connectors.google_sheets.client import GoogleSheets
    from penstock.lifecycles.queries.sheets import sync

    own = settings.sheet
    if own is None:
        raise UsageError("there is no spreadsheet in the configuration; add [queries.sheet]")
    sheet = GoogleSheets(own.url, own.credentials, ports.clock)
    try:
        return await sync(settings, io, sheet)
    finally:
        await sheet.close()


def schedule(settings: QueriesSettings) -> Schedule | None:
    """When the spreadsheet is synchronised; None where there is none."""
    own = settings.sheet
    if own is None:
        return None
    given = written(own)
    return Schedule(
        name=SCHEDULE,
        job=sync_sheet.name,
        every=given["every"],
        hours=own.hours,
        time_zone=own.time_zone,
        settings_version="sheet",
    )
