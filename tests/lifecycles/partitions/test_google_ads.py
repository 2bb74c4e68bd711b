"""The source `google_ads`, from a configuration to a safe partition, against Google's simulator."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.google_ads.client import GoogleAds, Query
from penstock.connectors.google_ads.endpoint import Endpoint
from penstock.connectors.http.in_process import InProcess
from penstock.ledger.gates.status import gate_statuses
from penstock.lifecycles.partitions.google_ads import GoogleAdsExtractor, make_extractors, project_gate
from penstock.lifecycles.partitions.jobs import ENUMERATE
from penstock.lifecycles.partitions.machine import P, X, wanted_unit
from penstock.lifecycles.partitions.settings import PartitionSettings, SourceQuery
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor
from penstock.raw.paths import PartitionKey
from penstock.settings.file import load
from penstock.settings.typed import ConfigError
from penstock.simulators.google_ads import Fault, GoogleAdsSimulator, failure, quota
from penstock.simulators.google_data import Campaigns, Gaql
from penstock.simulators.server import in_thread
from penstock.worker.schedule import Schedules, keep_schedules
from penstock.worker.schedule_unit import Schedule
from tests.support.ad_source import CUSTOMERS
from tests.support.google import DAILY, secrets
from tests.support.partitions import KEY, Partitions

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "connectors.md").read_text()
FIELDS = {"campaign.id": "whole", "metrics.clicks": "whole", "metrics.conversions": "number", "segments.date": "date"}
SCHEMA = SourceQuery(schema_version="1", fields=FIELDS, unique=("campaign.id",), date_field="segments.date")
CONFIG = """
[partitions.google_ads]
client_id = "simulated.apps.googleusercontent.com"
client_secret = { file = "client" }
refresh_token = { file = "refresh" }
api_url = "ADDRESS"
token_url = "ADDRESS/token"

[partitions.sources.google_ads]
customers = ["111-111-1111"]
time_zone = "UTC"

