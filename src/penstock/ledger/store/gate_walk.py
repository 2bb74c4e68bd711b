"""Walking to the gates that let units through and have units behind them, without a look at any other.

A walk goes from gate to gate in the order of their names and leaps over what does not matter: from a gate to the next
that anybody waits behind (by the index of what is due), from there to the next that stands as wanted (by the index of
how gates stand), and so on. So it takes as many steps as the smaller of the two sets has gates, and it ends early.

A step costs several times what a look behind one more gate of a list costs. Where many steps come to nothing, as when
units wait for later behind most gates, the walk is broken off, and the other gates that stand so are gone through.
"""

from __future__ import annotations

from penstock.ledger.store.database import Database
from penstock.ledger.store.statements import accused, waiting
from penstock.model.machine import Machine

#: How a gate stands (see `schema.tables.gate`): open to anybody, or to be asked first; the same, but shut for a time.
OPEN = "open"
ASKED = "asked"
SHUT = {OPEN: "shut", ASKED: "shut_asked"}
#: A CTE with the present instant, which is then the same in all of the statement.
MOMENT = "moment AS MATERIALIZED (SELECT {} AS now)"
#: A walk after this begins with the first gate; only the one without a name, which may have units too, comes last.
BEGINNING = "''"
_ONWARDS_AND_ANEW = ("> w.gate_id", f">= {BEGINNING}")
# So many steps that come to nothing a walk makes.
_STEPS = 100


def one_moment(database: Database) -> str:
    """The present instant beside `MOMENT`. SQLite's is a parameter, and it would look up the CTE time and again."""
    return "(SELECT now FROM moment)" if database.dialect == "postgresql" else database.now_sql


def head(database: Database, machine: Machine, gate: str, *, suspects: bool = False, levels: bool = False) -> str:
    """When the first of a machine's units behind a gate is due; NULL where none waits.

    `levels`: of the suspects between `:low` and `:high` only.
    """
    due, free = machine.due, waiting(machine.due, "d", suspects=suspects)
    if levels:
        free = accused(due, "d")
    source = _source(database, machine, "d", suspects=suspects)
    # LIMIT keeps the planners from turning it round into one look at all that waits.
    return f"(SELECT d.{due} FROM {source} WHERE d.gate_id = {gate} AND {free} ORDER BY d.{due} LIMIT 1)"


def walk(
    database: Database,
    machine: Machine,
    stands: str,
    *,
    name: str,
    most: str,
    now: str,
    last: str = BEGINNING,
    suspects: bool = False,
    given: str = "true",
) -> str:
    """A recursive CTE `name` (gate_id, head): gates that stand so, with units behind them, in rotation after `last`.

    It ends when the heads of `most` gates are due. Its first row is no gate. Where it was broken off, `rest` knows the
    others.
    """
    postgres = database.dialect == "postgresql"
    kind = "timestamptz" if postgres else "TEXT"
    due = f"CASE WHEN w.head <= {now} THEN 1 ELSE 0 END"
    first = head(database, machine, "g.gate_id", suspects=suspects, levels=suspects)
    if postgres and not suspects:  # of whom not everyone is asked for
        first = f"CASE WHEN g.gate_id = g.waits THEN g.due ELSE {first} END"
    step = (_step_postgres if postgres else _step_sqlite)(database, machine, stands, suspects=suspects)
    # Below the last gate it has begun anew.
    anew = "CASE WHEN w.anew = 1 OR g.gate_id <= w.gate_id THEN 1 ELSE 0 END"
    ends = f"({anew} = 0 OR g.gate_id <= {last})"
    return f"""{name}(gate_id, head, found, missed, anew) AS MATERIALIZED (
  SELECT CAST({last} AS TEXT), CAST(NULL AS {kind}), 0, 0, 0 WHERE {given}
  UNION ALL SELECT g.gate_id, {first}, w.found + {due}, w.missed + 1 - {due}, {anew} FROM {name} w {step}
    AND w.found + {due} < {most} AND w.missed < {_STEPS} AND {ends})"""


def _step_sqlite(database: Database, machine: Machine, stands: str, *, suspects: bool) -> str:
    onwards, anew = (
        f"""(SELECT o.gate_id FROM gate o INDEXED BY gate_stands WHERE o.stands = '{stands}' AND o.gate_id >= (
      SELECT k.gate_id {_waits(database, machine, where, suspects=suspects)} ORDER BY k.gate_id LIMIT 1)
    ORDER BY o.gate_id LIMIT 1)"""
        for where in _ONWARDS_AND_ANEW
    )
    following = f"COALESCE({onwards}, CASE WHEN w.anew = 0 THEN {anew} END)"
    return f"CROSS JOIN gate g WHERE g.gate_id = {following}"


def _step_postgres(database: Database, machine: Machine, stands: str, *, suspects: bool) -> str:
    due = f"k.{machine.due}"
    onwards, anew = (
        f"""SELECT k.gate_id AS waits, k.due, o.gate_id FROM (
      SELECT k.gate_id, {due} AS due {_waits(database, machine, where, suspects=suspects)}
      ORDER BY k.gate_id, {due} LIMIT 1) AS k CROSS JOIN LATERAL (
      SELECT o.gate_id FROM gate o WHERE o.stands = '{stands}' AND o.gate_id >= k.gate_id
      ORDER BY o.gate_id LIMIT 1) AS o"""
        for where in _ONWARDS_AND_ANEW
    )
    # The second is carried out only where the first has nothing.
    following = f"{onwards} UNION ALL {anew} WHERE w.anew = 0 LIMIT 1"
    return f"CROSS JOIN LATERAL ({following}) AS g WHERE true"


def _waits(database: Database, machine: Machine, where: str, *, suspects: bool) -> str:
    anybody = "k.suspicion > 0" if suspects else waiting(machine.due, "k")
    return f"FROM {_source(database, machine, 'k', suspects=suspects)} WHERE k.gate_id {where} AND {anybody}"


def rest(database: Database, name: str, stands: str, *, last: str = BEGINNING) -> str:
    """The gates `g` that the walk `name` did not come to, because it was broken off: where they come from."""
    below = f"g.gate_id <= {last}"
    ahead = f"(w.anew = 0 OR {below}) AND (g.gate_id > w.gate_id OR w.anew = 0 AND {below})"
    return (
        f"FROM {name} w CROSS JOIN gate g{by(database, 'gate_stands')} WHERE w.missed = {_STEPS}"
        f" AND g.stands = '{stands}' AND {ahead}"
    )


def _source(database: Database, machine: Machine, alias: str, *, suspects: bool) -> str:
    index = f"{machine.table}_suspects" if suspects else f"{machine.table}_due"
    return f"{machine.table} {alias}{by(database, index)}"


def by(database: Database, index: str) -> str:
    """Makes SQLite go by an index; PostgreSQL has its settings for that."""
    return f" INDEXED BY {index}" if database.dialect == "sqlite" else ""
