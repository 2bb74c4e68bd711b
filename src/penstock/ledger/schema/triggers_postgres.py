"""Guards and history for PostgreSQL, generated from the machines.

The guard is a row trigger whose WHEN lists the legal pairs, so that a legal update never enters a function. History is
written once per statement from the transition tables. Every trigger is ENABLE ALWAYS: `session_replication_role`
does not switch it off.

Functions run with the rights of their owner, so that a role that may write units needs no right to write the history.
They find nothing but PostgreSQL's own functions and operators by name: the ledger's tables are named with their schema,
in which others might be able to create what stands in for those.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.ledger.schema import birth_rules, foreign
from penstock.ledger.schema.edge_names import edge_name
from penstock.model.machine import Machine

CLOCK = "date_trunc('milliseconds', clock_timestamp())"
SAFE = "search_path=pg_catalog, pg_temp"
PLANNER = ("enable_nestloop=off", "enable_hashjoin=on")
BY_INDEX = ("enable_seqscan=off",)
_COLUMNS = "(machine, unit_id, from_status, to_status, actor, reason, version, at, data, action_id, trigger)"
_DEATH_COLUMNS = _COLUMNS.replace("trigger)", "trigger, since)")
_WHO = "split_part(n.changed_by, ':', 1)"
_GONE = 'penstock: {} is append-only; old rows go by "penstock db prune"'
REFUSAL = "RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE ="


def function(schema: str, name: str, body: str, *, settings: tuple[str, ...] = ()) -> str:
    """The statement that makes a trigger's function."""
    sets = " ".join(f"SET {setting.replace('=', ' = ')}" for setting in (*settings, SAFE))
    return (
        f"CREATE OR REPLACE FUNCTION {schema}.{name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER {sets}"
        f" AS $body${body}$body$"
    )


def settings_of(statement: str) -> list[str]:
    """The settings that a function's statement gives it, as PostgreSQL keeps them."""
    return [setting for setting in (*PLANNER, *BY_INDEX, SAFE) if f"SET {setting.replace('=', ' = ')}" in statement]


def _permitted(schema: str, machine: str) -> str:
    """Whether this transaction has opened a permit for the machine."""
    which = f"{schema}.prune_permit p WHERE p.machine = {machine}"
    return f"EXISTS (SELECT 1 FROM {which} AND p.open = pg_current_xact_id_if_assigned()::text)"


def _deleted(schema: str, log: str) -> str:
    """The body of the function that lets rows of a log go under a permit alone."""
    return f"""
BEGIN
  IF EXISTS (SELECT 1 FROM gone) AND NOT {_permitted(schema, f"'{log}'")} THEN
    {REFUSAL} '{_GONE.format(log)}';
  END IF;
  RETURN NULL;
END """


def kernel_functions(schema: str) -> dict[str, str]:
    """Name to statement: the functions that the kernel's triggers call. `schema` is the ledger's, quoted."""
    bodies = {
        "penstock_refuse": f"""
BEGIN
  {REFUSAL} 'penstock: ' || TG_ARGV[0];
END """,
        "penstock_refuse_move": f"""
DECLARE text_ text;
BEGIN
  IF NEW.status = ANY (string_to_array(TG_ARGV[1], ', ')) THEN
    text_ := TG_ARGV[0] || ' cannot go from ' || OLD.status || ' to ' || NEW.status;
  ELSE
    text_ := TG_ARGV[0] || ' has no such state; its states are ' || TG_ARGV[1];
  END IF;
  {REFUSAL} 'penstock: ' || text_;
END """,
        # A row may become the baseline of what is pruned before it, and keeps what it says of its unit.
        "penstock_log_update": f"""
BEGIN
  IF (NEW.seq = OLD.seq AND NEW.machine = OLD.machine AND NEW.unit_id = OLD.unit_id AND NEW.from_status IS NULL
      AND NEW.to_status = OLD.to_status AND NEW.version = OLD.version AND NEW.at = OLD.at
      AND NEW.data IS NOT DISTINCT FROM OLD.data AND NEW.action_id IS NOT DISTINCT FROM OLD.action_id AND NEW.trigger IS NULL
      AND NEW.since IS NOT DISTINCT FROM OLD.since
      AND EXISTS (SELECT 1 FROM {schema}.prune_permit p
        WHERE p.machine = OLD.machine AND p.open = pg_current_xact_id_if_assigned()::text
          AND NEW.actor = 'prune:' || p.id)) IS NOT TRUE THEN
    {REFUSAL} 'penstock: transition_log is append-only; its rows cannot be changed';
  END IF;
  RETURN NEW;
END """,
        # What a unit is stays told. A grave may go: there is no unit that it could be missed by.
        "penstock_log_delete": f"""
BEGIN
  IF EXISTS (SELECT 1 FROM (SELECT DISTINCT machine FROM gone) g WHERE NOT {_permitted(schema, "g.machine")})
    OR EXISTS (SELECT 1 FROM gone g WHERE g.to_status IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM {schema}.transition_log l WHERE l.machine = g.machine AND l.unit_id = g.unit_id AND l.seq > g.seq)) THEN
    {REFUSAL} '{_GONE.format("transition_log")}';
  END IF;
  RETURN NULL;
END """,
        "penstock_event_delete": _deleted(schema, "event_log"),
        "penstock_gate_delete": _deleted(schema, "gate_log"),
    }
    return {name: function(schema, name, body) for name, body in bodies.items()}


