"""The jobs of price rules: reading the catalogues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.app.lifecycle import job
from penstock.lifecycles.rules.settings import RulesSettings, schedule_of
from penstock.model.errors import UsageError
from penstock.settings.shapes import written
from penstock.worker.schedule_unit import Schedule

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.worker.flow import Io
    from penstock.worker.job import JobResult


@job("read-catalogue", "Reads an account's whole catalogue, so that previews know its prices.")
async def read_catalogue(settings: RulesSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:
    from penstock.lifecycles.rules.catalogue import read_catalogue as read
    from penstock.lifecycles.rules.sources import make_account

    name = str((schedule.settings or {}).get("account"))
    if name not in settings.accounts:
        raise UsageError(f"no account is called {name!r}; add [rules.accounts.{name}] to the configuration")
    own = make_account(name, settings, ports)
    try:
        return await read(own, io)
    finally:
        await own.shop.close()


def schedules(settings: RulesSettings) -> Sequence[Schedule]:
    """One schedule for every account that is not paused."""
    return [
        Schedule(
            name=schedule_of(name),
            job=read_catalogue.name,
            every=written(own).get("catalogue_every", "6h"),
            settings={"account": name},
            settings_version="account",
        )
        for name, own in sorted(settings.accounts.items())
        if not own.paused
    ]
