"""What `penstock.toml` says of harvests: how they are split and fetched, and the feeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.connectors.nivoda.client import LIMIT, PRODUCTION, Api, Credentials
from penstock.connectors.watermark import store_options
from penstock.lifecycles.harvest import consolidate, reprice
from penstock.lifecycles.harvest.chunks import AT_ONCE, ROWS
from penstock.lifecycles.harvest.decide import Settings
from penstock.lifecycles.harvest.machine import RunType
from penstock.lifecycles.harvest.nivoda import UNITS
from penstock.lifecycles.harvest.runs import JOB, Rules, schedule_name
from penstock.lifecycles.harvest.scan import Limits
from penstock.model.cadence import parse_span
from penstock.model.limits import GateLimits, Limit, limits_of
from penstock.settings import setting as kind
from penstock.settings.config import Config
from penstock.settings.setting import REQUIRED, ConfigError, Setting
from penstock.worker.schedule import Schedule

PROVIDER = "nivoda"
_MANY = 1_000_000
_EXAMPLE = "diamonds"


def _below(address: str | None, folder: Path) -> str | None:
    """A file that is named without its place lies beside the configuration."""
    return address if address is None or "://" in address else str(folder / address)


SETTINGS = (
    Setting("harvest.page_size", kind.whole(1, LIMIT - 1), 30, "Records per page; one more is asked for."),
    Setting("harvest.target_records", kind.whole(1, _MANY), 5_000, "Records per partition, where workers allow it."),
    Setting("harvest.least_records", kind.whole(1, _MANY), 1_000, "No partition is made for fewer."),
    Setting("harvest.full_workers", kind.whole(1, 1_000), 30, "Partitions of a full run, at most."),
    Setting("harvest.incremental_workers", kind.whole(1, 1_000), 10, "Partitions of an incremental run, at most."),
    Setting(
        "harvest.tolerance", kind.number(0, 1), 0.005, "The share of a partition that may be missing when it is done."
    ),
    Setting(
        "harvest.rescans",
        kind.whole(0, 100),
        2,
        "How often a partition is fetched again because it is not known to be whole.",
    ),
    Setting(
        "harvest.extra_pages",
        kind.whole(1, 10_000),
        20,
        "How many pages past its count a partition is read, and how often it steps back because records moved.",
    ),
    Setting("harvest.overlap", kind.span, "10m", "How long before the watermark a window begins."),
    Setting("harvest.full_every", kind.span, "7d", "How often a run is full."),
    Setting("harvest.chunk_rows", kind.whole(1, 5_000), ROWS, "Raw rows that are consolidated by one commit."),
    Setting("harvest.chunks_at_once", kind.whole(1, 64), AT_ONCE, "Chunks that one worker holds at once."),
    Setting("harvest.most_rejected", kind.number(0, 1), 0.01, "The share of records that may be unmappable."),
    Setting(
        "harvest.most_deleted",
        kind.number(0, 1),
        0.5,
        "A full run that does not see more than this share of all records fails.",
    ),
    Setting("harvest.keep_raw", kind.span, "30d", "How long raw records stay after their run is over."),
    Setting("feeds.*.url", kind.text, PRODUCTION, "Where the API is served.", examples={_EXAMPLE: PRODUCTION}),
    Setting("feeds.*.username", kind.text, REQUIRED, "The login.", examples={_EXAMPLE: "buyer@example.com"}),
    Setting(
        "feeds.*.password",
        kind.secret,
        REQUIRED,
        "Its password.",
        examples={_EXAMPLE: {"env": "NIVODA_PASSWORD"}},
    ),
    Setting(
        "feeds.*.authentication",
        kind.one_of("bearer", "as"),
        "bearer",
        "How the token is sent: in a header, or in every query.",
    ),
    Setting("feeds.*.token_life", kind.span, "6h", "How long a token is good, where the login does not say."),
    Setting(
        "feeds.*.price_unit",
        kind.one_of(*UNITS),
        "cents",
        "What prices are counted in; compare one with the provider's own pages.",
        examples={_EXAMPLE: "cents"},
    ),
    Setting(
        "feeds.*.price_bounds",
        kind.one_of("exact", "whole"),
        "exact",
        "Whether filters compare prices to the cent, or whole dollars alone.",
    ),
    Setting("feeds.*.updated_field", kind.text, None, "The field of an item that says when it was last updated."),
    Setting("feeds.*.filters", kind.table, None, "Filters that are sent with every query."),
    Setting(
        "feeds.*.requests_per_second",
        kind.number(0, 100_000),
        25.0,
        "How fast the API may be asked; 0: as fast as it answers. [providers.nivoda] comes before it.",
    ),
    Setting(
        "feeds.*.watermark",
        kind.text,
        None,
        "Where the watermark is published: a file, or an address of s3, gs or az. Without it, it is not.",
        anchor=_below,
        examples={_EXAMPLE: "watermark.json"},
    ),
    Setting(
        "feeds.*.watermark_options",
        store_options,
        None,
        "How the store of the watermark is reached; its own tools' settings where it is not given.",
    ),
    Setting("feeds.*.paused", kind.flag, False, "Fetch nothing; what there is stays."),
    Setting("feeds.*.every", kind.span, None, "How often a run is started; either this or 'at'."),
    Setting(
        "feeds.*.at",
        kind.moments,
        None,
        'At which times of day; without both, at ["02:00"].',
        examples={_EXAMPLE: ["02:00"]},
    ),
    Setting(
        "feeds.*.time_zone",
        kind.zone,
        "UTC",
        "Where the times of day are read.",
        examples={_EXAMPLE: "Europe/Madrid"},
    ),
)


def gate_of(feed: str) -> str:
    """The door of a feed's calls."""
    return f"{PROVIDER}/{quote(feed, safe='')}"