def kernel_triggers(schema: str) -> dict[str, tuple[str, str]]:
    """Name to (table, statement): the triggers of the kernel's own tables."""

    def fixed(table: str, events: str) -> str:
        return f"""BEFORE {events} ON {schema}.{table} FOR EACH STATEMENT
EXECUTE FUNCTION {schema}.penstock_refuse('{table} is append-only; its rows cannot be changed')"""

    def deleted(table: str, name: str) -> str:
        return f"""AFTER DELETE ON {schema}.{table} REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.{name}()"""

    return {
        "penstock_log_insert": (
            "transition_log",
            f"""BEFORE INSERT ON {schema}.transition_log FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
EXECUTE FUNCTION {schema}.penstock_refuse('transition_log is written by the triggers of the units alone')""",
        ),
        "penstock_log_update": (
            "transition_log",
            f"BEFORE UPDATE ON {schema}.transition_log FOR EACH ROW EXECUTE FUNCTION {schema}.penstock_log_update()",
        ),
        "penstock_log_truncate": ("transition_log", fixed("transition_log", "TRUNCATE")),
        "penstock_log_delete": ("transition_log", deleted("transition_log", "penstock_log_delete")),
        "penstock_permit_fixed": ("prune_permit", fixed("prune_permit", "DELETE OR TRUNCATE")),
        "penstock_permit_insert": (
            "prune_permit",
            f"""BEFORE INSERT ON {schema}.prune_permit FOR EACH ROW
WHEN (NEW.open IS DISTINCT FROM pg_current_xact_id()::text)
EXECUTE FUNCTION {schema}.penstock_refuse('a permit is opened in the transaction that prunes, and closed before it ends')""",
        ),
        # Closing a permit, inside the transaction that opened it, is the one change it can have.
        "penstock_permit_update": (
            "prune_permit",
            f"""BEFORE UPDATE ON {schema}.prune_permit FOR EACH ROW
WHEN ((OLD.open IS NOT NULL AND NEW.open IS NULL AND OLD.id = NEW.id AND OLD.machine = NEW.machine
  AND OLD.actor = NEW.actor AND OLD.reason = NEW.reason AND OLD.at = NEW.at) IS NOT TRUE)
EXECUTE FUNCTION {schema}.penstock_refuse('prune_permit is append-only; its rows cannot be changed')""",
        ),
        "penstock_event_update": ("event_log", fixed("event_log", "UPDATE OR TRUNCATE")),
        "penstock_event_delete": ("event_log", deleted("event_log", "penstock_event_delete")),
        "penstock_gate_update": ("gate_log", fixed("gate_log", "UPDATE OR TRUNCATE")),
        "penstock_gate_delete": ("gate_log", deleted("gate_log", "penstock_gate_delete")),
    }


