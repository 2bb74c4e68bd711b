"""Guards and history for SQLite, generated from the machines.

Written so that SQLite 3.40 still reads the file: every message is a literal, and every column that a trigger logs
is coalesced, because an outer `INSERT OR IGNORE` would turn a failed NOT NULL into a silently missing log row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.ledger.schema import birth_rules, foreign
from penstock.ledger.schema.edge_names import edge_name
from penstock.model.machine import Machine

CLOCK = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
_LOG = (
    "INSERT INTO transition_log"
    " (machine, unit_id, from_status, to_status, actor, reason, version, at, data, action_id, trigger)"
)
_DEATH = _LOG.replace("trigger)", "trigger, since)")
_WHO = "substr(NEW.changed_by, 1, instr(NEW.changed_by || ':', ':') - 1)"
_NEW_WHO = "substr(NEW.actor, 1, instr(NEW.actor || ':', ':') - 1)"
_HANDS = ", ".join(f"'{hand}'" for hand in foreign.HANDS)
_LAST = "FROM transition_log WHERE machine = NEW.machine AND unit_id = NEW.unit_id ORDER BY seq DESC LIMIT 1"


def kernel_triggers(definitions: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Name to statement: the triggers of the kernel's own tables. `definitions` are all that the ledger holds."""
    return {
        "penstock_log_insert": _log_insert(definitions),
        # A row may become the baseline of what is pruned before it, and keeps what it says of its unit.
        "penstock_log_update": """CREATE TRIGGER penstock_log_update BEFORE UPDATE ON transition_log
WHEN NOT (NEW.seq IS OLD.seq AND NEW.machine IS OLD.machine AND NEW.unit_id IS OLD.unit_id
  AND NEW.from_status IS NULL AND NEW.to_status IS OLD.to_status AND NEW.version IS OLD.version
  AND NEW.at IS OLD.at AND NEW.data IS OLD.data AND NEW.action_id IS OLD.action_id AND NEW.trigger IS NULL
  AND NEW.since IS OLD.since AND OLD.to_status IS NOT NULL
  AND EXISTS (SELECT 1 FROM prune_permit
    WHERE machine = OLD.machine AND open IS NOT NULL AND NEW.actor = 'prune:' || id))
BEGIN SELECT RAISE(ABORT, 'penstock: transition_log is append-only; its rows cannot be changed'); END""",
        # What a unit is stays told. A grave may go, but not the newest row of all: its number would be drawn again.
        "penstock_log_delete": """CREATE TRIGGER penstock_log_delete BEFORE DELETE ON transition_log
WHEN NOT EXISTS (SELECT 1 FROM prune_permit WHERE machine = OLD.machine AND open IS NOT NULL)
  OR CASE WHEN OLD.to_status IS NULL THEN OLD.seq >= (SELECT max(seq) FROM transition_log)
    ELSE NOT EXISTS (SELECT 1 FROM transition_log
      WHERE machine = OLD.machine AND unit_id = OLD.unit_id AND seq > OLD.seq) END
BEGIN SELECT RAISE(ABORT, 'penstock: transition_log is append-only; old rows go by "penstock db prune"'); END""",
        # An open permit refers to a permit that never is, so that no COMMIT passes it: if foreign keys bind this
        # connection. Within a transaction that cannot be changed any more, so it is tried out here.
        "penstock_permit_insert": """CREATE TRIGGER penstock_permit_insert BEFORE INSERT ON prune_permit
BEGIN
  SELECT RAISE(ABORT, 'penstock: prune_permit is append-only; a permit cannot be replaced')
    WHERE EXISTS (SELECT 1 FROM prune_permit WHERE id = NEW.id);
  SELECT RAISE(ABORT, 'penstock: a permit is opened in the transaction that prunes, and closed before it ends')
    WHERE NEW.open IS NOT 'open' OR NEW.id IS 'open';
  DELETE FROM prune_probe;
  INSERT INTO prune_probe (id, parent) VALUES (1, NULL), (2, 1);
  DELETE FROM prune_probe WHERE id = 1;
  SELECT RAISE(ABORT, 'penstock: whoever opens a permit says "PRAGMA foreign_keys = ON" first')
    WHERE EXISTS (SELECT 1 FROM prune_probe);
END""",
        # Closing a permit, inside the transaction that opened it, is the one change it can have.
        "penstock_permit_update": """CREATE TRIGGER penstock_permit_update BEFORE UPDATE ON prune_permit
WHEN NOT (OLD.open IS NOT NULL AND NEW.open IS NULL AND OLD.id IS NEW.id AND OLD.machine IS NEW.machine
  AND OLD.actor IS NEW.actor AND OLD.reason IS NEW.reason AND OLD.at IS NEW.at)
BEGIN SELECT RAISE(ABORT, 'penstock: prune_permit is append-only; its rows cannot be changed'); END""",
        "penstock_permit_delete": """CREATE TRIGGER penstock_permit_delete BEFORE DELETE ON prune_permit
BEGIN SELECT RAISE(ABORT, 'penstock: prune_permit is append-only; its rows cannot be deleted'); END""",
        # A second event of the same key is ignored, by INSERT and by REPLACE alike.
        "penstock_event_insert": """CREATE TRIGGER penstock_event_insert BEFORE INSERT ON event_log
WHEN EXISTS (SELECT 1 FROM event_log WHERE tenant_id = NEW.tenant_id AND event_key = NEW.event_key)
BEGIN SELECT RAISE(IGNORE); END""",
        "penstock_event_update": """CREATE TRIGGER penstock_event_update BEFORE UPDATE ON event_log
BEGIN SELECT RAISE(ABORT, 'penstock: event_log is append-only; its rows cannot be changed'); END""",
        "penstock_event_delete": """CREATE TRIGGER penstock_event_delete BEFORE DELETE ON event_log
WHEN NOT EXISTS (SELECT 1 FROM prune_permit WHERE machine = 'event_log' AND open IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'penstock: event_log is append-only; old rows go by "penstock db prune"'); END""",
        "penstock_gate_insert": """CREATE TRIGGER penstock_gate_insert BEFORE INSERT ON gate_log
WHEN EXISTS (SELECT 1 FROM gate_log WHERE seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'penstock: gate_log is append-only; a row of it cannot be replaced'); END""",
        "penstock_gate_update": """CREATE TRIGGER penstock_gate_update BEFORE UPDATE ON gate_log
BEGIN SELECT RAISE(ABORT, 'penstock: gate_log is append-only; its rows cannot be changed'); END""",
        "penstock_gate_delete": """CREATE TRIGGER penstock_gate_delete BEFORE DELETE ON gate_log
WHEN NOT EXISTS (SELECT 1 FROM prune_permit WHERE machine = 'gate_log' AND open IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'penstock: gate_log is append-only; old rows go by "penstock db prune"'); END""",
    }


