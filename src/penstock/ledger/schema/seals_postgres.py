"""The triggers of seals for PostgreSQL (see `seals`): they look under locks, because commits interleave.

A child that leaves the listed states shares the key of its parent's row, as a foreign key would: nobody who counts on
the parent or steps it waits for that. A parent that enters a sealed state takes its row whole, so it waits for
such children, and such children for it. Whoever comes second looks at what the first has committed.

A transaction on an old snapshot would not see it. So a parent enters a sealed state in READ COMMITTED alone, and a
child's look under another level takes a lock that fails where the parent has changed since.
"""

from __future__ import annotations

from penstock.ledger.schema.seals import Family
from penstock.ledger.schema.triggers_postgres import BY_INDEX, PLANNER, REFUSAL, function
from penstock.ledger.schema.unit_ids import unit_id_text
from penstock.ledger.store.statements import state_list

_FRESH = "current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')"


def functions(family: Family, schema: str) -> dict[str, str]:
    """Name to statement: the functions that the triggers call. `schema` is the ledger's, quoted."""
    name = f"penstock_{family.child.name}"
    made = {f"{name}_sealing": function(schema, f"{name}_sealing", _parent(family, schema), settings=BY_INDEX)}
    if family.left:
        made[f"{name}_seal"] = function(schema, f"{name}_seal", _child(family, schema), settings=PLANNER)
    if family.unborn:
        made[f"{name}_seal_new"] = function(schema, f"{name}_seal_new", _birth(family, schema), settings=PLANNER)
    return made


def triggers(family: Family, schema: str) -> dict[str, tuple[str, str]]:
    """Name to (table, statement)."""
    name, child, parent = f"penstock_{family.child.name}", family.child.table, family.parent.table
    tables = {
        "seal": ("UPDATE", "OLD TABLE AS was NEW TABLE AS now_", family.left),
        "seal_new": ("INSERT", "NEW TABLE AS now_", family.unborn),
    }
    entered = f"NEW.status IN ({state_list(family.seals)}) AND NEW.status IS DISTINCT FROM OLD.status"
    fired = f"BEFORE UPDATE OF status ON {schema}.{parent} FOR EACH ROW WHEN ({entered})"
    made = {f"{name}_sealing": (parent, f"{fired} EXECUTE FUNCTION {schema}.{name}_sealing()")}
    for kind, (event, rows, seals) in tables.items():
        if seals:
            fired = f"AFTER {event} ON {schema}.{child} REFERENCING {rows} FOR EACH STATEMENT"
            made[f"{name}_{kind}"] = (child, f"{fired} EXECUTE FUNCTION {schema}.{name}_{kind}()")
    return made


def _child(family: Family, schema: str) -> str:
    moved = ""
    if not family.fixed:
        moved = " OR NOT (" + " AND ".join(f"n.{b} IS NOT DISTINCT FROM o.{b}" for b in family.by) + ")"
    left = {
        state: f"n.status IN ({state_list(barred)}) AND (o.status NOT IN ({state_list(barred)}){moved})"
        for state, barred in family.left.items()
    }
    return _look(family, schema, left, "now_ n JOIN was o ON o.unit_id = n.unit_id", "cannot become")


def _birth(family: Family, schema: str) -> str:
    born = {state: f"n.status IN ({state_list(barred)})" for state, barred in family.unborn.items()}
    return _look(family, schema, born, "now_ n", "cannot be born as")


def _look(family: Family, schema: str, seals: dict[str, str], rows: str, verb: str) -> str:
    """Look at the parents of the rows that come to where a seal bars them. `seals`: state to that condition."""
    child, parent = family.child.name, family.parent
    unit_id = unit_id_text(parent, [f"n.{b}" for b in family.by], "postgresql")
    entered = " OR ".join(f"({condition})" for condition in seals.values())
    barred = {s for state in seals for s in family.seals[state]}
    locked = f"PERFORM 1 FROM {schema}.{parent.table} p WHERE p.unit_id = ANY (parents) ORDER BY p.unit_id"
    broken = " OR ".join(f"(p.status = '{state}' AND {condition})" for state, condition in seals.items())
    # In statements of their own: each sees what was committed before it.
    return f"""
DECLARE parents text[]; bad record;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM now_ n WHERE n.status IN ({state_list(barred)})) THEN
    RETURN NULL;
  END IF;
  SELECT array_agg(DISTINCT {unit_id}) INTO parents FROM {rows} WHERE {entered};
  IF parents IS NULL THEN
    RETURN NULL;
  END IF;
  IF {_FRESH} THEN
    {locked} FOR KEY SHARE;
  ELSE
    {locked} FOR SHARE;
  END IF;
  IF EXISTS (SELECT 1 FROM {schema}.{parent.table} p
      WHERE p.unit_id = ANY (parents) AND p.status IN ({state_list(seals)})) THEN
    SELECT n.unit_id, n.status, p.unit_id AS parent_id, p.status AS parent_status INTO bad
      FROM {rows} JOIN {schema}.{parent.table} p ON p.unit_id = {unit_id}
     WHERE p.unit_id = ANY (parents) AND ({broken}) ORDER BY n.unit_id LIMIT 1;
    IF FOUND THEN
      {REFUSAL} 'penstock: {child} ' || bad.unit_id || ' {verb} ' || bad.status
        || ' while its {parent.name} ' || bad.parent_id || ' is ' || bad.parent_status;
    END IF;
  END IF;
  RETURN NULL;
END """


def _parent(family: Family, schema: str) -> str:
    child, parent = family.child, family.parent
    looks = "".join(
        f"""
  IF NEW.status = '{state}' THEN
    SELECT c.unit_id, c.status INTO bad FROM {schema}.{child.table} c
     WHERE {family.same_parent("NEW.", "c.")} AND c.status IN ({state_list(barred)}) LIMIT 1;
  END IF;"""
        for state, barred in family.seals.items()
    )
    # The row is taken whole before it changes: that others see that a key might have changed is what makes them wait.
    return f"""
DECLARE bad record;
BEGIN
  IF NOT {_FRESH} THEN
    {REFUSAL} 'penstock: {parent.name} ' || NEW.unit_id || ' cannot become ' || NEW.status
      || ' but in READ COMMITTED: this transaction would not see what its {child.name} have become since it began';
  END IF;
  PERFORM 1 FROM {schema}.{parent.table} p WHERE p.unit_id = NEW.unit_id FOR UPDATE;{looks}
  IF bad.unit_id IS NOT NULL THEN
    {REFUSAL} 'penstock: {parent.name} ' || NEW.unit_id || ' cannot become ' || NEW.status
      || ' while its {child.name} ' || bad.unit_id || ' is ' || bad.status;
  END IF;
  RETURN NEW;
END """