def machine_functions(machine: Machine, schema: str) -> dict[str, str]:
    """Name to statement: the three functions that write a machine's history."""
    # The planner guesses a transition table's size once and keeps the plan: a nested loop over a batch of a thousand
    # would be a million comparisons.
    bodies = {"birth": _birth(machine, schema), "history": _history(machine, schema), "death": _death(machine, schema)}
    names = {kind: f"penstock_{machine.name}_{kind}" for kind in bodies}
    return {names[kind]: function(schema, names[kind], body, settings=PLANNER) for kind, body in bodies.items()}


def machine_triggers(machine: Machine, schema: str) -> dict[str, tuple[str, str]]:
    """Name to (table, statement): the triggers of the machine's table."""
    name, table = machine.name, f"{schema}.{machine.table}"

    def history(event: str, tables: str, kind: str) -> str:
        called = f"EXECUTE FUNCTION {schema}.penstock_{name}_{kind}()"
        return f"AFTER {event} ON {table} REFERENCING {tables} FOR EACH STATEMENT {called}"

    refusal = f"""{name}: units are never deleted; old ones go by "penstock db prune\""""
    statements = {
        "birth": history("INSERT", "NEW TABLE AS born", "birth"),
        "guard": _guard(machine, schema),
        "key": _key(machine, schema),
        "history": history("UPDATE", "OLD TABLE AS was NEW TABLE AS now_", "history"),
        "death": history("DELETE", "OLD TABLE AS gone", "death"),
        "truncate": f"BEFORE TRUNCATE ON {table} FOR EACH STATEMENT"
        f" EXECUTE FUNCTION {schema}.penstock_refuse('{refusal}')",
    }
    return {f"penstock_{name}_{kind}": (machine.table, sql) for kind, sql in statements.items()}


def _birth(machine: Machine, schema: str) -> str:
    born = ", ".join(machine.born_by)
    whose = " ".join(f"WHEN '{s}' THEN '{birth_rules.refusal(machine, s)}'" for s in machine.born_by)
    legal = birth_rules.legal(machine, "", "split_part(changed_by, ':', 1)")
    return f"""
DECLARE bad text; penstock_now timestamptz := {CLOCK};
BEGIN
  SELECT status INTO bad FROM born WHERE ({legal}) IS NOT TRUE LIMIT 1;
  IF bad IS NOT NULL THEN
    {REFUSAL} 'penstock: {machine.name} ' || CASE bad {whose}
      ELSE 'cannot be born as ' || bad || '; it is born as {born}' END;
  END IF;
  INSERT INTO {schema}.transition_log {_COLUMNS}
  SELECT '{machine.name}', unit_id, NULL, status, changed_by, change_reason, version,
         COALESCE(changed_at, penstock_now), {_data(machine, "born")}, NULL, NULL
    FROM born;
  IF EXISTS (SELECT 1 FROM born WHERE changed_at IS NULL) THEN
    UPDATE {schema}.{machine.table} t SET changed_at = penstock_now FROM born
     WHERE t.unit_id = born.unit_id AND t.changed_at IS NULL;
  END IF;
  RETURN NULL;
END """


def _guard(machine: Machine, schema: str) -> str:
    sources: dict[str, list[str]] = {}
    for source, target in machine.pairs:
        if source != target:
            sources.setdefault(source, []).append(f"'{target}'")
    legal = " OR ".join(
        ["NEW.status IS NOT DISTINCT FROM OLD.status"]
        + [f"(OLD.status = '{s}' AND NEW.status IN ({', '.join(targets)}))" for s, targets in sources.items()]
    )
    return f"""BEFORE UPDATE OF status ON {schema}.{machine.table} FOR EACH ROW WHEN (({legal}) IS NOT TRUE)
EXECUTE FUNCTION {schema}.penstock_refuse_move('{machine.name}', '{", ".join(machine.states)}')"""


def _key(machine: Machine, schema: str) -> str:
    keys = ("unit_id", *machine.lasting)
    same = " AND ".join(f"NEW.{k} IS NOT DISTINCT FROM OLD.{k}" for k in keys)
    return f"""BEFORE UPDATE OF {", ".join(keys)} ON {schema}.{machine.table} FOR EACH ROW WHEN (NOT ({same}))
EXECUTE FUNCTION {schema}.penstock_refuse('{birth_rules.lasting(machine)}')"""


