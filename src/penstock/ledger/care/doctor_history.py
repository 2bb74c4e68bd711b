"""The doctor and the history: what it tells must be possible, and must be what the units are.

Every check reads the history, or the part of it that is in its scope, once and in sets: a pair of states that a million
rows have in common is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.ledger.care.finding import Finding
from penstock.ledger.care.look import WHOLE, Scope
from penstock.ledger.past import BASELINE
from penstock.ledger.schema.birth_rules import SQL
from penstock.ledger.schema.definitions import stored
from penstock.ledger.schema.foreign import HANDS
from penstock.ledger.schema.guards import guards_of
from penstock.ledger.store.database import Cursor, Database
from penstock.model.machine import Actor, Machine

MOST = 20
LARGEST = 2**62
Pair = tuple[str | None, str | None]


def _declared(definition: Mapping[str, Any]) -> dict[Pair, set[str]]:
    """Pair of states to those whom the definition, or one that it replaced, names for it. Births come from None."""
    named: dict[Pair, set[str]] = {}
    for one in (definition, *definition.get("former", ())):
        for state, actors in one["initial"].items():
            named.setdefault((None, state), set()).update(actors)
        for edge in one["transitions"]:
            named.setdefault((edge["source"], edge["target"]), set()).update(edge["actors"])
    return named


def _legal(definition: Mapping[str, Any]) -> dict[Pair, set[str]]:
    """The same with `sql`, which may pull any edge and give birth unless validators alone may, and logged stays."""
    legal = {
        pair: actors if pair[0] is None and actors == {Actor.VALIDATOR} else {*actors, SQL}
        for pair, actors in _declared(definition).items()
    }
    logged = any(one["tracked"] or one["judged"] for one in (definition, *definition.get("former", ())))
    # SQL that changes any column is logged everywhere, and so is everybody who is not a worker.
    stays = {*map(str, Actor), SQL} if logged else {*HANDS, SQL}
    if definition["shape"]["driven"]:  # woken or parked in any state, whoever may pull its loop
        legal = {pair: {*actors, *HANDS} if pair[0] == pair[1] else actors for pair, actors in legal.items()}
    return {(state, state): stays for state in definition["states"]} | legal


def present(database: Database, cursor: Cursor, _: Mapping[str, Machine], scope: Scope = WHOLE) -> Iterator[Finding]:
    """The last row of a unit's history says what the unit is now; a unit that is gone has a death."""
    for name, definition in stored(cursor).items():
        table = definition["table"]
        wrong = [
            ("status", "told.to_status IS NULL OR told.to_status <> u.status"),
            ("version", "u.version < told.version"),
        ]
        if definition["judged"]:
            who = database.sql.before_colon("told.actor")
            wrong.append(("changed_by", f"told.actor <> u.changed_by AND {who} <> 'prune'"))
        wrong += guards_of(database).untold(cursor, table, definition["tracked"])
        cases = " ".join(f"WHEN {condition} THEN '{column}'" for column, condition in wrong)
        same = "told.unit_id = u.unit_id"
        # CROSS JOIN: from what changed to the units, by their key.
        units = f"{table} u LEFT JOIN told ON {same}" if scope.whole else f"told CROSS JOIN {table} u WHERE {same}"
        rows = cursor.rows(
            f"""WITH newest AS (
                  SELECT unit_id, max(seq) AS seq FROM transition_log WHERE {scope.of(name)} GROUP BY unit_id),
                told AS (
                  SELECT n.unit_id, l.to_status, l.version, l.actor, l.data FROM newest n CROSS JOIN transition_log l
                   WHERE l.machine = :machine AND l.unit_id = n.unit_id AND l.seq = n.seq)
                SELECT * FROM (SELECT u.unit_id, u.status, told.to_status, CASE {cases} END AS wrong
                  FROM {units}) AS s WHERE wrong IS NOT NULL
                UNION ALL
                SELECT t.unit_id, NULL, t.to_status, 'status' FROM told t
                 WHERE t.to_status IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {table} u WHERE u.unit_id = t.unit_id)
                LIMIT {MOST}""",
            machine=name,
        )
        for unit_id, status, told, column in rows:
            text = f"is {status or 'gone'}, but its history ends with {told or 'nothing'}"
            if column != "status":
                text = f"its {column} is not the one that its history ends with"
            yield Finding("present", f"{name}:{unit_id}", text)


def contiguous(
    database: Database, cursor: Cursor, __: Mapping[str, Machine], scope: Scope = WHOLE
) -> Iterator[Finding]:
    """Each row of a history starts where the row before it ended, under a later version.

    The first is a birth, a baseline or a grave. A wake-up by hand raises no version: the unit stays with whoever holds
    it.
    """
    hands = ", ".join(f"'{hand}'" for hand in HANDS)
    woken = f"version = older AND from_status = to_status AND {database.sql.before_colon('actor')} IN ({hands})"
    # The first row of all, and stands for those before it.
    grave = "older IS NULL AND to_status IS NULL AND since IS NOT NULL"
    rows = cursor.rows(
        f"""SELECT machine, unit_id, seq, from_status, before, version, older FROM (
              SELECT machine, unit_id, seq, from_status, to_status, version, actor, since,
                     lag(to_status) OVER past AS before, lag(version) OVER past AS older FROM {_with_former(scope)}
              WINDOW past AS (PARTITION BY machine, unit_id ORDER BY seq)) AS h
             WHERE {scope.rows()} AND ((COALESCE(from_status, '') <> COALESCE(before, '') AND NOT ({grave}))
                OR (from_status IS NOT NULL AND to_status IS NOT NULL AND version <= older AND NOT ({woken})))
             LIMIT {MOST}"""
    )
    for machine, unit_id, seq, source, before, version, older in rows:
        text = f"history row {seq} starts at {source or 'birth'}, the row before ended at {before or 'nothing'}"
        if source == before:
            text = f"history row {seq} has version {version}, the row before has {older}"
        yield Finding("contiguous", f"{machine}:{unit_id}", text)


