"""The statements of a claim: which units are picked, how a pick widens to their siblings, and how they are taken."""

from __future__ import annotations

from typing import NamedTuple

from penstock.ledger.store.database import Database
from penstock.ledger.store.gate_walk import MOMENT, OPEN, one_moment
from penstock.ledger.store.gates_due import anywhere, nearest
from penstock.ledger.store.statements import INTEGER, TEXT, accused, batch, waiting
from penstock.model.machine import Machine
from penstock.model.siblings import APART_FROM_CRASHES, APART_FROM_SUSPICION

# So many times what a claim could take it looks at, where others may be claiming the same.
_LOOKED_AT = 4


class ClaimSql(NamedTuple):
    """The statements of one kind of claim.

    Where `take` is empty, `pick` does it all and returns the units. Otherwise it picks their ids, as one JSON text;
    `widen` adds those of their siblings, `take` changes them and `read` returns them (`:ids`).
    """

    pick: str
    take: str = ""
    read: str = ""
    #: Empty: the machine declares no siblings.
    widen: str = ""
    #: The gates to pick from, in rotation. Empty: `pick` finds them itself, or it is told.
    gates: str = ""


def claim(
    database: Database,
    machine: Machine,
    *,
    metered: bool = False,
    suspects: bool = False,
    priced: bool = False,
    near: bool = False,
) -> ClaimSql:
    """Claim up to `:n` due units: a fair share from each open gate, gates in rotation after `:gate`, oldest first.

    Gates with a budget, and those that have just been closed, are passed by: they are asked first, and then it is
    `metered`, with the gates and the share of each in `:batch`.
    `suspects`: see `statements.accused`. `priced`: their steps are priced before they are taken. `near`: nothing is
    claimed if the nearest gates do not say from which to claim, see `gates_due`.

    On PostgreSQL it is one statement that returns the units, unless something is to be done between the pick and the
    claim. On SQLite, where a statement costs little, it is several: the gates; then `pick`, of each gate of `:batch` its name
    and the ids of up to `:share` units, as a JSON text. Rows that come one by one would each have to wait for the
    interpreter's lock.
    """
    due, table, now = machine.due, machine.table, database.now_sql
    free = accused(due) if suspects else waiting(due)
    taken = ["claimed_by = :worker", f"claimed_at = {now}", "version = t.version + 1"]
    sets = ", ".join([*taken, *_on_claim(database, machine)])
    postgres = database.dialect == "postgresql"
    if postgres:
        gates = (
            _asked_gates(database, now) if metered else _gates_postgres(database, machine, suspects=suspects, near=near)
        )
        picked = _pick_postgres(machine, metered=metered, suspects=suspects)
        if machine.siblings is None and not priced:
            returning = ", ".join(f"t.{machine.column(c)}" for c in machine.columns)
            took = f"UPDATE {table} AS t SET {sets} FROM picked WHERE t.unit_id = picked.unit_id RETURNING {returning}"
            return ClaimSql(f"WITH RECURSIVE {gates}, {picked} {took}")
        pick = f"WITH RECURSIVE {gates}, {picked} SELECT {database.sql.gathered('unit_id')} FROM picked"
    else:
        source = f"{table} c INDEXED BY {table}_{'suspects' if suspects else 'due'}"
        pick = _pick_sqlite(database, source, due, free)
    columns = ", ".join(machine.column(c) for c in machine.columns)
    mine = f"unit_id IN ({database.sql.listed('ids')})"
    return ClaimSql(
        pick,
        f"UPDATE {table} AS t SET {sets} WHERE {mine}",
        f"SELECT {columns} FROM {table} WHERE {mine}",
        _widen(database, machine, suspects=suspects) if machine.siblings else "",
        "" if metered or postgres else _gates_sqlite(database, machine, suspects=suspects, near=near),
    )


def together(alias: str = "") -> str:
    """The condition under which a unit steps with its siblings (see `model.siblings`)."""
    dot = f"{alias}." if alias else ""
    return f"{dot}crashes < {APART_FROM_CRASHES} AND {dot}suspicion < {APART_FROM_SUSPICION}"