[partitions.sources.google_ads.queries.campaign_daily]
gaql = "GAQL"
schema_version = "1"
fields = { "campaign.id" = "whole" }
""".replace("GAQL", DAILY)


OTHER = dataclasses.replace(KEY, customer_id="2222222222")
PROJECT = "google_ads/project-simulated.apps.googleusercontent.com"


def want(world: Partitions, key: PartitionKey = KEY) -> None:
    world.ledger.birth([wanted_unit(key, world.ledger.clock.now())], actor=Actor.SCHEDULER, who="test")


@contextlib.contextmanager
def site(url: str, folder: Path, zones: dict[str, str], **source: Any) -> Iterator[Any]:
    """A ledger, a simulator in the same process on the same clock, and the flow between them."""
    world = Partitions(url, folder, queries={"campaign_daily": SCHEMA}, time_zones=zones, **source)
    simulator = GoogleAdsSimulator(world.time, Campaigns(time_zones=zones), batch_rows=2)
    credentials = secrets(folder, simulator)

    def work(*more: Any, seconds: float = 60) -> None:
        ads = GoogleAds(
            credentials,
            world.time,
            endpoint=Endpoint("http://google.sim", "http://google.sim/token"),
            transport=InProcess(simulator),
        )
        query = Query("campaign_daily", DAILY, "1", FIELDS)
        world.work(world.flow(GoogleAdsExtractor(ads, {query.name: query})), *more, seconds=seconds)

    with contextlib.closing(world):
        yield world, simulator, work


@pytest.fixture
def google(partitions_url, tmp_path) -> Any:
    """One that wants a partition."""
    with site(partitions_url, tmp_path, dict.fromkeys(CUSTOMERS, "UTC")) as made:
        want(made[0])
        yield made


def test_the_answer_to_a_query_becomes_a_safe_partition(google):
    world, simulator, work = google
    work()
    state = world.state()
    assert state is not None
    assert (state.status, state.record_count) == (P.SUCCESS, 5)
    opened = world.reader.open(KEY)
    rows = list(opened.rows())
    assert [row["campaign"]["id"] for row in rows] == [10**10 + n for n in range(5)]
    assert {row["segments"]["date"] for row in rows} == {KEY.logical_date.isoformat()}
    facts = world.sink.open_partition(KEY, str(state.current_run_id)).metadata.facts
    assert facts == {"gaql": DAILY.replace("{date}", "2026-11-01"), "api_version": "v26"}
    assert len(simulator.calls("search_stream")) == 1


def test_a_day_of_los_angeles_is_landed_whole_and_restated_conversions_follow(partitions_url, tmp_path):
    """At 00:00 UTC the simulator knows two thirds of the day; at T+3d it knows all conversions."""
    key = dataclasses.replace(KEY, logical_date=date(2026, 11, 2))
    gaql = Gaql.parse(DAILY.replace("{date}", "2026-11-02"))

    def clicks(rows: Any) -> list[int]:
        return [int(row["metrics"]["clicks"]) for row in rows]

    with site(partitions_url, tmp_path, {KEY.customer_id: "America/Los_Angeles"}, days=1) as (world, simulator, work):
        keep_schedules(world.ledger, [Schedule(name="daily", job=ENUMERATE, every="6h")], "test")
        for _ in range(17):
            work(Schedules(world.program.jobs()), seconds=5)
            world.time.advance(6 * 3_600 - 5)
        known = clicks(simulator.campaigns.rows(key.customer_id, gaql, world.time.now()))
        early = clicks(simulator.campaigns.rows(key.customer_id, gaql, datetime(2026, 11, 3, tzinfo=UTC)))
        runs = world.sink.runs(key)
        assert [run_id[:13] for run_id in runs] == ["2026-11-03T12", "2026-11-05T12"], "T+1d, and T+3d"
        assert clicks(world.sink.open_partition(key, runs[0]).rows()) == known != early
        assert [(c.offset, c.compared, c.changed) for c in world.cadence()] == [
            ("T+1d", 0, 0),
            ("T+3d", 3, 3),
        ]


def test_a_quota_of_eleven_hours_closes_the_gate_and_is_not_asked_again_before(google):
    world, simulator, work = google
    simulator.faults["search_stream"].append(quota(40_591))
    work()
    until = world.extraction().due_at
    world.time.advance(40_400)
    work()
    unit = world.extraction()
    assert (unit.status, unit.attempts, unit.due_at) == (X.EXTRACTING, 0, until)
    assert len(simulator.calls("search_stream")) == 1
    world.time.advance(3_600)
    work()
    assert world.extraction().status is X.DONE
    assert len(simulator.calls("search_stream")) == 2


@pytest.mark.parametrize("cut", [0, 500])
def test_a_stream_that_breaks_off_lands_nothing_and_is_asked_again(google, cut):
    world, simulator, work = google
    simulator.compress = False
    simulator.faults["search_stream"].append(Fault(cut=cut, quiet=True))
    work()
    state = world.state()
    assert state is not None
    assert (state.status, state.record_count, state.attempt_count) == (P.SUCCESS, 5, 1)
    assert len(simulator.calls("search_stream")) == 2
    assert len(world.sink.runs(KEY)) == 1


def test_a_query_that_google_refuses_is_a_dead_letter_with_its_words(google):
    world, simulator, work = google
    refused = failure(400, "queryError", "UNRECOGNIZED_FIELD", "Unrecognized field in the query: 'campaign.x'.")
    simulator.faults["search_stream"].append(Fault(400, refused))
    work()
    assert world.extraction().status is X.FAILED
    assert "Unrecognized field in the query: 'campaign.x'" in world.history("extraction")[-1][3]
    assert world.state() is None
    assert len(simulator.calls("search_stream")) == 1


def closed(world: Partitions) -> set[str]:
    """The gates through which nobody passes now."""
    found = world.ledger.read(lambda cursor: gate_statuses(world.ledger.database, cursor))
    return {gate.gate_id for gate in found if gate.state not in ("open", "half-open")}


def test_a_spent_quota_of_the_project_is_everybodys(google):
    """It is asked once, by the first, and not by the others: an operation is spent on every refusal."""
    world, simulator, work = google
    simulator.faults["search_stream"].extend([quota(40_591), quota(40_591)])
    work()
    want(world, OTHER)
    work()
    assert len(simulator.calls("search_stream")) == 1
    assert closed(world) == {PROJECT}
    assert [world.extraction(key).status for key in (KEY, OTHER)] == [X.EXTRACTING, X.EXTRACTING]
    simulator.faults["search_stream"].clear()
    world.time.advance(40_700)
    work(seconds=300)
    assert [world.extraction(key).status for key in (KEY, OTHER)] == [X.DONE, X.DONE]


@pytest.mark.parametrize(
    ("fault", "alerts"),
    [
        (quota(40_591, scope="ACCOUNT"), 0),
        (Fault(403, failure(403, "authorizationError", "USER_PERMISSION_DENIED", "User has no access.")), 1),
        (Fault(401, failure(401, "authenticationError", "CUSTOMER_NOT_FOUND", "No customer found.")), 1),
    ],
)
def test_what_concerns_one_customer_closes_its_gate_alone(google, fault, alerts):
    world, simulator, work = google
    simulator.faults["search_stream"].extend([fault] * (2 if fault.status == 401 else 1))
    work()
    want(world, OTHER)
    work()
    assert closed(world) == {f"google_ads/{KEY.customer_id}"}
    assert [world.extraction(key).status for key in (KEY, OTHER)] == [X.WANTED, X.DONE]
    assert len(world.alerts()) == alerts


@pytest.mark.parametrize(
    ("client", "gate"),
    [
        ("123456-abc.apps.googleusercontent.com", "google_ads/project-123456"),
        ("123456.apps.googleusercontent.com", "google_ads/project-123456"),
        ("our/own", "google_ads/project-our%2Fown"),
    ],
)
def test_clients_of_one_project_share_a_gate(client, gate):
    assert project_gate(client) == gate


def test_revoked_credentials_stop_the_login_with_one_alert(google):
    """However many customers it opens; nothing is asked while it is stopped."""
    world, simulator, work = google
    want(world, OTHER)
    simulator.refresh_tokens.clear()
    work(seconds=300)
    assert {world.extraction(key).status for key in (KEY, OTHER)} <= {X.WANTED, X.EXTRACTING}
    assert world.state() is None
    assert closed(world) == {PROJECT}
    assert len(world.alerts()) == 1
    assert len(simulator.calls("token")) == 1
    assert not simulator.calls("search_stream")
    simulator.refresh_tokens.add("1//simulated-refresh-token")
    world.ledger.gates.resume(PROJECT, who="anna")
    work(seconds=120)
    assert [world.extraction(key).status for key in (KEY, OTHER)] == [X.DONE, X.DONE]


def configured(folder: Path, text: str, address: str = "http://127.0.0.1:9") -> PartitionSettings:
    path = folder / "penstock.toml"
    path.write_text(text.replace("ADDRESS", address))
    found = load(path, {"partitions": PartitionSettings}).sections["partitions"]
    assert isinstance(found, PartitionSettings)
    return found


def test_a_configuration_is_all_that_it_takes(tmp_path, partitions_url):
    world = Partitions(partitions_url, tmp_path, real=True, queries={"campaign_daily": SCHEMA})
    simulator = GoogleAdsSimulator(world.ledger.clock, Campaigns(campaigns=50), batch_rows=7)
    secrets(tmp_path, simulator)
    want(world)
    with in_thread(simulator) as address:
        extractor = make_extractors(configured(tmp_path, CONFIG, address), world.ledger.clock)["google_ads"]
        world.work_until(world.state, world.flow(extractor))
    state = world.state()
    assert state is not None
    assert (state.status, state.record_count) == (P.SUCCESS, 50)
    world.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("client_secret = { file", "# { file"), "the source google_ads needs client_secret; set it in"),
        (("gaql = ", "# "), "campaign_daily.gaql is missing"),
        (('gaql = "SELECT', 'gaql = "DELETE'), "campaign_daily.gaql: query campaign_daily is not GAQL"),
        (("'{date}'", "'{day}'"), "has a brace"),
        (("api_url", 'version = "26"\napi_url'), "a version of the API"),
        (("api_url", "version = 26\napi_url"), "a version of the API"),
        (("api_url", 'login_customer_id = "x"\napi_url'), "a customer id"),
        (('{ file = "client" }', '"plain"'), "never the secret itself"),
    ],
)
def test_what_a_configuration_lacks_is_told(tmp_path, change, said):
    text = CONFIG.replace(*change)
    assert text != CONFIG
    with pytest.raises(ConfigError, match=said):
        make_extractors(configured(tmp_path, text), SystemClock())


def test_without_the_source_nothing_is_needed(tmp_path):
    assert make_extractors(configured(tmp_path, "[partitions]"), SystemClock()) == {}


def test_the_documentation_has_an_example_that_works(tmp_path):
    (example,) = [
        text for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "[partitions.google_ads]" in text
    ]
    assert set(make_extractors(configured(tmp_path, example), SystemClock())) == {"google_ads"}