def _log_insert(definitions: Mapping[str, Mapping[str, Any]]) -> str:
    """A row of the history says what its unit now is, and goes on from where the history ended.

    When a trigger writes, the unit has just changed and the history does not know it yet. At any other moment the two
    agree, and there is no row that anybody could add: no death of a unit that lives, no move that was not made.
    """
    names = ", ".join(f"'{name}'" for name in definitions) or "NULL"
    judged = ", ".join(f"'{name}'" for name, d in definitions.items() if d["judged"]) or "NULL"
    units = "".join(f"\n    WHEN '{name}' THEN ({_told(d)})" for name, d in definitions.items())
    found = f"CASE NEW.machine{units} END" if definitions else "''"
    # A unit that stays is logged when SQL changed any column of it, a commit a tracked one, or a validator's unit its hands.
    news = f"NEW.actor = 'sql' OR NEW.data IS NOT (SELECT data {_LAST})"
    news += f" OR (NEW.machine IN ({judged}) AND NEW.actor IS NOT (SELECT actor {_LAST}))"
    news = f"NEW.version IS NOT (SELECT version {_LAST}) AND ({news})"
    # Or when somebody who is not a worker says something that the history does not end with. A baseline keeps the moment.
    said = "actor GLOB 'prune:*' OR (actor IS NEW.actor AND reason IS NEW.reason AND action_id IS NEW.action_id)"
    told = f"(SELECT at IS NEW.at AND ({said}) {_LAST})"
    news += f" OR ({_NEW_WHO} IN ({_HANDS}) AND NOT {told})"
    return f"""CREATE TRIGGER penstock_log_insert BEFORE INSERT ON transition_log
WHEN EXISTS (SELECT 1 FROM transition_log WHERE seq = NEW.seq)
  OR NEW.from_status IS NOT (SELECT to_status {_LAST})
  OR COALESCE(NEW.machine NOT IN ({names}), 1)
  OR NEW.to_status IS NOT {found}
  OR (NEW.from_status IS NEW.to_status
    AND (NEW.to_status IS NULL OR NOT ({news})))
BEGIN
  SELECT RAISE(ABORT, 'penstock: transition_log is append-only; a row of it cannot be replaced')
    WHERE EXISTS (SELECT 1 FROM transition_log WHERE seq = NEW.seq);
  SELECT RAISE(ABORT, 'penstock: that unit is alive; REPLACE would skip its states and its history')
    WHERE NEW.from_status IS NULL;
  SELECT RAISE(ABORT, 'penstock: transition_log is written by the triggers of the units alone');
END"""


