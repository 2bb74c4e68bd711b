"""The simulators that `penstock simulator` can serve: what each is, what can be set, and what can go wrong.

A row says which lines of `penstock.toml` point at the simulator. What a simulator needs is imported when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.model.clock import Clock, Rng
from penstock.model.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from penstock.simulators.amazon_ads import AmazonAdsSimulator, Fate

_FAULT_FORM = "OPERATION=FAULT, or OPERATION=FAULT:N for every Nth call"

_GAQL = "SELECT campaign.id, metrics.clicks, segments.date FROM campaign WHERE segments.date = '{date}'"


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that can be set; its type is the default's."""

    name: str
    default: int | float
    says: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault that was asked for: once, at the next call, or at every Nth call."""

    operation: str
    fault: str
    every: int | None = None

    @property
    def name(self) -> str:
        return f"{self.operation}={self.fault}"


@dataclass(frozen=True, slots=True)
class Served:
    """A simulator that was made. `lines` are the configuration for its address, `secrets` what they refer to."""

    application: ASGIApp
    lines: Callable[[str], Iterator[str]]
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Simulator:
    """One row of the catalogue. `faults` maps `operation=fault` to what happens then."""

    name: str
    says: str
    make: Callable[[Clock, Mapping[str, Any], Sequence[Trouble]], Served]
    options: Sequence[Option] = ()
    faults: Mapping[str, str] = field(default_factory=dict)

    def trouble(self, text: str) -> Trouble:
        """Read `page=throttle:10`. Raises UsageError with the faults that exist."""
        name, colon, number = text.partition(":")
        if name not in self.faults:
            known = ", ".join(self.faults) or "none"
            raise UsageError(f"{self.name} has no fault {name!r}; write {_FAULT_FORM}: {known}")
        if colon and not (number.isascii() and number.isdigit() and int(number) > 0):
            raise UsageError(f"{text!r}: after the colon comes a whole number above 0, as in {name}:10")
        operation, _, fault = name.partition("=")
        return Trouble(operation, fault, int(number) if colon else None)


def _amazon_ads(clock: Clock, options: Mapping[str, Any], troubles: Sequence[Trouble]) -> Served:
    from penstock.simulators.amazon_ads import AmazonAdsSimulator, Fate, Fault, throttle
    from penstock.simulators.amazon_data import Performance

    half = timedelta(seconds=options["report_seconds"] / 2)
    performance = Performance(options["seed"], options["rows"])
    simulator = AmazonAdsSimulator(clock, performance, fate=Fate(half, half))
    expired = "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
    faults = {
        "throttle": throttle("1"),
        "fail": Fault(500, {"code": "500", "detail": "Internal Server Error"}),
        "lose": Fault(504, {"code": "504", "detail": "Gateway Timeout"}, accept=True),
        "cut": Fault(cut=True),
        "expire": Fault(403, expired),
    }
    failed = Fate(half, half, "FAILED", "INTERNAL_ERROR")
    for trouble in troubles:
        if trouble.operation == "report":
            _arrange_report(simulator, trouble, failed)
        else:
            _arrange(simulator, trouble, faults[trouble.fault])

    def lines(address: str) -> Iterator[str]:
        yield "[reports]"
        yield f'client_id = "{simulator.client_id}"'
        yield 'client_secret = { env = "AMAZON_ADS_CLIENT_SECRET" }'
        yield 'refresh_token = { env = "AMAZON_ADS_REFRESH_TOKEN" }'
        yield f'private_downloads = ["{urlsplit(address).netloc}"]\npoll = "10s"\nhourly_offsets = []'
        for name, profile in zip(("acme", "globex"), sorted(simulator.profiles), strict=True):
            yield f"\n[reports.accounts.{name}]"
            yield f'profile_id = "{profile}"\ntime_zone = "Europe/Madrid"'
            yield f'api_url = "{address}"\ntoken_url = "{address}/auth/o2/token"'

    secrets = {
        "AMAZON_ADS_CLIENT_SECRET": simulator.client_secret,
        "AMAZON_ADS_REFRESH_TOKEN": min(simulator.refresh_tokens),
    }
    return Served(simulator, lines, secrets)


def _google_ads(clock: Clock, options: Mapping[str, Any], troubles: Sequence[Trouble]) -> Served:
    from penstock.simulators.google_ads import Fault, GoogleAdsSimulator, failure, quota
    from penstock.simulators.google_data import Campaigns

    simulator = GoogleAdsSimulator(clock, Campaigns(seed=options["seed"]))
    simulator.daily_operations = options["daily_operations"] or None
    faults = {
        "throttle": quota(1),
        "fail": Fault(500, failure(500, "internalError", "INTERNAL_ERROR", "An internal error has occurred.")),
        "cut": Fault(cut=200),
    }
    for trouble in troubles:
        _arrange(simulator, trouble, faults[trouble.fault])

    def lines(address: str) -> Iterator[str]:
        customers = ", ".join(f'"{customer}"' for customer in sorted(simulator.customers))
        zones = ", ".join(f'"{customer}" = "Europe/Madrid"' for customer in sorted(simulator.customers))
        yield "[partitions.google_ads]"
        yield f'client_id = "{simulator.client_id}"'
        yield 'client_secret = { env = "GOOGLE_ADS_CLIENT_SECRET" }'
        yield 'refresh_token = { env = "GOOGLE_ADS_REFRESH_TOKEN" }'
        yield f'api_url = "{address}"\ntoken_url = "{address}/token"'
        yield "\n[partitions.sources.google_ads]"
        yield f"customers = [{customers}]\ntime_zones = {{ {zones} }}"
        yield "\n[partitions.sources.google_ads.queries.campaign_daily]"
        yield f'gaql = "{_GAQL}"'
        yield 'fields = { "campaign.id" = "whole", "metrics.clicks" = "whole", "segments.date" = "date" }'
        yield 'schema_version = "1"\nunique = ["campaign.id"]\ndate_field = "segments.date"'

    secrets = {
        "GOOGLE_ADS_CLIENT_SECRET": simulator.client_secret,
        "GOOGLE_ADS_REFRESH_TOKEN": min(simulator.refresh_tokens),
    }
    return Served(simulator, lines, secrets)


def _google_sheets(clock: Clock, options: Mapping[str, Any], troubles: Sequence[Trouble]) -> Served:
    from penstock.simulators.google_sheets import LOST, SPREADSHEET, Fault, GoogleSheetsSimulator, quota

    simulator = GoogleSheetsSimulator(clock, per_minute=options["per_minute"] or None, latency=options["latency"])
    faults = {
        "throttle": quota(retry_after="1"),
        "fail": Fault(500),
        "cut": Fault(cut=True),
        "lose": LOST,
        "fail_late": Fault(500, carried_out=True),
    }
    for trouble in troubles:
        _arrange(simulator, trouble, faults[trouble.fault])
    secrets: dict[str, str] = {}

    def lines(address: str) -> Iterator[str]:
        secrets["GOOGLE_SHEETS_KEY"] = simulator.key(address)  # which names the address
        yield f'[queries.sheet]\nspreadsheet_id = "{SPREADSHEET}"\nurl = "{address}"'
        yield 'credentials = { env = "GOOGLE_SHEETS_KEY" }\nhours = "00:00-23:59"\nevery = "1m"'

    return Served(simulator, lines, secrets)


def _nivoda(clock: Clock, options: Mapping[str, Any], troubles: Sequence[Trouble]) -> Served:
    from penstock.simulators.nivoda import PATH, Churn, Fault, NivodaSimulator, errors, throttle
    from penstock.simulators.nivoda_data import Catalogue

    stones = Catalogue(options["stones"], clock.now(), seed=options["seed"], bad=options["bad"])
    simulator = NivodaSimulator(clock, stones, latency=options["latency"])
    simulator.churn = Churn(pages=options["churn"]) if options["churn"] else None
    faults = {
        "throttle": throttle("1"),
        "fail": Fault(502, b"Bad Gateway"),
        "error": errors("Internal server error", "INTERNAL_SERVER_ERROR"),
        "cut": Fault(cut=True),
    }
    for trouble in troubles:
        _arrange(simulator, trouble, faults[trouble.fault])

    def lines(address: str) -> Iterator[str]:
        yield "[harvest]\n\n[harvest.feeds.nivoda]"
        yield f'url = "{address}{PATH}"\nusername = "{simulator.username}"'
        yield 'password = { env = "NIVODA_PASSWORD" }\nevery = "10m"'

    return Served(simulator, lines, {"NIVODA_PASSWORD": simulator.password})


def _infojobs(clock: Clock, options: Mapping[str, Any], troubles: Sequence[Trouble]) -> Served:
    from penstock.simulators.infojobs import HTML, Fault, InfoJobsSimulator, throttle
    from penstock.simulators.infojobs_data import Market

    history = timedelta(days=options["history"])
    market = Market(clock.now(), seed=options["seed"], history=history, rate=options["rate"], bad=options["bad"])
    simulator = InfoJobsSimulator(clock, market, most_pages=options["most_pages"] or None, latency=options["latency"])
    faults = {
        "throttle": throttle("1"),
        "fail": Fault(500, {"error_description": "Error processing API call", "status": 500}),
        "cut": Fault(cut=True),
        "html": HTML,
        "spoil": Fault(spoils="no_id"),
        "repeat": Fault(repeats=True),
    }
    for trouble in troubles:
        _arrange(simulator, trouble, faults[trouble.fault])

    def lines(address: str) -> Iterator[str]:
        yield f'[queries.infojobs.infojobs]\nurl = "{address}"\nclient_id = "{simulator.client_id}"'
        yield 'client_secret = { env = "INFOJOBS_CLIENT_SECRET" }'
        for name, topic in (("python", "python"), ("camarero-madrid", "camarero")):
            place = ', province = ["Madrid"]' if name != topic else ""
            yield f'\n[queries.queries.{name}]\nclient = "infojobs"\nparameters = {{ q = "{topic}"{place} }}'

    return Served(simulator, lines, {"INFOJOBS_CLIENT_SECRET": simulator.client_secret})


def _invoices(clock: Clock, options: Mapping[str, Any], troubles: Sequence[Trouble]) -> Served:  # noqa: ARG001 - one shape
    from penstock.examples.invoice_server import InvoiceServer

    def lines(address: str) -> Iterator[str]:
        yield 'lifecycles = ["penstock.examples.invoices:lifecycle"]'
        yield f'\n[invoices]\napi_url = "{address}"'

    return Served(InvoiceServer(Rng(options["seed"]), trouble=options["trouble"]), lines)


def _shopify(clock: Clock, options: Mapping[str, Any], troubles: Sequence[Trouble]) -> Served:
    from penstock.simulators.shopify import ShopifySimulator
    from penstock.simulators.shopify_data import Bucket, Store
    from penstock.simulators.shopify_documents import CURRENCY
    from penstock.simulators.shopify_faults import LOST, Fault, errors
    from penstock.simulators.shopify_process import Controlled

    store = Store(options["products"], clock.now(), variants=options["variants"], seed=options["seed"])
    simulator = ShopifySimulator(clock, store, Bucket(clock, options["burst"], options["rate"]), seed=options["seed"])
    simulator.latency, simulator.edits = options["latency"], options["edits"]
    simulator.admin.refuses = options["refuses"]
    if options["lost"]:
        simulator.chances["update"] = (options["lost"], LOST)
    faults = {
        "throttle": errors("Throttled", "THROTTLED"),
        "throttle429": Fault(429, {"errors": "Throttled"}, (("retry-after", "1.0"),)),
        "fail": Fault(502, b"Bad Gateway"),
        "error": errors("Internal error. Looks like something went wrong on our end.", "INTERNAL_SERVER_ERROR"),
        "cut": Fault(cut=True),
        "lose": LOST,
        "fail_late": Fault(502, b"Bad Gateway", carried_out=True),
    }
    for trouble in troubles:
        _arrange(simulator, trouble, faults[trouble.fault])

    def lines(address: str) -> Iterator[str]:
        yield f'[rules]\nprivate_downloads = ["{urlsplit(address).netloc}"]'
        yield f'\n[rules.accounts.shop]\nconnector = "shopify"\nshop_url = "{address}"'
        yield f'client_id = "{simulator.client_id}"'
        yield 'client_secret = { env = "SHOPIFY_CLIENT_SECRET" }'
        yield "# Or with an admin token, in place of the client:"
        yield '# token = { env = "SHOPIFY_TOKEN" }'
        yield f'\n[rules.rules.tenth]\naccount = "shop"\ncurrency = "{CURRENCY}"'
        yield 'selector = { everything = true }\ntransform = { percent = "-10" }\nrounding = { ending = ".99" }'

    secrets = {"SHOPIFY_CLIENT_SECRET": simulator.client_secret, "SHOPIFY_TOKEN": simulator.admin_token}
    return Served(Controlled(simulator), lines, secrets)


def _paged(clock: Clock, options: Mapping[str, Any], troubles: Sequence[Trouble]) -> Served:
    from penstock.simulators.paged import Churn, Fault, PagedSimulator, throttle
    from penstock.simulators.paged_data import Listing

    listing = Listing(options["records"], clock.now(), seed=options["seed"], bad=options["bad"])
    simulator = PagedSimulator(clock, listing, auth="oauth", latency=options["latency"])
    if options["churn"]:
        simulator.churn = Churn(options["churn"])
    faults = {
        "throttle": throttle("1"),
        "throttle_silent": throttle(),
        "fail": Fault(500, {"message": "Internal Server Error"}),
        "cut": Fault(cut=True),
        **{name: Fault(twist=name) for name in ("broken", "nothing", "repeat", "foreign")},
    }
    for trouble in troubles:
        _arrange(simulator, trouble, faults[trouble.fault])

    def lines(address: str) -> Iterator[str]:
        paging = {
            "page": '{ size = 100, size_parameter = "per_page" }',
            "offset": '{ size = 100, size_parameter = "limit" }',
            "cursor": '{ next = "meta.next_cursor" }',
            "link": "{}",
        }
        yield "[queries]"
        for style, described in paging.items():
            yield f'\n[queries.rest_json.by_{style}]\nurl = "{address}"\npath = "/{style}"'
            yield f'auth.oauth.token_url = "{address}/token"\nauth.oauth.client_id = "{simulator.client_id}"'
            yield 'auth.oauth.secret = { env = "PAGED_CLIENT_SECRET" }'
            yield f"paging.{style} = {described}"
            if style != "link":
                yield 'records = "data.items"\ntotal = "meta.total"'
            yield 'order = "newest_first"\ndate = "updated_at"\nsince = { parameter = "since" }'
            if style == "link":
                yield 'table = "simulated_offers"\nfields.title = { path = "title" }'
                yield 'fields.pay = { path = "pay.min", type = "integer" }'
                yield 'fields.tags = { path = "tags", type = "json" }'
            else:
                yield 'offer = { title = "title", company = "company.name", city = "places.0.city", url = "link" }'
            yield f'\n[queries.queries.{style}]\nclient = "by_{style}"'
            yield 'parameters = { category = ["python", "java"] }'

    return Served(simulator, lines, {"PAGED_CLIENT_SECRET": simulator.key})


def _arrange_report(simulator: AmazonAdsSimulator, trouble: Trouble, fate: Fate) -> None:
    if trouble.every is None:
        simulator.fates.append(fate)
    else:
        simulator.fate_every[trouble.every] = fate


def _arrange(simulator: Any, trouble: Trouble, fault: Any) -> None:
    if trouble.every is None:
        simulator.faults[trouble.operation].append(fault)
    else:
        simulator.every[trouble.operation, trouble.every] = fault


def _each(operations: str, faults: Mapping[str, str]) -> dict[str, str]:
    return {f"{operation}={name}": says for operation in operations.split() for name, says in faults.items()}


_SEED = Option("seed", 7, "The random seed; another one gives other data.")
_THROTTLED = "429, with Retry-After of one second"
_CUT = "the connection breaks in the middle of the answer"

SIMULATORS = {
    simulator.name: simulator
    for simulator in (
        Simulator(
            "amazon_ads",
            "Amazon Ads, for reports: login, reports and their storage.",
            _amazon_ads,
            (
                _SEED,
                Option("rows", 20, "Rows in each report."),
                Option("report_seconds", 10, "How long a report takes to be ready."),
            ),
            {
                **_each("token create status cancel download", {"throttle": _THROTTLED, "fail": "500", "cut": _CUT}),
                "create=lose": "the report is made, and the answer is a 504",
                "download=expire": "the link has expired",
                "report=fail": "the report ends as FAILED",
            },
        ),
        Simulator(
            "google_ads",
            "Google Ads, for partitions: tokens and queries of campaigns.",
            _google_ads,
            (_SEED, Option("daily_operations", 0, "Queries a day before the quota is spent; 0: any number.")),
            _each(
                "token search_stream search",
                {"throttle": "429, with a retry delay of one second", "fail": "500", "cut": _CUT},
            ),
        ),
        Simulator(
            "infojobs",
            "InfoJobs, for queries: job offers that come, are bumped and go.",
            _infojobs,
            (
                _SEED,
                Option("history", 120, "How many days of offers there were before it is started."),
                Option("rate", 1.0, "How many offers come, as a factor; 1: some 5 to 40 a day for each topic."),
                Option("bad", 0.0, "The share of offers with something wrong in them, from 0 to 1."),
                Option("most_pages", 114, "How many pages are given at most; 0: all."),
                Option("latency", 0.0, "Seconds before each answer."),
            ),
            _each(
                "offers",
                {
                    "throttle": _THROTTLED,
                    "fail": "500",
                    "cut": _CUT,
                    "html": "a page about maintenance, under HTTP 200",
                    "spoil": "every third offer has no id",
                    "repeat": "whatever page is asked for, it is the first",
                },
            ),
        ),
        Simulator(
            "google_sheets",
            "Google Sheets, for queries: a spreadsheet and its quotas.",
            _google_sheets,
            (
                Option("per_minute", 60, "Reads, and writes, in a minute before the quota is spent; 0: any number."),
                Option("latency", 0.0, "Seconds before each answer."),
            ),
            {
                **_each(
                    "token tabs read write change",
                    {"throttle": _THROTTLED, "fail": "500, and nothing is done", "cut": _CUT},
                ),
                **_each(
                    "write change",
                    {
                        "lose": "it is done, and the connection breaks",
                        "fail_late": "it is done, and the answer is a 500",
                    },
                ),
            },
        ),
        Simulator(
            "invoices",
            "The example's accounting API, which fails now and then.",
            _invoices,
            (_SEED, Option("trouble", 0.3, "The share of calls that fail in some way, from 0 to 1.")),
        ),
        Simulator(
            "nivoda",
            "Nivoda, for harvest: login and a catalogue of stones.",
            _nivoda,
            (
                _SEED,
                Option("stones", 10_000, "How many stones there are."),
                Option("bad", 0.0, "The share of records with something wrong in them, from 0 to 1."),
                Option("latency", 0.0, "Seconds before each answer."),
                Option("churn", 0, "Change the catalogue after every N pages; 0: never."),
            ),
            _each(
                "authenticate count page",
                {"throttle": _THROTTLED, "fail": "502", "error": "an error of GraphQL, under HTTP 200", "cut": _CUT},
            ),
        ),
        Simulator(
            "paged",
            "A JSON API, for queries: job offers, in every way of paging.",
            _paged,
            (
                _SEED,
                Option("records", 1_000, "How many offers there are."),
                Option("bad", 0.0, "The share of records with something wrong in them, from 0 to 1."),
                Option("latency", 0.0, "Seconds before each answer."),
                Option("churn", 0, "Change the list after every N pages; 0: never."),
            ),
            {
                **_each("list token", {"throttle": _THROTTLED, "fail": "500", "cut": _CUT}),
                "list=throttle_silent": "429, without Retry-After",
                "list=broken": "JSON that breaks off",
                "list=nothing": "no records, and no next page",
                "list=repeat": "the first page again, whatever was asked",
                "list=foreign": "a link to another host",
            },
        ),
        Simulator(
            "shopify",
            "Shopify, for rules: a store's prices, and its bucket of points.",
            _shopify,
            (
                _SEED,
                Option("products", 100, "How many products there are."),
                Option("variants", 4, "How many variants each has."),
                Option("burst", 2_000.0, "How many points the bucket holds."),
                Option("rate", 100.0, "How many points come back each second."),
                Option("latency", 0.0, "Seconds before each answer."),
                Option("lost", 0.0, "The share of mutations whose answer is lost, from 0 to 1."),
                Option("edits", 0.0, "The share of calls after which somebody edits a price."),
                Option("refuses", 0.0, "The share of changes that are refused, from 0 to 1."),
            ),
            {
                **_each(
                    "shop page read update bulk bulk_status",
                    {
                        "throttle": "THROTTLED, under HTTP 200",
                        "throttle429": _THROTTLED,
                        "fail": "502, and nothing is done",
                        "error": "an error of GraphQL, under HTTP 200",
                        "cut": _CUT,
                    },
                ),
                **_each("token download", {"fail": "502", "cut": _CUT}),
                "update=lose": "prices are set, and the connection breaks",
                "update=fail_late": "prices are set, and the answer is a 502",
            },
        ),
    )
}