def _level(alias: str, *, suspects: bool) -> str:
    """Whether it is among the suspects that are asked for, or is none.

    In other words than those of the indexes of what is due: by these the planners might read all of that.
    """
    return f"{alias}.suspicion + 0 BETWEEN :low AND :high" if suspects else f"{alias}.suspicion < 1"


def _widen(database: Database, machine: Machine, *, suspects: bool) -> str:
    """The picked units with those of their siblings that are due and free behind the same gate.

    A group is taken whole, up to the machine's most; gates take turns. With `:n` units no other group begins.
    """
    due, table, key, most = machine.due, machine.table, machine.siblings, machine.siblings_at_once
    siblings = (
        f"c.{key} = groups.shared AND c.gate_id = groups.gate_id AND c.{due} <= {database.now_sql}"
        f" AND c.{due} IS NOT NULL AND c.claimed_by IS NULL AND c.parked_at IS NULL AND {_level('c', suspects=suspects)}"
        f" AND {together('c')} ORDER BY c.{due}, c.unit_id LIMIT {most}"
    )
    if database.dialect == "postgresql":
        source = f"SELECT c.unit_id FROM {table} c WHERE {siblings} FOR NO KEY UPDATE SKIP LOCKED"
        joined = f"groups CROSS JOIN LATERAL ({source}) AS u"
    else:
        # SQLite has no LATERAL; a list that depends on the group is made anew for each.
        source = f"SELECT c.unit_id FROM {table} c INDEXED BY {table}_siblings WHERE {siblings}"
        joined = f"groups CROSS JOIN {table} u WHERE u.unit_id IN ({source})"
    return f"""WITH picked AS MATERIALIZED (SELECT unit_id, gate_id, {due} AS due, CASE WHEN {together()} THEN {key} END AS shared
  FROM {table} WHERE unit_id IN ({database.sql.listed("ids")})),
oldest AS (SELECT gate_id, shared, row_number() OVER (PARTITION BY gate_id ORDER BY min(due), min(unit_id)) AS turn
  FROM picked WHERE shared IS NOT NULL GROUP BY gate_id, shared),
groups AS MATERIALIZED (SELECT gate_id, shared, row_number() OVER (ORDER BY turn, gate_id > :gate DESC, gate_id) AS place
  FROM oldest ORDER BY place),
wide AS MATERIALIZED (SELECT u.unit_id, groups.place FROM {joined} LIMIT :n + {most - 1})
SELECT {database.sql.gathered("unit_id")} FROM (SELECT unit_id FROM picked WHERE shared IS NULL
  UNION ALL SELECT unit_id FROM (SELECT unit_id, rank() OVER (ORDER BY place) AS begins FROM wide) AS placed
    WHERE begins <= :n) AS all_of_them"""


def _on_claim(database: Database, machine: Machine) -> list[str]:
    if not machine.on_claim:
        return []
    sources = ", ".join(f"'{s}'" for s in machine.on_claim)
    moves = " ".join(f"WHEN '{s}' THEN '{e.target}'" for s, e in machine.on_claim.items())
    reasons = " ".join(f"WHEN '{s}' THEN '{e.trigger}'" for s, e in machine.on_claim.items())
    return [
        f"status = CASE t.status {moves} ELSE t.status END",
        f"changed_by = CASE WHEN t.status IN ({sources}) THEN :actor ELSE t.changed_by END",
        f"change_reason = CASE t.status {reasons} ELSE t.change_reason END",
        f"changed_at = CASE WHEN t.status IN ({sources}) THEN {database.now_sql} ELSE t.changed_at END",
    ]


_REGISTERED = "EXISTS (SELECT 1 FROM worker WHERE id = :worker AND reaped_at IS NULL)"
# The key-share lock on the worker's own row: a reaper, which wants FOR UPDATE, cannot free this worker's units between
# this claim and its commit.
_ME = "me AS MATERIALIZED (SELECT id FROM worker WHERE id = :worker AND reaped_at IS NULL FOR KEY SHARE)"


