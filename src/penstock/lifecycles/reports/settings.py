"""What `penstock.toml` says of reports: the accounts, the offsets, the patience, and where data goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.connectors.amazon_ads.client import REGIONS, Region
from penstock.connectors.oauth import Credentials
from penstock.lifecycles.ladder import optional_offset_list
from penstock.lifecycles.reports.decide import DAILY_OFFSETS, HOURLY_OFFSETS, Limits, Settings, offset_name
from penstock.lifecycles.reports.machine import Aggregation
from penstock.model.cadence import parse_span
from penstock.raw.settings import RAW_URL
from penstock.settings import setting as kind
from penstock.settings.config import Config
from penstock.settings.setting import REQUIRED, ConfigError, Setting

PROVIDER, STREAM = "amazon_ads", "amazon_stream"
NO_STREAM = "reports.stream is not set; it names the folder that a consumer of the Marketing Stream fills"


@dataclass(frozen=True, slots=True)
class Account:
    """One advertising account: whose profile it is, and the zone in which its days begin."""

    name: str
    profile_id: str
    country: str
    time_zone: str
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Connection:
    """How an account is reached."""

    region: Region
    credentials: Credentials


def gate_of(account: str, aggregation: Aggregation = Aggregation.DAILY) -> str:
    """The door of an account's calls. Hours come from a folder: what closes the API does not stop them."""
    provider = PROVIDER if aggregation is Aggregation.DAILY else STREAM
    return f"{provider}/{quote(account, safe='')}"


def hosts(value: Any) -> list[str]:
    """Hosts with their ports."""
    if not isinstance(value, list) or not all(isinstance(item, str) and ":" in item for item in value):
        raise ValueError('a list of host:port, for example ["127.0.0.1:8080"]')
    return [str(item) for item in value]


def _written(aggregation: Aggregation, offsets: tuple[timedelta, ...]) -> list[str]:
    return [offset_name(aggregation, int(o.total_seconds())).removeprefix("T+") for o in offsets]


def _below(address: str, folder: Path) -> str:
    """A folder that is named without its place lies beside the configuration."""
    return str(folder / address)


_LIMIT = kind.whole(1, 1_000)

SETTINGS = (
    Setting(
        "reports.daily_offsets",
        optional_offset_list,
        _written(Aggregation.DAILY, DAILY_OFFSETS),
        "When a daily dataset is fetched anew, counted from its local midnight; [] switches daily off.",
    ),
    Setting(
        "reports.hourly_offsets",
        optional_offset_list,
        _written(Aggregation.HOURLY, HOURLY_OFFSETS),
        "When an hourly dataset is made anew, counted from its hour; [] switches hourly off.",
    ),
    Setting("reports.poll", kind.span, "5m", "How often a report that is not ready is looked at."),
    Setting(
        "reports.cancel_after", kind.span, "6h", "When the provider is asked to cancel a report that is not ready."
    ),
    Setting("reports.give_up_after", kind.span, "24h", "When one that could not be cancelled counts as failed."),
    Setting("reports.create_limit", _LIMIT, 3, "How often creating a report may fail, for one offset."),
    Setting("reports.provider_limit", _LIMIT, 3, "How often the provider may say that a report failed."),
    Setting("reports.pending_limit", _LIMIT, 3, "How often a report may be pending too long."),
    Setting("reports.parse_limit", _LIMIT, 3, "How often a report may be unreadable."),
    Setting("reports.link_limit", _LIMIT, 3, "How often the link of one report may have expired before it is read."),
    RAW_URL,
    Setting(
        "reports.stream",
        kind.text,
        None,
        "The folder of Marketing Stream deltas; hourly is off without it, and for accounts that have no folder in it.",
        anchor=_below,
    ),
    Setting(
        "reports.private_downloads", hosts, [], "Hosts that reports may come from beside Amazon's, for a test server."
    ),
    Setting("reports.client_id", kind.text, None, "The Login with Amazon client, for all accounts without their own."),
    Setting("reports.client_secret", kind.secret, None, "Its secret."),
    Setting("reports.refresh_token", kind.secret, None, "The token that opens the accounts."),
    Setting(
        "accounts.*.profile_id", kind.text, REQUIRED, "The advertising profile.", examples={"acme": "1234567890123"}
    ),
    Setting("accounts.*.country", kind.text, "", "The profile's country.", examples={"acme": "US"}),
    Setting(
        "accounts.*.time_zone",
        kind.zone,
        "UTC",
        "Where its days begin.",
        examples={"acme": "America/Los_Angeles"},
    ),
    Setting("accounts.*.region", kind.one_of(*REGIONS), "NA", "Which of Amazon's hosts serve it."),
    Setting("accounts.*.paused", kind.flag, False, "Create nothing for it; what it has stays."),
    Setting("accounts.*.api_url", kind.text, None, "Another address than its region's."),
    Setting("accounts.*.token_url", kind.text, None, "The same for tokens."),
    Setting("accounts.*.client_id", kind.text, None, "Its own client, instead of that of [reports]."),
    Setting("accounts.*.client_secret", kind.secret, None, "Its secret."),
    Setting("accounts.*.refresh_token", kind.secret, None, "Its own token."),
)


def read_accounts(config: Config) -> dict[str, Account]:
    """The accounts, by name."""
    return {
        name: Account(name, own["profile_id"], own["country"], own["time_zone"], own["paused"])
        for name, own in config.section("accounts").items()
    }


def read_settings(config: Config) -> Settings:
    """What `decide` wants to know. Raises ConfigError where two settings contradict each other."""
    cancel_after, give_up_after = (
        parse_span(config["reports.cancel_after"]),
        parse_span(config["reports.give_up_after"]),
    )
    if give_up_after < cancel_after:
        msg = f"{config.path or 'the configuration'}: reports.give_up_after is shorter than reports.cancel_after"
        raise ConfigError(msg)
    if not config["reports.daily_offsets"] and not config["reports.hourly_offsets"]:
        msg = f"{config.path or 'the configuration'}: reports.daily_offsets and reports.hourly_offsets are both empty"
        raise ConfigError(msg)
    limits = {name: config[f"reports.{name}_limit"] for name in ("create", "provider", "pending", "parse", "link")}
    return Settings(
        accounts={name: account.paused for name, account in read_accounts(config).items()},
        daily=tuple(parse_span(text) for text in config["reports.daily_offsets"]),
        hourly=tuple(parse_span(text) for text in config["reports.hourly_offsets"]),
        poll=parse_span(config["reports.poll"]),
        cancel_after=cancel_after,
        give_up_after=give_up_after,
        limits=Limits(**limits),
    )


def read_connections(config: Config) -> dict[str, Connection]:
    """How each account is reached. Raises ConfigError with every account that lacks something."""
    found: dict[str, Connection] = {}
    errors = []
    for name, own in config.section("accounts").items():
        region = REGIONS[own["region"]]
        given = {part: _own_or_shared(config, own, part) for part in ("client_id", "client_secret", "refresh_token")}
        if missing := [part for part, value in given.items() if value is None]:
            errors.append(
                f"{config.path or 'the configuration'}: account {name} has no {', '.join(missing)};"
                f" set it in [reports] or in [accounts.{name}]"
            )
            continue
        place = Region(own["api_url"] or region.api_url, own["token_url"] or region.token_url)
        found[name] = Connection(place, Credentials(**given))
    if errors:
        raise ConfigError("\n".join(sorted(errors)))
    return found


def _own_or_shared(config: Config, own: Mapping[str, Any], part: str) -> Any:
    return own[part] if own[part] is not None else config[f"reports.{part}"]
