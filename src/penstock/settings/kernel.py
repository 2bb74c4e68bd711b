"""The kernel's own settings: the ledger, the worker, the log, the web, gates, schedules, pruning and landed data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import time, timedelta
from typing import Annotated, Any, Literal

from penstock.model.cadence import Cadence
from penstock.model.limits import GateLimits, Limit
from penstock.settings.alerts import AlertSettings
from penstock.settings.shapes import written
from penstock.settings.typed import Hours, LedgerAddress, Place, Secret, Settings, TimeZone, Url, says

_MANY = 100_000
_PORTS = 65_535
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_VIEW = re.compile(r"/(?:[^/\\\s][^\\\s]*)?")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_LIMITS = [[{"name": "requests", "rate": 2.0, "burst": 40}]]


class LedgerSettings(Settings):
    """`[ledger]`."""

    url: Annotated[LedgerAddress, says("Where the ledger is.", option="--ledger", variable="PENSTOCK_LEDGER")] = (
        LedgerAddress("sqlite:///penstock.db")
    )
    password: Annotated[
        Secret | None,
        says("The password of a PostgreSQL ledger; never part of its address.", examples=[{"env": "LEDGER_PASSWORD"}]),
    ] = None
    connections: Annotated[
        int,
        says("The most connections to PostgreSQL that one process opens; one of them is the lease's.", ge=2, le=1_000),
    ] = 6


class WorkerSection(Settings):
    """`[worker]`."""

    concurrency: Annotated[
        int,
        says(
            "How many steps run at once in one process.",
            ge=1,
            le=_MANY,
            option="--concurrency",
            variable="PENSTOCK_CONCURRENCY",
        ),
    ] = 1_000
    lease: Annotated[timedelta, says("How long a worker may be silent before others take over what it holds.")] = (
        timedelta(seconds=30)
    )
    renew: Annotated[timedelta, says("How often a worker renews its lease; at most half of it.")] = timedelta(
        seconds=10
    )
    stop_seconds: Annotated[
        float,
        says(
            "How long running steps may take to finish when the process stops or reads its configuration again.",
            ge=0,
            le=3_600,
        ),
    ] = 8.0

    def __post_init__(self) -> None:
        if self.renew * 2 > self.lease:
            raise ValueError("renew is more than half of lease; a renewal that fails must have time for a second try")


class LogSettings(Settings):
    """`[log]`."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        says("The least severe log line that is written.", option="--log-level", variable="PENSTOCK_LOG"),
    ] = "info"
    format: Annotated[
        Literal["auto", "json", "console"],
        says("JSON lines, or lines for people; auto is for people on a terminal and JSON elsewhere."),
    ] = "auto"


class WebSettings(Settings):
    """`[web]`."""

    enabled: Annotated[bool, says("Whether 'penstock up' serves the desk and the API; 'penstock web' always does.")] = (
        True
    )
    address: Annotated[
        str,
        says(
            "Where it is served, as HOST:PORT; port 0 is any free one. Other than loopback needs a token first.",
            option="--address",
            variable="PENSTOCK_WEB",
        ),
    ] = "127.0.0.1:8642"
    hosts: Annotated[
        tuple[str, ...],
        says("Names by which browsers call it, beside loopback's own.", examples=[["desk.example.com"]]),
    ] = ()
    root_path: Annotated[str | None, says("The path below which a proxy serves it.", examples=["/penstock"])] = None
    trusted_proxies: Annotated[
        tuple[str, ...],
        says("Addresses or networks whose X-Forwarded headers are believed.", examples=[["127.0.0.1", "10.0.0.0/8"]]),
    ] = ()
    require_token: Annotated[
        bool, says("Ask for a token on loopback too. Set it behind a proxy that is not among the trusted ones.")
    ] = False
    session_life: Annotated[timedelta, says("How long somebody who signed in with a browser stays signed in.")] = (
        timedelta(hours=12)
    )
    read_limit: Annotated[timedelta, says("How long an answer may take; then it is given up.")] = timedelta(seconds=30)
    views: Annotated[
        dict[str, str],
        says(
            "Pages by a name of your own, as the address after the host: they are in the menu.",
            examples=[{"Lost invoices": "/read/units?machine=invoice&status=FAILED"}],
        ),
    ] = {}

    def __post_init__(self) -> None:
        wrong = [
            *([] if _is_address(self.address) else [f'address: "{self.address}" must be HOST:PORT']),
            *(
                f'views: "{name}" must be a page of the desk, as "/read/units?machine=invoice"'
                for name, address in self.views.items()
                if not _VIEW.fullmatch(address)
            ),
            *(f'hosts: "{one}" must be a name, or NAME:PORT' for one in self.hosts if not _HOST.fullmatch(one)),
            *(
                []
                if self.root_path is None or _PATH.fullmatch(self.root_path)
                else [f'root_path: "{self.root_path}" must look like "/penstock"']
            ),
            *(
                f'trusted_proxies: "{one}" must be an address or a network, such as 10.0.0.0/8'
                for one in self.trusted_proxies
                if not _is_network(one)
            ),
        ]
        if wrong:
            raise ValueError("\n".join(wrong))


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(_HOST.fullmatch(host)) and port.isascii() and port.isdigit() and int(port) <= _PORTS