def _history(machine: Machine, schema: str) -> str:
    changed = " OR ".join(f"NOT {_same(c)}" for c in ("status", *machine.tracked))
    if machine.judged:
        changed += f" OR (NOT {_same('changed_by')} AND n.changed_by <> 'sql')"
    changed += f" OR {foreign.by_hand(machine, _same, 'n.changed_by', _WHO)}"
    strange = f"n.version = o.version AND NOT ({foreign.as_it_was(machine, _same)})"
    reason = foreign.reason(machine, _same, _named, "n.change_reason")
    freed = foreign.freed(machine, "n", "o")
    pulled = edge_name(machine, "o.status", "n.status", _WHO, _same)
    return f"""
DECLARE strangers bigint; penstock_now timestamptz := {CLOCK};
BEGIN
  WITH logged AS (
    INSERT INTO {schema}.transition_log {_COLUMNS}
    SELECT '{machine.name}', n.unit_id, o.status, n.status,
           CASE WHEN {strange} THEN 'sql' ELSE n.changed_by END,
           CASE WHEN {strange} THEN {reason} ELSE n.change_reason END,
           CASE WHEN {strange} THEN n.version + 1 ELSE n.version END,
           CASE WHEN {strange} THEN penstock_now ELSE COALESCE(n.changed_at, penstock_now) END, {_data(machine, "n")},
           CASE WHEN ({strange}) OR {_same("last_action")} THEN NULL ELSE n.last_action END,
           CASE WHEN {strange} THEN NULL ELSE {pulled} END
      FROM now_ n JOIN was o ON o.unit_id = n.unit_id
     WHERE {changed} OR ({strange})
    RETURNING actor)
  SELECT count(*) INTO strangers FROM logged WHERE actor = 'sql';
  IF strangers > 0 THEN
    UPDATE {schema}.{machine.table} t SET version = n.version + 1, changed_by = 'sql', changed_at = penstock_now{freed}
      FROM now_ n JOIN was o ON o.unit_id = n.unit_id
     WHERE t.unit_id = n.unit_id AND {strange};
  END IF;
  RETURN NULL;
END """


def _same(column: str) -> str:
    same = f"n.{column} IS NOT DISTINCT FROM o.{column}"
    # Filled in after a birth without it.
    return f"({same} OR o.changed_at IS NULL)" if column == "changed_at" else f"({same})"


def _named(only_if_absent: Mapping[str, str]) -> str:
    parts = ", ".join(f"CASE WHEN {same} THEN NULL ELSE '{c}' END" for c, same in only_if_absent.items())
    return f"NULLIF(concat_ws(', ', {parts}), '')"


def _death(machine: Machine, schema: str) -> str:
    return f"""
DECLARE permit record;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM gone) THEN
    RETURN NULL;
  END IF;
  SELECT actor, reason, at INTO permit FROM {schema}.prune_permit
   WHERE machine = '{machine.name}' AND open = pg_current_xact_id_if_assigned()::text ORDER BY id LIMIT 1;
  IF NOT FOUND THEN
    {REFUSAL} 'penstock: {machine.name}: a unit is never deleted; old ones go by "penstock db prune"';
  END IF;
  INSERT INTO {schema}.transition_log {_DEATH_COLUMNS}
  SELECT '{machine.name}', unit_id, status, NULL, permit.actor,
         permit.reason || '; last ' || changed_by || COALESCE(': ' || change_reason, ''), version, permit.at,
         {_data(machine, "gone")}, NULL, NULL,
         (SELECT l.at FROM {schema}.transition_log l WHERE l.machine = '{machine.name}' AND l.unit_id = gone.unit_id
           ORDER BY l.seq DESC LIMIT 1)
    FROM gone;
  RETURN NULL;
END """


def _data(machine: Machine, row: str) -> str:
    if not machine.tracked:
        return "NULL"
    return "jsonb_build_object(" + ", ".join(f"'{c}', {row}.{c}" for c in machine.tracked) + ")"