def read_settings(config: Config) -> Settings:
    """What partitions are decided by."""
    return Settings(
        feeds={name: own["paused"] for name, own in config.section("feeds").items()},
        page_size=config["harvest.page_size"],
        extra_pages=config["harvest.extra_pages"],
        tolerance=config["harvest.tolerance"],
        rescans=config["harvest.rescans"],
    )


def read_rules(config: Config) -> Rules:
    """How runs are planned and split; the same for every feed."""
    limits = {
        run_type: Limits(
            config["harvest.target_records"], config["harvest.least_records"], config[f"harvest.{run_type}_workers"]
        )
        for run_type in RunType
    }
    return Rules(
        overlap=parse_span(config["harvest.overlap"]),
        full_every=parse_span(config["harvest.full_every"]),
        full=limits[RunType.FULL],
        incremental=limits[RunType.INCREMENTAL],
    )


def read_consolidation(config: Config) -> consolidate.Limits:
    """How raw rows are consolidated, and what stops it."""
    return consolidate.Limits(
        rows=config["harvest.chunk_rows"],
        rejected=config["harvest.most_rejected"],
        deleted=config["harvest.most_deleted"],
    )


def read_login(own: dict[str, Any]) -> tuple[Credentials, Api]:
    """How a feed is reached. Raises UsageError for an address or a field that cannot be one."""
    api = Api(
        url=own["url"],
        authentication=own["authentication"],
        token_life=parse_span(own["token_life"]),
        price_bounds=own["price_bounds"],
        updated_field=own["updated_field"],
    )
    return Credentials(own["username"], own["password"]), api


def providers(config: Config) -> list[GateLimits]:
    """The limits of feeds, where the configuration has none for their provider."""
    given = config.providers()
    return [
        GateLimits(gate_of(name), (Limit("requests", rate, max(rate, 1.0)),))
        for name, own in config.section("feeds").items()
        if (rate := own["requests_per_second"]) > 0 and limits_of(gate_of(name), given) is None
    ]


def schedules(config: Config) -> Sequence[Schedule]:
    """Two schedules for every feed: its runs (H15), and its prices. Raises ConfigError where one has two cadences."""
    found = []
    for name, own in sorted(config.section("feeds").items()):
        if own["every"] is not None and own["at"] is not None:
            msg = f"{config.path or 'the configuration'}: feeds.{name} has both 'every' and 'at'; give one of them"
            raise ConfigError(msg)
        at = own["at"] or (None if own["every"] else ["02:00"])
        found.append(
            Schedule(
                name=schedule_name(name),
                job=JOB,
                every=own["every"],
                at=at,
                time_zone=own["time_zone"],
                settings={"feed": name},
                settings_version="feed",
            )
        )
        found.append(
            Schedule(
                name=reprice.schedule_name(name),
                job=reprice.JOB,
                every="1m",
                settings={"feed": name},
                settings_version="feed",
            )
        )
    return found