def _is_network(text: str) -> bool:
    from ipaddress import ip_network

    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


class AccountGateSettings(Settings):
    """`[gates.*.accounts.*]`: what is left out is the gate's."""

    limits: Annotated[
        tuple[Limit, ...] | None,
        says("How fast this account may be called, instead of its gate's limits.", filled=True, examples=_LIMITS),
    ] = None
    max_in_flight: Annotated[
        int | None, says("How many calls of this account may be under way at once.", ge=1, le=_MANY, examples=[2])
    ] = None

    def __post_init__(self) -> None:
        _refuse_repeated(self.limits or ())


class GateSettings(Settings):
    """`[gates.*]`: one provider, and its accounts where they have limits of their own."""

    limits: Annotated[
        tuple[Limit, ...],
        says("How fast each account behind the gate may be called; every limit holds.", examples=_LIMITS),
    ] = ()
    max_in_flight: Annotated[
        int | None,
        says("How many calls of each account may be under way at once.", ge=1, le=_MANY, examples=[10]),
    ] = None
    accounts: Annotated[
        dict[str, AccountGateSettings],
        says("Accounts with limits of their own, by name.", examples={"acme": {"max_in_flight": 2}}),
    ] = {}

    def __post_init__(self) -> None:
        _refuse_repeated(self.limits)


class ScheduleSettings(Settings):
    """`[schedules.*]`: a job and its cadence."""

    job: Annotated[str, says("What to run: a job of the kernel or of a lifecycle.", examples=["prune"])]
    every: Annotated[timedelta | None, says("How often, counted from midnight UTC; either this or 'at'.")] = None
    at: Annotated[
        tuple[time, ...] | None,
        says("At which times of day; either this or 'every'.", filled=True, examples=[["03:30"]]),
    ] = None
    time_zone: Annotated[TimeZone, says("The time zone of 'at' and 'hours'.")] = TimeZone("UTC")
    hours: Annotated[Hours | None, says("Only within these hours; for 'every'.")] = None
    jitter: Annotated[
        timedelta | None, says("A delay of up to this long, so that many schedules do not start together.")
    ] = None
    settings: Annotated[
        dict[str, Any] | None,
        says("Settings of the job; kept in the ledger, so never a secret.", examples=[{"days": 3}]),
    ] = None

    def __post_init__(self) -> None:
        Cadence.parse(**{name: value for name, value in self.texts().items() if name not in ("job", "settings")})

    def texts(self) -> dict[str, Any]:
        """The fields as a schedule's row has them: spans and times as texts, None where one was left out."""
        return dict.fromkeys(("job", "every", "at", "time_zone", "hours", "jitter", "settings")) | written(self)


