"""Guards and history for PostgreSQL, generated from the machines.

The guard is a row trigger whose WHEN lists the legal pairs, so that a legal update never enters a function. History is
written once per statement from the transition tables. Every trigger is ENABLE ALWAYS: `session_replication_role`
does not switch it off.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.ledger import foreign
from penstock.machine import Machine

CLOCK = "date_trunc('milliseconds', clock_timestamp())"
_LOG = "INSERT INTO transition_log (machine, unit_id, from_status, to_status, actor, reason, version, at, data)"
# The planner guesses a transition table's size once and keeps the plan: a nested loop over a batch of a thousand would be
# a million comparisons. search_path is fixed (by create_triggers), so that nobody's table stands in for ours.
FUNCTION = "LANGUAGE plpgsql SET enable_nestloop = off SET enable_hashjoin = on SET search_path FROM CURRENT"


def kernel_functions() -> dict[str, str]:
    """Name to statement: the functions that the kernel's triggers call."""
    return {
        "penstock_refuse": """CREATE OR REPLACE FUNCTION penstock_refuse() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE = 'penstock: ' || TG_ARGV[0];
END $body$""",
        "penstock_refuse_move": """CREATE OR REPLACE FUNCTION penstock_refuse_move() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE text_ text;
BEGIN
  IF NEW.status = ANY (string_to_array(TG_ARGV[1], ', ')) THEN
    text_ := TG_ARGV[0] || ' cannot go from ' || OLD.status || ' to ' || NEW.status;
  ELSE
    text_ := TG_ARGV[0] || ' has no such state; its states are ' || TG_ARGV[1];
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE = 'penstock: ' || text_;
END $body$""",
        "penstock_log_delete": """CREATE OR REPLACE FUNCTION penstock_log_delete() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT AS $body$
BEGIN
  IF EXISTS (SELECT 1 FROM gone WHERE NOT EXISTS (SELECT 1 FROM prune_permit p WHERE p.machine = gone.machine AND p.open)) THEN
    RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation',
      MESSAGE = 'penstock: transition_log is append-only; old rows go by "penstock db prune"';
  END IF;
  RETURN NULL;
END $body$""",
        "penstock_event_delete": """CREATE OR REPLACE FUNCTION penstock_event_delete() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT AS $body$
BEGIN
  IF EXISTS (SELECT 1 FROM gone) AND NOT EXISTS (SELECT 1 FROM prune_permit WHERE machine = 'event_log' AND open) THEN
    RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation',
      MESSAGE = 'penstock: event_log is append-only; old rows go by "penstock db prune"';
  END IF;
  RETURN NULL;
END $body$""",
    }


def kernel_triggers() -> dict[str, tuple[str, str]]:
    """Name to (table, statement): the triggers that keep the kernel's own tables append-only."""

    def fixed(table: str, events: str) -> str:
        return f"""BEFORE {events} ON {table} FOR EACH STATEMENT
EXECUTE FUNCTION penstock_refuse('{table} is append-only; its rows cannot be changed')"""

    return {
        "penstock_log_update": ("transition_log", fixed("transition_log", "UPDATE OR TRUNCATE")),
        "penstock_log_delete": (
            "transition_log",
            """AFTER DELETE ON transition_log REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION penstock_log_delete()""",
        ),
        "penstock_permit_fixed": ("prune_permit", fixed("prune_permit", "DELETE OR TRUNCATE")),
        # Closing a permit, inside the transaction that opened it, is the one change it can have.
        "penstock_permit_update": (
            "prune_permit",
            """BEFORE UPDATE ON prune_permit FOR EACH ROW
WHEN (NOT (OLD.open AND NOT NEW.open AND OLD.id = NEW.id AND OLD.machine = NEW.machine AND OLD.actor = NEW.actor
  AND OLD.reason = NEW.reason AND OLD.at = NEW.at))
EXECUTE FUNCTION penstock_refuse('prune_permit is append-only; its rows cannot be changed')""",
        ),
        "penstock_event_update": ("event_log", fixed("event_log", "UPDATE OR TRUNCATE")),
        "penstock_event_delete": (
            "event_log",
            """AFTER DELETE ON event_log REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION penstock_event_delete()""",
        ),
    }


def machine_functions(machine: Machine) -> dict[str, str]:
    """Name to statement: the three functions that write a machine's history."""
    name = machine.name
    return {
        f"penstock_{name}_birth": _function(f"penstock_{name}_birth", _birth(machine)),
        f"penstock_{name}_history": _function(f"penstock_{name}_history", _history(machine)),
        f"penstock_{name}_death": _function(f"penstock_{name}_death", _death(machine)),
    }


def machine_triggers(machine: Machine) -> dict[str, tuple[str, str]]:
    """Name to (table, statement): the triggers of the machine's table."""
    name, table = machine.name, machine.table

    def history(event: str, tables: str, function: str) -> tuple[str, str]:
        return table, f"AFTER {event} ON {table} REFERENCING {tables} FOR EACH STATEMENT EXECUTE FUNCTION {function}()"

    refusal = f"""{name}: units are never deleted; old ones go by "penstock db prune\""""
    return {
        f"penstock_{name}_birth": history("INSERT", "NEW TABLE AS born", f"penstock_{name}_birth"),
        f"penstock_{name}_guard": (table, _guard(machine)),
        f"penstock_{name}_key": (table, _key(machine)),
        f"penstock_{name}_history": history("UPDATE", "OLD TABLE AS was NEW TABLE AS now_", f"penstock_{name}_history"),
        f"penstock_{name}_death": history("DELETE", "OLD TABLE AS gone", f"penstock_{name}_death"),
        f"penstock_{name}_truncate": (
            table,
            f"BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION penstock_refuse('{refusal}')",
        ),
    }


