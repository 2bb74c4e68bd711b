"""Rules as the ledger keeps them: versions, the prices of those that list them, and which SKUs are locked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.ledger.schema.columns import document
from penstock.lifecycles.rules.definition import ListedPrice, Rule, named, read_rule, with_prices
from penstock.lifecycles.rules.money import text
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.model.errors import UsageError

if TYPE_CHECKING:
    from decimal import Decimal

    from penstock.ledger.ledger import Ledger
    from penstock.operations.reader import Reader

CONFIGURATION = "configuration"


@dataclass(frozen=True, slots=True)
class Kept:
    """A version of a rule. `listed`: it sets each SKU's own price, kept in `rule_price`."""

    rule: Rule
    version: int
    digest: str
    source: str
    listed: bool


def kept_rules(reader: Reader | Ledger, tenant: str) -> list[Kept]:
    """The rules that are in force, by name."""
    return _kept(reader, "current", tenant=tenant)


def version_of(reader: Reader | Ledger, tenant: str, name: str, version: int) -> Kept:
    """One version of a rule. Raises UsageError where the ledger has none."""
    for kept in _kept(reader, "name = :name AND version = :version", tenant=tenant, name=name, version=version):
        return kept
    raise UsageError(f"the ledger has no version {version} of the rule {name!r}")


def _kept(reader: Reader | Ledger, condition: str, **given: Any) -> list[Kept]:
    columns = "version, definition, digest, source"
    sql = f"SELECT {columns} FROM rule WHERE tenant_id = :tenant AND {condition} ORDER BY name, version"
    found = []
    for version, kept, digest, source in reader.read(lambda cursor: cursor.rows(sql, **given)):
        plain: dict[str, Any] = dict(document(kept) if isinstance(kept, str) else kept)
        listed = bool(plain.pop("listed", False))
        found.append(Kept(read_rule(plain), version, digest, source, listed))
    return found


def configured_rules(settings: RulesSettings) -> dict[str, Rule]:
    """The rules of the configuration, by name."""
    return {name: named(own, name) for name, own in settings.rules.items()}


def priced(reader: Reader | Ledger, tenant: str, kept: Kept, skus: Collection[str] | None = None) -> Rule:
    """The rule with the prices that it lists: of these SKUs, or all. One that lists none is as it is."""
    if not kept.listed:
        return kept.rule
    return with_prices(kept.rule, listed_prices(reader, tenant, kept, skus))


def listed_prices(
    reader: Reader | Ledger, tenant: str, kept: Kept, skus: Collection[str] | None = None
) -> Mapping[str, ListedPrice]:
    """What a version of a rule lists, by SKU."""
    sql = (
        "SELECT sku, unit_amount, compare_at_amount FROM rule_price"
        " WHERE tenant_id = :tenant AND rule_name = :name AND rule_version = :version"
    )
    given: dict[str, Any] = {"tenant": tenant, "name": kept.rule.name, "version": kept.version}
    if skus is not None:
        import msgspec

        sql += f" AND sku IN ({reader.database.sql.listed('skus')})"
        given["skus"] = msgspec.json.encode(sorted(skus)).decode()
    currency = kept.rule.currency
    return {
        str(sku): ListedPrice(price=_decimal(amount, currency), compare_at_price=_maybe(compare_at, currency))
        for sku, amount, compare_at in reader.read(lambda cursor: cursor.rows(sql, **given))
    }


def unknown_skus(reader: Reader | Ledger, tenant: str, kept: Kept, whole: int) -> list[str]:
    """SKUs that a rule names and the last whole reading of its catalogue did not see."""
    there = "SELECT 1 FROM catalogue c WHERE c.account = :account AND c.sku = s.sku AND c.seen_in >= :whole"
    given: dict[str, Any] = {"account": kept.rule.account, "whole": whole}
    if kept.listed:
        listed = (
            "SELECT sku FROM rule_price WHERE tenant_id = :tenant AND rule_name = :name AND rule_version = :version"
        )
        given |= {"tenant": tenant, "name": kept.rule.name, "version": kept.version}
        sql = f"SELECT s.sku FROM ({listed}) AS s WHERE NOT EXISTS ({there}) ORDER BY s.sku"
        return [str(row[0]) for row in reader.read(lambda cursor: cursor.rows(sql, **given))]
    known = (
        "SELECT DISTINCT s.sku FROM catalogue s WHERE s.account = :account AND s.seen_in >= :whole AND s.sku IN ({})"
    )
    names = {*(kept.rule.selector.skus or ()), *(kept.rule.transform.prices or ())}
    if not names:
        return []
    import msgspec

    given["skus"] = msgspec.json.encode(sorted(names)).decode()
    sql = known.format(reader.database.sql.listed("skus"))
    return sorted(names - {str(row[0]) for row in reader.read(lambda cursor: cursor.rows(sql, **given))})


def locked_skus(reader: Reader | Ledger, settings: RulesSettings, account: str) -> frozenset[str]:
    """SKUs of an account that no rule touches: those of the configuration and those that people locked."""
    sql = "SELECT sku FROM locked_sku WHERE account = :account AND locked"
    rows = reader.read(lambda cursor: cursor.rows(sql, account=account))
    own = settings.accounts.get(account)
    return frozenset({*(str(row[0]) for row in rows), *(own.locked if own is not None else ())})


def _decimal(amount: int, currency: str) -> Decimal:
    from decimal import Decimal

    return Decimal(text(amount, currency))


def _maybe(amount: int | None, currency: str) -> Decimal | None:
    return None if amount is None else _decimal(amount, currency)
