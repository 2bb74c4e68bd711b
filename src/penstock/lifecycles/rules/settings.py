"""What `penstock.toml` says of price rules: `[rules]`, the accounts whose prices they set, and the rules themselves."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from penstock.lifecycles.rules.definition import RuleSettings
from penstock.settings.addresses import read_hosts
from penstock.settings.typed import Secret, Settings, Url, says

_MANY = 10_000_000
_AUTUMN = {
    "account": "shop",
    "currency": "EUR",
    "selector": {"tags": ["ring"]},
    "transform": {"percent": "-10"},
    "rounding": {"ending": "0.99"},
}


class AccountSettings(Settings):
    """`[rules.accounts.*]`: one price list, in a file or in a shop."""

    connector: Annotated[Literal["csv", "shopify"], says("Where the prices are: in a file (csv), or in a shop.")] = (
        "csv"
    )
    file: Annotated[
        Path | None, says("The price list, for csv: sku, price and whatever else it has.", examples=["prices.csv"])
    ] = None
    currency: Annotated[str | None, says("The currency, where the price list does not name it.", examples=["EUR"])] = (
        None
    )
    shop_url: Annotated[
        Url | None, says("The shop's address, for shopify.", examples=["https://example.myshopify.com"])
    ] = None
    token: Annotated[
        Secret | None,
        says("An access token; or give client_id and client_secret.", examples=[{"env": "SHOPIFY_TOKEN"}]),
    ] = None
    client_id: Annotated[str | None, says("The client of the client-credentials grant.")] = None
    client_secret: Annotated[Secret | None, says("Its secret.", examples=[{"env": "SHOPIFY_CLIENT_SECRET"}])] = None
    points_per_second: Annotated[
        float,
        says(
            "How fast the bucket of query costs fills again: 100, 200, 1,000 or 2,000; 0 is without a limit.",
            ge=0,
            le=100_000,
        ),
    ] = 100.0
    points_burst: Annotated[float, says("How much the bucket of query costs holds.", gt=0, le=1_000_000)] = 2_000.0
    requests_per_second: Annotated[
        float, says("How many calls a second are made besides; 0 is without a limit.", ge=0, le=100_000)
    ] = 0.0
    requests_burst: Annotated[float, says("How many calls are made at once, where they are limited.", ge=1)] = 40.0
    locked: Annotated[tuple[str, ...], says("SKUs that no rule touches.", examples=[["GIFT-CARD"]])] = ()
    catalogue_every: Annotated[timedelta, says("How often the whole catalogue is read.")] = timedelta(hours=6)
    paused: Annotated[bool, says("Read and set nothing; what is there stays.")] = False

    def __post_init__(self) -> None:
        wrong = []
        if self.connector == "csv" and self.file is None:
            wrong.append("has connector csv and no 'file'; name the price list")
        if self.connector == "shopify":
            if self.shop_url is None:
                wrong.append("has connector shopify and no 'shop_url'")
            if (self.token is None) == (self.client_id is None or self.client_secret is None):
                wrong.append("needs either 'token', or both 'client_id' and 'client_secret'")
        if wrong:
            raise ValueError("\n".join(wrong))


class RulesSettings(Settings):
    """`[rules]`: how prices are changed in bulk."""

    tenant_id: Annotated[str, says("Whose runs they are, where several share a ledger.")] = "default"
    project_id: Annotated[str, says("The project that runs belong to.")] = "default"
    approve_above: Annotated[
        int, says("A run of more targets than this needs the approval of a second person.", ge=0, le=_MANY)
    ] = 1_000
    step_timeout: Annotated[timedelta, says("How long one step may take; a longer one is in doubt.")] = timedelta(
        minutes=2
    )
    look_every: Annotated[timedelta, says("How often an applying run looks at its targets.")] = timedelta(seconds=2)
    reconcile_soon: Annotated[timedelta, says("When an ended run is first compared with the live prices.")] = timedelta(
        minutes=1
    )
    reconcile_later: Annotated[timedelta, says("When it is compared again.")] = timedelta(hours=1)
    reconcile_for: Annotated[timedelta, says("For how long it is then compared every day.")] = timedelta(days=30)
    bulk_read_above: Annotated[
        int, says("A comparison of more targets than this asks for all prices at once, where a shop can.", ge=1)
    ] = 5_000
    private_downloads: Annotated[
        tuple[str, ...],
        says("Hosts that bulk reads may come from beside Shopify's, for a test server.", reads=read_hosts),
    ] = ()
    accounts: Annotated[dict[str, AccountSettings], says("The price lists, by name.", examples=["shop"])] = {}
    rules: Annotated[dict[str, RuleSettings], says("The rules, by name.", examples={"autumn": _AUTUMN})] = {}

    def __post_init__(self) -> None:
        wrong = [
            f"rules.{name}: there is no account {rule.account!r}; add [rules.accounts.{rule.account}]"
            for name, rule in self.rules.items()
            if rule.account not in self.accounts
        ]
        if wrong:
            raise ValueError("\n".join(wrong))


def gate_of(account: str) -> str:
    """The gate of an account's calls."""
    return f"prices/{quote(account, safe='')}"


def schedule_of(account: str) -> str:
    """The schedule that reads an account's catalogue."""
    return f"catalogue-{account}"
