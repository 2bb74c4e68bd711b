"""The kernel's own lifecycle: schedules, deliveries, alerts and their care, and the commands that every program has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.app import alerts as kernel_alerts
from penstock.app.kernel_jobs import collect_raw, prune, roll_up_flow, sweep_stages
from penstock.app.lifecycle import Data, Lifecycle
from penstock.ledger import delivery
from penstock.ledger.past import since
from penstock.model.decider import Decider
from penstock.operations import (
    actions,
    change,
    create,
    dead,
    doctor,
    events,
    find,
    flow,
    forecast,
    gates,
    machines,
    needs,
    raw,
    schedules,
    status,
    tokens,
    units,
    watching,
)
from penstock.operations.alerts import commands as alerts
from penstock.operations.alerts.machine import machine as alert
from penstock.operations.bulk.machine import bulk_action
from penstock.operations.bulk.machine import decide as decide_bulk
from penstock.operations.pictures import Shares
from penstock.settings.kernel import KernelSettings
from penstock.worker import schedule_unit

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.worker.flow import AnyFlow


def _data() -> Data:
    from penstock.operations import access_tables
    from penstock.operations.alerts.tables import alert_memory
    from penstock.operations.bulk.tables import bulk_item
    from penstock.operations.dismissal import dismissal

    return Data(tables=[dismissal, bulk_item, alert_memory, *access_tables.TABLES])


def _build(settings: KernelSettings, ports: Ports) -> Sequence[AnyFlow]:  # noqa: ARG001 - one shape
    from penstock.operations.bulk.flow import BulkActions
    from penstock.worker.outbox import Deliveries
    from penstock.worker.schedule import Schedules

    return [Schedules(ports.program.jobs()), Deliveries(ports.program.subscribers()), BulkActions()]


def _decides() -> Mapping[str, Decider]:
    return {
        schedule_unit.machine.name: Decider(schedule_unit.decide),
        # It depends on who subscribes, which is known once all is built.
        delivery.machine.name: Decider(None, gate=lambda unit, _: delivery.gate_of(unit.subscriber)),
        bulk_action.name: Decider(decide_bulk),
    }


lifecycle = Lifecycle(
    "kernel",
    "What every program has: schedules, deliveries, gates, units and their care.",
    settings=KernelSettings,
    machines=[schedule_unit.machine, delivery.machine, bulk_action, alert],
    data=_data,
    past={"dismissal": since("changed_at"), **tokens.PAST},
    build=_build,
    decides=_decides,
    jobs=[prune, sweep_stages, collect_raw, roll_up_flow, *kernel_alerts.JOBS],
    schedules=kernel_alerts.schedules,
    subscribers=kernel_alerts.subscribers,
    readings=[
        *needs.READINGS,
        *find.READINGS,
        *units.READINGS,
        *dead.READINGS,
        *actions.READINGS,
        *gates.READINGS,
        *schedules.READINGS,
        *events.READINGS,
        *alerts.READINGS,
        *status.READINGS,
        *flow.READINGS,
        *forecast.READINGS,
        *machines.READINGS,
        *doctor.READINGS,
        *watching.READINGS,
        *raw.READINGS,
        *tokens.READINGS,
    ],
    operations=[
        *create.OPERATIONS,
        *change.OPERATIONS,
        *dead.OPERATIONS,
        *actions.OPERATIONS,
        *gates.OPERATIONS,
        *schedules.OPERATIONS,
        *events.OPERATIONS,
        *alerts.OPERATIONS,
        *flow.OPERATIONS,
        *raw.OPERATIONS,
        *tokens.OPERATIONS,
    ],
    pictures=[
        Shares(
            says="How far it has come.",
            reading=actions.show_action,
            name="action",
            whole="total",
            parts={"moved": "done", "skipped": "hold"},
        ),
    ],
)