def _told(definition: Mapping[str, Any]) -> str:
    """The state of the unit, if the new row of the history says truly who made it so; NULL when it is gone."""
    true = "version = NEW.version AND changed_by = NEW.actor"
    stayed = "change_reason IS NEW.reason AND COALESCE(changed_at, NEW.at) IS NEW.at"
    true += f" AND (NEW.from_status IS NOT NEW.to_status OR NEW.actor = 'sql' OR ({stayed}))"
    if definition["tracked"]:
        true += f" AND NEW.data IS {_document(definition['tracked'], definition['table'])}"
    return (
        f"SELECT status FROM {definition['table']} WHERE unit_id = NEW.unit_id AND (NEW.to_status IS NULL OR ({true}))"
    )


def machine_triggers(machine: Machine) -> dict[str, str]:
    """Name to statement: the triggers of the machine's table."""
    name = machine.name
    return {
        f"penstock_{name}_birth": _birth(machine),
        f"penstock_{name}_guard": _guard(machine),
        f"penstock_{name}_key": _key(machine),
        f"penstock_{name}_history": _history(machine),
        f"penstock_{name}_death": _death(machine),
    }


def _birth(machine: Machine) -> str:
    plain = ", ".join(machine.born_by)
    refusals = "\n".join(
        f"    WHEN '{s}' THEN RAISE(ABORT, 'penstock: {machine.name} {birth_rules.refusal(machine, s)}')"
        for s in machine.states
    )
    return f"""CREATE TRIGGER penstock_{machine.name}_birth AFTER INSERT ON {machine.table}
BEGIN
  SELECT CASE NEW.status
{refusals}
    ELSE RAISE(ABORT, 'penstock: {machine.name} cannot be born in an unknown state; it is born as {plain}') END
    WHERE NOT COALESCE({birth_rules.legal(machine, "NEW.", _WHO)}, 0);
  {_LOG}
  VALUES ('{machine.name}', NEW.unit_id, NULL, NEW.status, COALESCE(NEW.changed_by, 'sql'), NEW.change_reason,
          COALESCE(NEW.version, 0), COALESCE(NEW.changed_at, {CLOCK}), {_data(machine, "NEW")}, NULL, NULL);
  UPDATE {machine.table} SET changed_at = {CLOCK} WHERE unit_id = NEW.unit_id AND NEW.changed_at IS NULL;
END"""


def _guard(machine: Machine) -> str:
    sources: dict[str, list[str]] = {}
    for source, target in machine.pairs:
        if source != target:
            sources.setdefault(source, []).append(f"'{target}'")
    legal = " OR ".join(
        ["NEW.status IS OLD.status"]
        + [f"(OLD.status = '{s}' AND NEW.status IN ({', '.join(targets)}))" for s, targets in sources.items()]
    )
    illegal = [(s, t) for s in machine.states for t in machine.states if s != t and (s, t) not in machine.pairs]
    cases = "".join(
        f"\n    WHEN OLD.status = '{s}' AND NEW.status = '{t}'"
        f" THEN RAISE(ABORT, 'penstock: {machine.name} cannot go from {s} to {t}')"
        for s, t in illegal
    )
    unknown = f"RAISE(ABORT, 'penstock: {machine.name} has no such state; its states are {', '.join(machine.states)}')"
    choice = f"CASE{cases}\n    ELSE {unknown} END" if cases else unknown
    return f"""CREATE TRIGGER penstock_{machine.name}_guard BEFORE UPDATE OF status ON {machine.table}
WHEN NOT COALESCE({legal}, 0)
BEGIN
  SELECT {choice};
END"""