class RawSettings(Settings):
    """`[raw]`."""

    url: Annotated[
        Place, says("Where landed data lies: a folder, or an address of file://, s3://, gs:// or az://.")
    ] = Place("raw")


class OtlpSettings(Settings):
    """`[otlp]`."""

    url: Annotated[
        Url | None, says("Where metrics and traces are sent, by OTLP over HTTP.", examples=["http://127.0.0.1:4318"])
    ] = None
    token: Annotated[Secret | None, says("The bearer's token.", examples=[{"env": "OTLP_TOKEN"}])] = None
    every: Annotated[timedelta, says("How often metrics are sent.", ge=timedelta(seconds=1))] = timedelta(seconds=30)
    trace_share: Annotated[float, says("Which share of the steps is traced; 1 is all of them.", ge=0, le=1)] = 0.0


class KernelSettings(Settings):
    """Everything in the file that belongs to no lifecycle."""

    lifecycles: Annotated[
        tuple[str, ...],
        says("Lifecycles of your own, as module:attribute.", examples=[["shop.contacts:lifecycle"]]),
    ] = ()
    ledger: Annotated[LedgerSettings, says("Where units and their history are kept.")] = LedgerSettings()
    worker: Annotated[WorkerSection, says("How a process works.")] = WorkerSection()
    log: Annotated[LogSettings, says("What a process logs.")] = LogSettings()
    raw: Annotated[RawSettings, says("Where landed data is kept.")] = RawSettings()
    web: Annotated[WebSettings, says("The desk and the API, for browsers and scripts.")] = WebSettings()
    alerts: Annotated[AlertSettings, says("When somebody should know, and who is told.")] = AlertSettings()
    otlp: Annotated[OtlpSettings, says("Metrics and traces, sent; they need penstock[otlp].")] = OtlpSettings()
    gates: Annotated[
        dict[str, GateSettings],
        says(
            "How providers may be called, by the name of their gate.",
            examples={"accounting": {"limits": _LIMITS[0], "max_in_flight": 10}},
        ),
    ] = {}
    schedules: Annotated[
        dict[str, ScheduleSettings],
        says(
            "Periodic jobs, by a name of your own.",
            examples={
                "nightly-prune": {"job": "prune", "at": ["03:30"], "time_zone": "Europe/Madrid"},
                "sweep": {"job": "sweep-stages", "every": "15m", "hours": "22:00-06:00", "jitter": "5m"},
            },
        ),
    ] = {}
    prune: Annotated[
        dict[str, Annotated[timedelta | None, says("How long they are kept.", never=True)]],
        says(
            "How long ended units are kept (units: of all machines, or a machine's name), rows of a log, or what is"
            " left of pruned units (keep_graves).",
            examples={"invoice": "90d"},
        ),
    ] = {}

    def __post_init__(self) -> None:
        wrong = [name for name in self.lifecycles if not names_a_place(name)]
        if wrong:
            form = 'must be module:attribute, as in "shop.contacts:lifecycle"'
            raise ValueError("\n".join(f'lifecycles: "{name}" {form}' for name in wrong))


def gate_limits(gates: Mapping[str, GateSettings]) -> tuple[GateLimits, ...]:
    """Every gate, and every account with limits of its own."""
    found = {}
    for name, gate in gates.items():
        found[name] = GateLimits(name, gate.limits, gate.max_in_flight)
        for account, own in gate.accounts.items():
            found[f"{name}/{account}"] = GateLimits(
                f"{name}/{account}",
                gate.limits if own.limits is None else own.limits,
                gate.max_in_flight if own.max_in_flight is None else own.max_in_flight,
            )
    return tuple(found[name] for name in sorted(found))


def _refuse_repeated(limits: tuple[Limit, ...]) -> None:
    names = [limit.name for limit in limits]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"limits: {', '.join(repeated)} is there twice; each limit needs a name of its own")


def names_a_place(text: str) -> bool:
    """Whether it has the form `module:attribute`."""
    module, colon, attribute = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))