def _gates(database: Database, machine: Machine, now: str, given: str, *, suspects: bool, near: bool) -> str:
    if near:
        return nearest(database, [machine], OPEN, name="gates", wanted=":n", now=now, suspects=suspects, given=given)
    return anywhere(database, machine, OPEN, name="gates", wanted=":n", now=now, suspects=suspects, given=given)


def _gates_postgres(database: Database, machine: Machine, *, suspects: bool, near: bool) -> str:
    now, given = one_moment(database), "EXISTS (SELECT 1 FROM me)"
    gates = _gates(database, machine, now, given, suspects=suspects, near=near)
    return f"{MOMENT.format(database.now_sql)}, {_ME}, {gates}"


def _asked_gates(database: Database, now: str) -> str:
    source = batch(database, {"gate_id": TEXT, "share": INTEGER})
    return f"""moment AS MATERIALIZED (SELECT {now} AS now), {_ME},
gates AS MATERIALIZED (SELECT n_gate_id AS gate_id, n_share AS share FROM {source} WHERE EXISTS (SELECT 1 FROM me))"""


def _pick_postgres(machine: Machine, *, metered: bool, suspects: bool) -> str:
    due, table = machine.due, machine.table
    share = "gates.share" if metered else "(SELECT (:n + count(*) - 1) / greatest(count(*), 1) FROM gates)"
    free = accused(due, "c") if suspects else waiting(due, "c")
    behind = f"FROM {table} c WHERE c.gate_id = gates.gate_id AND c.{due} <= (SELECT now FROM moment) AND {free}"
    some = f"SELECT c.unit_id {behind} ORDER BY c.{due}, c.unit_id LIMIT {share} FOR NO KEY UPDATE SKIP LOCKED"
    if machine.siblings is not None:
        some = _oldest_postgres(machine, behind, share, _level("t", suspects=suspects))
    return f"""picked AS MATERIALIZED (SELECT u.unit_id FROM gates CROSS JOIN LATERAL (
    {some}) u LIMIT :n)"""


def _oldest_postgres(machine: Machine, behind: str, share: str, level: str) -> str:
    """Of siblings only the oldest: whoever has its lock has them all, so that claims at once do not part them.

    Not all that waits is looked through for further groups.
    """
    due, shared = machine.due, f"CASE WHEN {together('c')} THEN c.{machine.siblings} END AS shared"
    waits = (
        f"SELECT c.unit_id, c.{due}, {shared} {behind} ORDER BY c.{due}, c.unit_id"
        f" LIMIT {_LOOKED_AT} * {share} + {machine.siblings_at_once}"
    )
    number = f"row_number() OVER (PARTITION BY shared ORDER BY {due}, unit_id)"
    # What was read must still be so when its lock is had; in other words than those of any index, to go by the id.
    still = (
        f"t.gate_id = gates.gate_id AND t.{due} <= (SELECT now FROM moment) AND COALESCE(t.claimed_by, '') = ''"
        f" AND t.parked_at IS NULL AND {level}"
    )
    return f"""SELECT t.unit_id FROM (SELECT unit_id, {due}, shared IS NULL OR {number} = 1 AS is_oldest FROM ({waits}) AS w) AS o
    JOIN {machine.table} t ON t.unit_id = o.unit_id WHERE o.is_oldest AND {still}
    ORDER BY o.{due}, o.unit_id LIMIT {share} FOR NO KEY UPDATE OF t SKIP LOCKED"""


def _gates_sqlite(database: Database, machine: Machine, *, suspects: bool, near: bool) -> str:
    gates = _gates(database, machine, ":now", _REGISTERED, suspects=suspects, near=near)
    return f"WITH RECURSIVE {gates} SELECT gate_id FROM gates"


def _pick_sqlite(database: Database, source: str, due: str, free: str) -> str:
    # SQLite has no LATERAL, and no LIMIT of its can differ by row: gates whose shares are equal are asked together.
    some = f"""SELECT unit_id FROM {source} WHERE c.gate_id = n_gate_id AND {due} <= :now AND {free}
      ORDER BY {due}, unit_id LIMIT :share"""
    gates = batch(database, {"gate_id": TEXT})
    return f"SELECT n_gate_id, (SELECT json_group_array(unit_id) FROM ({some})) FROM {gates} WHERE {_REGISTERED}"