def _key(machine: Machine) -> str:
    # Apart from the guard of states, because its comparisons would cost every commit a fifth of its time.
    keys = ("unit_id", *machine.lasting)
    same = " AND ".join(f"NEW.{k} IS OLD.{k}" for k in keys)
    return f"""CREATE TRIGGER penstock_{machine.name}_key BEFORE UPDATE OF {", ".join(keys)} ON {machine.table}
WHEN NOT ({same})
BEGIN
  SELECT RAISE(ABORT, 'penstock: {birth_rules.lasting(machine)}');
END"""


def _history(machine: Machine) -> str:
    changed = " OR ".join(f"NOT {_same(c)}" for c in ("status", *machine.tracked))
    if machine.judged:
        changed += f" OR (NOT {_same('changed_by')} AND NEW.changed_by IS NOT 'sql')"
    changed += f" OR {foreign.by_hand(machine, _same, 'NEW.changed_by', _WHO)}"
    strange = f"({_same('version')} AND NOT ({foreign.as_it_was(machine, _same)}))"
    reason = foreign.reason(machine, _same, _named, "NEW.change_reason")
    freed = foreign.freed(machine, "NEW", "OLD")
    pulled = edge_name(machine, "OLD.status", "NEW.status", _WHO, _same)
    return f"""CREATE TRIGGER penstock_{machine.name}_history AFTER UPDATE ON {machine.table}
WHEN {changed} OR {strange}
BEGIN
  UPDATE {machine.table} SET version = NEW.version + 1, changed_by = 'sql', changed_at = {CLOCK}{freed}
    WHERE unit_id = NEW.unit_id AND {strange};
  {_LOG}
  VALUES ('{machine.name}', NEW.unit_id, OLD.status, NEW.status,
          CASE WHEN {strange} THEN 'sql' ELSE COALESCE(NEW.changed_by, 'sql') END,
          CASE WHEN {strange} THEN {reason} ELSE NEW.change_reason END,
          COALESCE(NEW.version, 0) + ({strange}),
          CASE WHEN {strange} THEN {CLOCK} ELSE COALESCE(NEW.changed_at, {CLOCK}) END, {_data(machine, "NEW")},
          CASE WHEN NOT {strange} AND NOT {_same("last_action")} THEN NEW.last_action END,
          CASE WHEN NOT {strange} THEN {pulled} END);
END"""


def _same(column: str) -> str:
    if column == "changed_at":  # filled in after a birth without it
        return "(NEW.changed_at IS OLD.changed_at OR OLD.changed_at IS NULL)"
    return f"(NEW.{column} IS OLD.{column})"


def _named(only_if_absent: Mapping[str, str]) -> str:
    parts = " || ".join(f"CASE WHEN {same} THEN '' ELSE '{c}, ' END" for c, same in only_if_absent.items())
    return f"NULLIF(rtrim({parts}, ', '), '')"


def _death(machine: Machine) -> str:
    return f"""CREATE TRIGGER penstock_{machine.name}_death AFTER DELETE ON {machine.table}
BEGIN
  SELECT RAISE(ABORT, 'penstock: {machine.name}: a unit is never deleted; old ones go by "penstock db prune"')
    WHERE NOT EXISTS (SELECT 1 FROM prune_permit WHERE machine = '{machine.name}' AND open IS NOT NULL);
  {_DEATH}
  SELECT '{machine.name}', OLD.unit_id, OLD.status, NULL, actor,
         reason || '; last ' || COALESCE(OLD.changed_by, 'sql') || COALESCE(': ' || OLD.change_reason, ''),
         COALESCE(OLD.version, 0), at, {_data(machine, "OLD")}, NULL, NULL,
         (SELECT l.at FROM transition_log l WHERE l.machine = '{machine.name}' AND l.unit_id = OLD.unit_id
           ORDER BY l.seq DESC LIMIT 1)
    FROM prune_permit WHERE machine = '{machine.name}' AND open IS NOT NULL ORDER BY id LIMIT 1;
END"""


def _data(machine: Machine, row: str) -> str:
    return _document(machine.tracked, row) if machine.tracked else "NULL"


def _document(names: Iterable[str], row: str) -> str:
    return "json_object(" + ", ".join(f"'{name}', {row}.{name}" for name in names) + ")"
