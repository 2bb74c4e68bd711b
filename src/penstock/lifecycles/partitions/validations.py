"""The flow of `validation`: judge a run that somebody wants judged, and point at it where that was wanted."""

from __future__ import annotations

from datetime import timedelta

from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.columns import readable
from penstock.lifecycles.partitions.decide import decide_validation
from penstock.lifecycles.partitions.flow import STORE_AWAY
from penstock.lifecycles.partitions.judgement import Validators
from penstock.lifecycles.partitions.machine import V, Validation, key_of, validation
from penstock.lifecycles.partitions.settings import PartitionSettings, some
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Outcome
from penstock.model.unit import replace
from penstock.raw.store import RawUnavailable
from penstock.worker.flow import Flow, Io

_MOST_NAMED = 20


class Validations(Flow[Validation, PartitionSettings, None]):
    """Judges by the same validators as the runs that workers land."""

    machine = validation
    decide = staticmethod(decide_validation)
    deadline = timedelta(hours=1)

    def __init__(self, validators: Validators) -> None:
        super().__init__(validators.settings)
        self._validators = validators

    async def act(self, what: str, unit: Validation, seen: None, io: Io) -> Outcome[Validation]:  # noqa: ARG002 - one shape
        key, sink = key_of(unit), self._validators.sink
        try:
            if await io.run(sink.find, key, unit.run_id) is None:
                known = await io.run(sink.runs, key)
                return _refused(unit, f"{key} has no finalised run {unit.run_id}; it has {_newest(known)}")
            verdict = await io.run(self._validators.inspect, key, unit.run_id)
        except RawUnavailable as error:
            return Outcome(unit, replace(unit, due_at=io.now() + STORE_AWAY), str(error), keep_crashes=True)
        except UsageError as error:
            return _refused(unit, str(error))
        if unit.point and not verdict.good:
            return _refused(unit, f"run {unit.run_id} is not good: {verdict.error}")
        who, why = await io.ledger(lambda ledger: _wish(ledger, unit))
        pointed_by, now = f"{who} ({why})" if unit.point else None, io.now()
        made = await io.ledger(
            lambda ledger: self._validators.judgement(ledger, key, verdict, now, by=who, pointed_by=pointed_by)
        )
        return Outcome(
            unit,
            replace(unit, status=V.DONE, verdict=made.judged.verdict, due_at=None),
            made.judged.reason,
            writes=made.writes,
            others=made.others,
            events=made.events,
            actor=Actor.VALIDATOR,
        )


def _refused(unit: Validation, why: str) -> Outcome[Validation]:
    after = replace(unit, status=V.REFUSED, verdict=None, due_at=None)
    return Outcome(unit, after, readable(why), actor=Actor.VALIDATOR)


def _newest(runs: list[str]) -> str:
    return some(reversed(runs), _MOST_NAMED)


def _wish(ledger: Ledger, unit: Validation) -> tuple[str, str]:
    """Who wants it and why, as the history has it."""
    sql = (
        f"SELECT actor, reason FROM transition_log WHERE machine = '{validation.name}' AND unit_id = :unit_id"
        " AND to_status = 'wanted' AND (from_status IS NULL OR from_status <> 'wanted') ORDER BY seq DESC LIMIT 1"
    )
    found = ledger.read(lambda cursor: cursor.rows(sql, unit_id=unit.unit_id))
    actor, reason = found[0] if found else (unit.changed_by, unit.change_reason)
    return str(actor).partition(":")[2] or str(actor), str(reason or "no reason given")
