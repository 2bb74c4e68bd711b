"""The OpenAPI document, and what schemathesis finds when it believes it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import hypothesis
import hypothesis.errors
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from penstock.api.app import make_application
from penstock.api.desk import Desk
from penstock.api.openapi import document
from penstock.api.routes import PREFIX, places
from penstock.api.serve import bind, bound_to, serving
from penstock.app.app import App
from penstock.app.shipped import SHIPPED, shipped
from penstock.ledger.ledger import Ledger
from penstock.model.clock import VirtualClock
from penstock.operations.declare import Reading
from penstock.settings.kernel import WebSettings
from tests.api.test_access import create
from tests.support.web import Client, Site, program, site

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
REAL = {
    "unit": "order:acme/4",
    "units": ["order:acme/4"],
    "machine": "order",
    "unit_id": "acme/4",
    "after": "order:acme/4",
}
"""What is there: with made-up ids, one would see little but 404."""


def test_the_document_is_served_and_covers_every_declaration(still_client: Client):
    whole = document(App(*map(shipped, SHIPPED)))
    wanted = set()
    for place in places(App(*map(shipped, SHIPPED))):
        ends = [""] if isinstance(place.declared, Reading) else ["/preview", "/apply"]
        wanted |= {f"{place.path}{end}" for end in ends}
    units = {"/units/{machine}/{unit_id}", "/units/{machine}/{unit_id}/history", "/units/{machine}/{unit_id}/why"}
    assert set(whole["paths"]) == wanted | units
    names = [one["operationId"] for path in whole["paths"].values() for one in path.values()]
    assert len(names) == len(set(names))
    served = still_client.get(f"{PREFIX}/openapi.json").json
    assert served["openapi"] == "3.1.0"
    assert "/shop/reset/apply" in served["paths"]


def test_every_route_is_in_the_document(still_site: Site):
    routes = [route.path for route in still_site.application().routes if isinstance(route, Route)]
    ours = {path.removeprefix(PREFIX).replace(":path", "") for path in routes if path.startswith(PREFIX)}
    assert ours - {"/openapi.json"} == set(document(still_site.app)["paths"])


def test_no_operation_promises_to_be_refused_as_signing_in_may_be(still_site: Site):
    paths = document(still_site.app)["paths"].values()
    answers = {status for path in paths for one in path.values() for status in one["responses"]}
    assert {"200", "202", "401", "503"} <= answers
    assert "429" not in answers


def test_the_document_is_valid():
    schemathesis.openapi.from_dict(document(App(*map(shipped, SHIPPED)))).validate()


# -- schemathesis


def settings(examples: int) -> Any:
    return hypothesis.settings(
        max_examples=examples,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )


def tried(schema: Any, headers: dict[str, str], examples: int, only: tuple[str, ...] = ("/",)) -> dict[str, str]:
    """What is wrong, by address; every operation is asked with good values, and with bad ones."""
    schema.config.checks.positive_data_acceptance.expected_statuses += ["422"]  # what no schema can say
    found: dict[str, str] = {}
    asked = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if not operation.path.startswith(only):
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            asked += 1
            try:
                _try(operation, mode, headers, examples)
            except hypothesis.errors.Unsatisfiable:
                assert mode is GenerationMode.NEGATIVE, operation.path  # nothing that it takes can be wrong
            except FailureGroup as group:
                found[f"{mode.name} {operation.method} {operation.path}"] = str(group)
    assert asked
    return found


def _try(operation: Any, mode: GenerationMode, headers: dict[str, str], examples: int) -> None:
    @settings(examples)
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), real=st.booleans())
    def run(case: Any, real: bool) -> None:
        if real and mode is GenerationMode.POSITIVE:
            for place in (case.query, case.path_parameters, case.body):
                if isinstance(place, dict):
                    place.update({name: value for name, value in REAL.items() if name in place})
        case.call_and_validate(headers=dict(headers))

    run()


def loaded(app: Any, headers: dict[str, str]) -> Any:
    """The token is given in every call: whether it is asked for is tried elsewhere."""
    schema = schemathesis.openapi.from_asgi(f"{PREFIX}/openapi.json", app, headers=dict(headers))
    schema.raw_schema.pop("security")
    return schema


@pytest.fixture
def served(tmp_path) -> Iterator[tuple[Site, dict[str, str]]]:
    with site(f"sqlite:///{tmp_path / 'penstock.db'}", clock=VirtualClock(NOW)) as made:
        yield made, {"Authorization": f"Bearer {create(made, 'tester', 'admin')}"}


BY_DAY = ("/shop/order/", "/units/{machine}/{unit_id}/why", "/gates/pause")
"""Addresses of every kind; at night all are tried."""


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("examples", "only"), [(2, BY_DAY), pytest.param(25, ("/",), marks=pytest.mark.nightly)])
def test_schemathesis_finds_nothing(served: tuple[Site, dict[str, str]], examples: int, only: tuple[str, ...]):
    made, headers = served
    app = made.application(WebSettings(hosts=("testserver",)))
    assert tried(loaded(app, headers), headers, examples, only) == {}


@contextlib.contextmanager
def on_a_socket(made: Site) -> Iterator[str]:
    with bind("127.0.0.1:0") as listening:
        running = program(made.app, clock=made.clock)
        desk = Desk(
            lambda: running, lambda: Ledger.open(made.url, made.app.machines), bound_to(listening, "127.0.0.1:0")
        )
        with serving(make_application(desk), listening):
            yield f"http://{desk.bound}"


def test_schemathesis_finds_nothing_over_a_socket(served: tuple[Site, dict[str, str]]):
    made, headers = served
    with on_a_socket(made) as address:
        schema = schemathesis.openapi.from_url(f"{address}{PREFIX}/openapi.json")
        schema.raw_schema.pop("security")
        assert tried(schema, headers, 3, ("/units/wake",)) == {}


def test_a_planted_fault_is_found(served: tuple[Site, dict[str, str]]):
    made, headers = served
    app = made.application(WebSettings(hosts=("testserver",)))

    async def wrong(request: Request) -> JSONResponse:
        return JSONResponse({"rows": "none"})

    app.router.routes.insert(0, Route(f"{PREFIX}/workers", wrong))
    found = tried(loaded(app, headers), headers, 2, ("/workers",))
    assert "POSITIVE get /workers" in found
    assert "rows" in found["POSITIVE get /workers"]