def _with_former(scope: Scope) -> str:
    """The rows of a scope, and of each unit the row before them."""
    if scope.whole:
        return "transition_log"
    changed = f"SELECT machine, unit_id, min(seq) AS seq FROM transition_log WHERE {scope.rows()} GROUP BY 1, 2"
    same = "o.machine = c.machine AND o.unit_id = c.unit_id"
    former = f"SELECT max(o.seq) FROM transition_log o WHERE {same} AND o.seq < c.seq"
    # CROSS JOIN: from what changed to the history, by its key.
    return (
        f"(SELECT l.* FROM (SELECT c.machine, c.unit_id, COALESCE(({former}), c.seq) AS seq FROM ({changed}) AS c) AS f"
        " CROSS JOIN transition_log l WHERE l.machine = f.machine AND l.unit_id = f.unit_id AND l.seq >= f.seq) AS r"
    )


def pairs(database: Database, cursor: Cursor, _: Mapping[str, Machine], scope: Scope = WHOLE) -> Iterator[Finding]:
    """Every birth and every change that the history tells of is, or once was, one of the machine's and its actors'."""
    known = {name: _legal(definition) for name, definition in stored(cursor).items()}
    who = database.sql.before_colon("actor")
    rows = cursor.rows(
        f"SELECT machine, from_status, to_status, {who}, count(*), min(unit_id), max(seq)"
        f" FROM transition_log WHERE {scope.rows()} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"
    )
    for machine_name, source, target, who, count, unit_id, seq in rows:
        told = f"history row{'s say' if count > 1 else ' says'} {source or 'born'} -> {target or 'gone'} by {who}"
        subject, times = f"{machine_name}:{unit_id}", f"{count:,} {told}"
        legal = known.get(machine_name)
        if seq > LARGEST:
            yield Finding("pairs", subject, f"history row {seq}: the row numbers are about to run out")
        if legal is None:
            yield Finding("pairs", subject, f"{times}, and there is no such machine")
        elif target is None or (source is None and who == BASELINE.rstrip(":")):
            continue  # deaths and baselines go with a permit: see `permits`
        elif (source, target) not in legal:
            yield Finding("pairs", subject, f"{times}, which is not legal")
        elif who not in legal[source, target]:
            yield Finding(
                "pairs", subject, f"{times}, which is only for {', '.join(sorted(legal[source, target] - {SQL}))}"
            )


def validated(database: Database, cursor: Cursor, _: Mapping[str, Machine], scope: Scope = WHOLE) -> Iterator[Finding]:
    """Where validators have the word, no unit was last written by anybody whom the machine does not name."""
    who = database.sql.before_colon("changed_by")
    for name, definition in stored(cursor).items():
        if not definition["judged"]:
            continue
        allowed: dict[str, set[str]] = {}
        for (_source, target), actors in _declared(definition).items():
            allowed.setdefault(str(target), set()).update(actors)
        table, which = definition["table"], scope.units(name, "unit_id")
        sql = f"SELECT status, {who}, count(*) FROM {table} WHERE {which} GROUP BY 1, 2"
        for status, actor, count in cursor.rows(sql):
            named = allowed.get(status, set())
            if actor in named:
                continue
            rows = cursor.rows(
                f"SELECT unit_id FROM {table} WHERE status = :status AND {who} = :actor AND {which}"
                f" ORDER BY unit_id LIMIT {MOST}",
                status=status,
                actor=actor,
            )
            text = f"was made {status} by {actor} and not by {' or '.join(sorted(named))}; have it validated again"
            more = f" ({count:,} like it)" if count > len(rows) else ""
            for (unit_id,) in rows:
                yield Finding("validated", f"{name}:{unit_id}", text + more)


def permits(_: Database, cursor: Cursor, __: Mapping[str, Machine], scope: Scope = WHOLE) -> Iterator[Finding]:
    """No permit to prune was left open, and whatever was pruned had one."""
    for permit, machine, actor in cursor.rows("SELECT id, machine, actor FROM prune_permit WHERE open IS NOT NULL"):
        yield Finding("permits", machine, f"permit {permit} of {actor} is open: it was not made by pruning")
    deaths = "to_status IS NULL AND from_status IS NOT NULL"
    given = {
        "death": f"{deaths} AND (machine, actor, at) NOT IN (SELECT machine, actor, at FROM prune_permit)",
        "baseline": f"(actor = '{BASELINE.rstrip(':')}' OR actor LIKE '{BASELINE}%') AND (machine, actor) NOT IN"
        f" (SELECT machine, '{BASELINE}' || id FROM prune_permit)",
    }
    for what, condition in given.items():
        rows = cursor.rows(
            f"SELECT machine, unit_id, seq FROM transition_log WHERE {scope.rows()} AND {condition} LIMIT {MOST}"
        )
        for machine, unit_id, seq in rows:
            yield Finding("permits", f"{machine}:{unit_id}", f"history row {seq} is a {what} without a permit")
