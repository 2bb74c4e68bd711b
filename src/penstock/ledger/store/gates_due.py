"""Which gates let units through and have units behind them that are due, in the order in which they take turns.

Mostly the nearest will do: `nearest` looks behind the next gates that stand as wanted, one after the other, and knows
when these are not enough. Then `anywhere` finds them, however many gates there are, and takes longer to begin.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ledger.store.database import Database
from penstock.ledger.store.gate_walk import SHUT, by, head, rest, walk
from penstock.ledger.store.statements import waiting_by_moment
from penstock.model.machine import Machine

# So many more gates than are wanted: where others may be claiming the same, their units may be locked.
_MORE = 20
# Of the units that are due, so many that have waited longest are looked at before any gate is.
_LONGEST_WAITING = 500
# Of the units that wait, so many that are due first.
_FIRST = 10


def nearest(
    database: Database,
    machines: Sequence[Machine],
    stands: str,
    *,
    name: str,
    wanted: str,
    now: str,
    suspects: bool = False,
    given: str = "true",
) -> str:
    """CTEs, the last of them `name` (gate_id): as `anywhere`, of several machines, or none if the nearest do not say.

    They do where enough of them have due units, or where they are all that stand so.
    """
    behind = _behind(database, machines, now, suspects=suspects)
    # By its limit, and not by a condition, which SQLite would ask of every gate.
    limit = f"CASE WHEN {given} THEN {_window(wanted)} ELSE 0 END"
    onwards, anew = (
        f"""SELECT gate_id FROM (SELECT o.gate_id FROM gate o{by(database, "gate_stands")}
      WHERE o.stands = '{stands}' AND o.gate_id {where} :gate ORDER BY o.gate_id LIMIT {limit}) AS part"""
        for where in (">", "<=")
    )
    all_or_enough = f"count(*) < {_window(wanted)} OR sum(due) >= {wanted}"
    return f"""{name}_near AS MATERIALIZED (SELECT g.gate_id, CASE WHEN {behind} THEN 1 ELSE 0 END AS due
  FROM ({onwards}
    UNION ALL {anew} LIMIT {limit}) AS g),
{name} AS MATERIALIZED (SELECT gate_id FROM (SELECT count(*) FROM {name}_near HAVING {all_or_enough}) AS they_say
  CROSS JOIN (SELECT gate_id FROM {name}_near WHERE due = 1
    UNION ALL SELECT g.gate_id {_lapsed(database, stands, now, given)} AND ({behind})) AS found
  ORDER BY {rotation()} LIMIT {_enough(database, wanted)})"""


def anywhere(
    database: Database,
    machine: Machine,
    stands: str,
    *,
    name: str,
    wanted: str,
    now: str,
    suspects: bool = False,
    given: str = "true",
) -> str:
    """CTEs, the last of them `name` (gate_id): gates with due units, in rotation after `:gate`, enough for so many.

    First it looks at the units that have waited longest. Where these are not all that is due, it walks.
    """
    most, path = _enough(database, wanted), f"{name}_walk"
    behind = _behind(database, [machine], now, suspects=suspects)
    parts, known, walks = [], "", given
    if not suspects:  # of whom there are few
        parts.append(_longest_waiting(database, machine, name=f"{name}_oldest", now=now, given=given))
        of_these = f"g.stands = '{stands}' AND g.gate_id IN (SELECT gate_id FROM {name}_oldest)"
        known = f"SELECT g.gate_id FROM gate g{by(database, 'gate_stands')} WHERE {of_these}\n    UNION ALL "
        walks = f"{given} AND (SELECT count(*) FROM {name}_oldest) = {_LONGEST_WAITING}"
    parts.append(
        walk(database, machine, stands, name=path, most=most, now=now, last=":gate", suspects=suspects, given=walks)
    )
    found = f"""{known}SELECT gate_id FROM {path} WHERE head <= {now}
    UNION ALL SELECT g.gate_id {rest(database, path, stands, last=":gate")} AND {behind}
    UNION ALL SELECT g.gate_id {_lapsed(database, stands, now, given)} AND {behind}"""
    parts.append(
        f"{name} AS MATERIALIZED (SELECT gate_id FROM ({found}) AS found"
        f" GROUP BY gate_id ORDER BY {rotation()} LIMIT {most})"
    )
    return ",\n".join(parts)


def first_due(database: Database, machine: Machine, *, name: str, now: str) -> str:
    """CTEs, the last of them `name` (due): when the first unit behind a gate that is open or asked is due.

    It looks at few: NULL where none of these is behind such a gate.
    """
    due = f"k.{machine.due}"
    stands = ", ".join(f"'{kind}'" for kind in SHUT)
    return f"""{name}_few AS MATERIALIZED (SELECT {due} AS due, k.gate_id FROM {_by_moment(database, machine)}
  WHERE {waiting_by_moment(machine.due, "k")} ORDER BY {due} LIMIT {_FIRST}),
{name} AS MATERIALIZED (SELECT min(f.due) AS due FROM {name}_few f CROSS JOIN gate g
  WHERE g.gate_id = f.gate_id AND (g.stands IN ({stands}) OR g.shut_until <= {now}))"""


def rotation(gate_id: str = "gate_id") -> str:
    """The order in which gates take turns: upwards from the one after `:gate`, and then from the beginning."""
    return f"({gate_id} > :gate) DESC, {gate_id}"


def _enough(database: Database, wanted: str) -> str:
    """How many gates a claim of so many looks for: where others may be claiming the same, more than it needs."""
    return _window(wanted) if database.dialect == "postgresql" else wanted


def _window(wanted: str) -> str:
    return f"({wanted} + {_MORE})"


def _behind(database: Database, machines: Sequence[Machine], now: str, *, suspects: bool) -> str:
    """The condition that something is due behind a gate `g`."""
    heads = (head(database, machine, "g.gate_id", suspects=suspects, levels=suspects) for machine in machines)
    return " OR ".join(f"{one} <= {now}" for one in heads)


def _lapsed(database: Database, stands: str, now: str, given: str) -> str:
    """Gates `g` whose time is over and that nobody has noticed yet (see `Gates.notice`): where they come from."""
    shut = f"g.stands = '{SHUT[stands]}' AND g.shut_until <= {now}"
    return f"FROM gate g{by(database, 'gate_shut')} WHERE {given} AND {shut}"


def _longest_waiting(database: Database, machine: Machine, *, name: str, now: str, given: str) -> str:
    """A CTE `name` (gate_id): the gates of the due units that have waited longest. Fewer than it looks for are all."""
    due = f"k.{machine.due}"
    return f"""{name} AS MATERIALIZED (SELECT k.gate_id FROM {_by_moment(database, machine)}
  WHERE {due} <= {now} AND {waiting_by_moment(machine.due, "k")}
  ORDER BY {due} LIMIT CASE WHEN {given} THEN {_LONGEST_WAITING} ELSE 0 END)"""


def _by_moment(database: Database, machine: Machine) -> str:
    return f"{machine.table} k{by(database, f'{machine.table}_moments')}"