def _function(name: str, body: str) -> str:
    return f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger {FUNCTION} AS $body${body}$body$"


def _raise(text: str) -> str:
    return f"RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE = {text};"


def _birth(machine: Machine) -> str:
    births = ", ".join(f"'{s}'" for s in machine.births)
    message = f"'penstock: {machine.name} cannot be born as ' || bad || '; it is born as {', '.join(machine.births)}'"
    return f"""
DECLARE bad text; penstock_now timestamptz := {CLOCK};
BEGIN
  SELECT status INTO bad FROM born WHERE status NOT IN ({births}) LIMIT 1;
  IF bad IS NOT NULL THEN
    {_raise(message)}
  END IF;
  {_LOG}
  SELECT '{machine.name}', unit_id, NULL, status, changed_by, change_reason, version,
         COALESCE(changed_at, penstock_now), {_data(machine, "born")}
    FROM born;
  IF EXISTS (SELECT 1 FROM born WHERE changed_at IS NULL) THEN
    UPDATE {machine.table} t SET changed_at = penstock_now FROM born
     WHERE t.unit_id = born.unit_id AND t.changed_at IS NULL;
  END IF;
  RETURN NULL;
END """


def _guard(machine: Machine) -> str:
    sources: dict[str, list[str]] = {}
    for source, target in machine.pairs:
        if source != target:
            sources.setdefault(source, []).append(f"'{target}'")
    legal = " OR ".join(
        ["NEW.status IS NOT DISTINCT FROM OLD.status"]
        + [f"(OLD.status = '{s}' AND NEW.status IN ({', '.join(targets)}))" for s, targets in sources.items()]
    )
    return f"""BEFORE UPDATE OF status ON {machine.table} FOR EACH ROW WHEN (({legal}) IS NOT TRUE)
EXECUTE FUNCTION penstock_refuse_move('{machine.name}', '{", ".join(machine.states)}')"""


def _key(machine: Machine) -> str:
    keys = ("unit_id", *machine.unit.key)
    same = " AND ".join(f"NEW.{k} IS NOT DISTINCT FROM OLD.{k}" for k in keys)
    return f"""BEFORE UPDATE OF {", ".join(keys)} ON {machine.table} FOR EACH ROW WHEN (NOT ({same}))
EXECUTE FUNCTION penstock_refuse('{machine.name}: the key of a unit ({", ".join(machine.unit.key)}) cannot be changed')"""


def _history(machine: Machine) -> str:
    changed = " OR ".join(f"NOT {_same(c)}" for c in ("status", *machine.tracked))
    strange = f"n.version = o.version AND NOT ({foreign.as_it_was(machine, _same)})"
    reason = foreign.reason(machine, _same, _named, "n.change_reason")
    freed = foreign.freed(machine, "n", "o")
    return f"""
DECLARE strangers bigint; penstock_now timestamptz := {CLOCK};
BEGIN
  WITH logged AS (
    {_LOG}
    SELECT '{machine.name}', n.unit_id, o.status, n.status,
           CASE WHEN n.version = o.version THEN 'sql' ELSE n.changed_by END,
           CASE WHEN n.version = o.version THEN {reason} ELSE n.change_reason END,
           CASE WHEN n.version = o.version THEN n.version + 1 ELSE n.version END,
           CASE WHEN n.version = o.version THEN penstock_now ELSE COALESCE(n.changed_at, penstock_now) END, {_data(machine, "n")}
      FROM now_ n JOIN was o ON o.unit_id = n.unit_id
     WHERE {changed} OR ({strange})
    RETURNING actor)
  SELECT count(*) INTO strangers FROM logged WHERE actor = 'sql';
  IF strangers > 0 THEN
    UPDATE {machine.table} t SET version = n.version + 1, changed_by = 'sql', changed_at = penstock_now{freed}
      FROM now_ n JOIN was o ON o.unit_id = n.unit_id
     WHERE t.unit_id = n.unit_id AND {strange};
  END IF;
  RETURN NULL;
END """


def _same(column: str) -> str:
    same = f"n.{column} IS NOT DISTINCT FROM o.{column}"
    # Filled in after a birth without it.
    return f"({same} OR o.changed_at IS NULL)" if column == "changed_at" else f"({same})"


def _named(unless: Mapping[str, str]) -> str:
    parts = ", ".join(f"CASE WHEN {same} THEN NULL ELSE '{c}' END" for c, same in unless.items())
    return f"NULLIF(concat_ws(', ', {parts}), '')"


def _death(machine: Machine) -> str:
    message = f"""'penstock: {machine.name}: a unit is never deleted; old ones go by "penstock db prune"'"""
    return f"""
DECLARE permit record;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM gone) THEN
    RETURN NULL;
  END IF;
  SELECT actor, reason, at INTO permit FROM prune_permit WHERE machine = '{machine.name}' AND open ORDER BY id LIMIT 1;
  IF NOT FOUND THEN
    {_raise(message)}
  END IF;
  {_LOG}
  SELECT '{machine.name}', unit_id, status, NULL, permit.actor, permit.reason, version, permit.at, {_data(machine, "gone")}
    FROM gone;
  RETURN NULL;
END """


def _data(machine: Machine, row: str) -> str:
    if not machine.tracked:
        return "NULL"
    return "jsonb_build_object(" + ", ".join(f"'{c}', {row}.{c}" for c in machine.tracked) + ")"
