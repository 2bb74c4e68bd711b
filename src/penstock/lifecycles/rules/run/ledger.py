"""What the flow of runs asks of the ledger: the lane of an account, and how a run's targets stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lifecycles.rules.lane import L, Lane, rule_lane
from penstock.lifecycles.rules.run.decide import Seen
from penstock.lifecycles.rules.run.machine import R, Run, rule_run
from penstock.model.unit import key_part

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Cursor
    from penstock.operations.reader import Reader


def seen_of(ledger: Ledger | Reader, run: Run) -> Seen:
    """How the ledger stands around a run."""
    mine = f"rule_run_id = {ledger.database.sql.identifier('run')}"
    given = {"run": str(run.id)}

    def there(cursor: Cursor, condition: str) -> bool:
        return bool(cursor.rows(f"SELECT 1 FROM rule_target WHERE {mine} AND {condition} LIMIT 1", **given))

    def count(cursor: Cursor, condition: str) -> int:
        return int(cursor.rows(f"SELECT count(*) FROM rule_target WHERE {condition} AND {mine}", **given)[0][0])

    def work(cursor: Cursor) -> dict[str, Any]:
        found: dict[str, Any] = {"held": there(cursor, "status = 'QUEUED' AND held")}
        if run.status is R.APPLYING:
            found["unqueued"] = there(cursor, "status = 'PREVIEW' AND included")
            found["free"] = there(cursor, "status = 'QUEUED' AND NOT held AND NOT halted")
            found["moving"] = there(cursor, "status = 'APPLYING'")
            found["unsettled"] = there(cursor, "status = 'APPLYING' AND NOT halted AND claimed_by IS NULL")
            found["parked"] = count(cursor, "parked_at IS NOT NULL")
            found["in_doubt"] = count(cursor, "status = 'APPLYING' AND in_doubt_since IS NOT NULL")
        return found

    return Seen(ahead=ahead_of(ledger, run), **ledger.read(work))


def lane_of(ledger: Ledger | Reader, account: str) -> Lane | None:
    """The lane of an account, once a run has taken it."""
    found: list[Lane] = ledger.get_many(rule_lane, [key_part(account)])
    return found[0] if found else None


def ahead_of(ledger: Ledger | Reader, run: Run) -> str | None:
    """The run that has the lane, if that is another one and it is still applying."""
    lane = lane_of(ledger, run.account)
    if lane is None or lane.status is L.FREE or lane.run_id in (None, run.id):
        return None
    holder: list[Run] = ledger.get_many(rule_run, [str(lane.run_id)])
    return str(lane.run_id) if holder and holder[0].status is R.APPLYING else None
