"""What several commands ask of the ledger: which run, rule, account or target a person means."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.lifecycles.rules.registry import Kept, kept_rules
from penstock.lifecycles.rules.run.machine import Kind, Run, rule_run
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.lifecycles.rules.target.machine import Target, rule_target
from penstock.model.errors import UnknownUnit, UsageError
from penstock.model.near import near
from penstock.operations import named
from penstock.operations.declare import Ask
from penstock.operations.past import lacking

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.operations.reader import Reader

SHORT = 8
"""So much of a run's id names it, in tables."""
_NAMED = 5
_AT_ONCE = 5_000


def require_rules(reader: Reader) -> None:
    """Refuse a ledger that has no rules. Raises UsageError."""
    if not reader.keeps(rule_run):
        raise UsageError("this ledger has no tables for rules; 'penstock db upgrade' adds them")


def require_account(settings: RulesSettings, name: str) -> None:
    """Refuse an account that is not configured. Raises UsageError that says what is."""
    if name not in settings.accounts:
        raise UsageError(
            f"no account is called {name!r}; {_known(name, settings.accounts, 'add [rules.accounts.NAME]')}"
        )


def find_run(reader: Reader, text: str) -> Run:
    """The run that a person names: by its id, the beginning of it, or a reference. Raises UsageError, UnknownUnit."""
    require_rules(reader)
    found: Run = named.find_run(reader, rule_run, text, "rules runs")
    return found


def find_run_then(ask: Ask[Any], text: str, at: datetime | None) -> Run:
    """The same as it stood at a moment, if there is one. `ask` is the question before `then`."""
    require_rules(ask.reader)
    with named.excused(lacking(ask, [rule_run], at)):
        found: Run = named.find_run(ask.then(at).reader, rule_run, text, "rules runs", at)
    return found


def short(run: Run) -> str:
    """The beginning of a run's id, which is enough to name it."""
    return str(run.id)[:SHORT]


def current_rules(reader: Reader, settings: RulesSettings) -> dict[str, Kept]:
    """The rules that are in force in the ledger, by name."""
    require_rules(reader)
    return {kept.rule.name: kept for kept in kept_rules(reader, settings.tenant_id)}


def unknown_rule(name: str, known: Collection[str]) -> UnknownUnit:
    """That there is no rule of that name, and which was perhaps meant."""
    return UnknownUnit(f"no rule is called {name!r}; {_known(name, known, 'penstock rules import FILE adds some')}")


def _known(name: str, known: Collection[str], otherwise: str) -> str:
    close = near(name, known)
    if close:
        return f"did you mean {close[0]}?"
    return f"there are {', '.join(sorted(known))}" if known else f"there is none; {otherwise}"


def runs_of(reader: Reader | Ledger, run: Run, kind: Kind) -> list[Run]:
    """The rollbacks or repairs of a run, the newest first."""
    mine = f"of_run_id = {reader.database.sql.identifier('run')} AND kind = :kind"
    sql = f"SELECT unit_id FROM rule_run WHERE {mine}"
    ids = [str(row[0]) for row in reader.read(lambda cursor: cursor.rows(sql, run=str(run.id), kind=str(kind)))]
    found: list[Run] = reader.get_many(rule_run, ids) if ids else []
    return sorted(found, key=lambda one: (one.created_at, one.unit_id), reverse=True)


def target_ids(reader: Reader, run: Run, condition: str, names: Sequence[str] = (), **given: Any) -> list[str]:
    """Targets of a run by a condition, all or those of these names: variants or SKUs.

    Raises UsageError that lists the names that no such target has.
    """
    mine = f"rule_run_id = {reader.database.sql.identifier('run')} AND {condition}"
    values: dict[str, Any] = {"run": str(run.id), **given}
    if names:
        import msgspec

        listed = reader.database.sql.listed("names")
        mine += f" AND (id IN ({listed}) OR sku IN ({listed}))"
        values["names"] = msgspec.json.encode(sorted(set(names))).decode()
    sql = f"SELECT unit_id, id, sku FROM rule_target WHERE {mine} ORDER BY unit_id"
    rows = reader.database.read(lambda cursor: list(cursor.gather(sql, **values)), patient=True)
    if missing := sorted(set(names) - {str(name) for _, *both in rows for name in both}):
        more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
        said = ", ".join(missing[:_NAMED])
        raise UsageError(f"run {short(run)} has no such target: {said}{more}; name variants or SKUs")
    return [str(row[0]) for row in rows]


def targets_of(reader: Reader, ids: Sequence[str]) -> Iterator[Target]:
    """Targets by their ids, a few thousand at a time."""
    for start in range(0, len(ids), _AT_ONCE):
        yield from reader.get_many(rule_target, ids[start : start + _AT_ONCE])


def catalogue_lacks(reader: Reader, account: str, skus: Sequence[str]) -> list[str]:
    """Those of the SKUs that no variant of the account's catalogue has."""
    import msgspec

    listed = reader.database.sql.listed("skus")
    sql = f"SELECT DISTINCT sku FROM catalogue WHERE account = :account AND sku IN ({listed})"
    given = {"account": account, "skus": msgspec.json.encode(sorted(set(skus))).decode()}
    there = {str(row[0]) for row in reader.read(lambda cursor: cursor.rows(sql, **given))}
    return [sku for sku in skus if sku not in there]
