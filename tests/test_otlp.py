"""Metrics and spans by OTLP, as a receiver on a local socket decodes them with the protocol's own classes."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.app.app import App
from penstock.app.metrics import Metrics, catalogue
from penstock.connectors.http.client import Http
from penstock.model import trace
from penstock.model.clock import SystemClock
from penstock.model.errors import Rejected
from penstock.observe import otlp
from penstock.observe.catalogue import Metric, Sample, distribution
from penstock.settings.kernel import OtlpSettings
from penstock.settings.typed import Url
from penstock.simulators.server import in_thread
from tests.operations.conftest import NOW, ORDERS, Desk
from tests.support.fleet import COMMAND, Member, until

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
HOSTILE = Metric("gate.open", "gauge", "Open.", ("gate",))
DURATION = Metric("run.duration_ms", "histogram", "How long.")


class Receiver:
    """A collector: it keeps what it was sent."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.spans: list[Any] = []
        self.application = Starlette(
            routes=[
                Route("/v1/metrics", self._metrics, methods=["POST"]),
                Route("/v1/traces", self._traces, methods=["POST"]),
                Route("/refused", lambda _: Response("no", 404)),
            ]
        )

    async def _metrics(self, request: Request) -> Response:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        sent = ExportMetricsServiceRequest.FromString(await _body(request))
        self.metrics += [one for r in sent.resource_metrics for scope in r.scope_metrics for one in scope.metrics]
        return Response(b"")

    async def _traces(self, request: Request) -> Response:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        sent = ExportTraceServiceRequest.FromString(await _body(request))
        self.spans += [one for r in sent.resource_spans for scope in r.scope_spans for one in scope.spans]
        return Response(b"")


async def _body(request: Request) -> bytes:
    body = await request.body()
    return gzip.decompress(body) if request.headers.get("content-encoding") == "gzip" else body


@contextmanager
def received(share: float = 0.0) -> Iterator[tuple[Receiver, OtlpSettings, str]]:
    receiver = Receiver()
    with in_thread(receiver.application) as address:
        yield receiver, OtlpSettings(url=Url(address), trace_share=share), address


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_the_catalogue_is_sent_as_it_is_scraped(ledger_url):
    desk = Desk(ledger_url, App(ORDERS))
    with received() as (receiver, settings, _):
        try:
            desk.orders(3)
            samples = Metrics(desk.program, desk.ledger.database, lambda: {"order": {"claimed": 7}}).samples()
        finally:
            desk.ledger.close()
        data = otlp.metrics_data(catalogue(desk.app), samples, otlp.resource(), NOW, NOW + timedelta(minutes=1))
        otlp.metric_exporter(settings).export(data)
    found = {one.name: one for one in receiver.metrics}
    assert set(found) == {sample.name for sample in samples}
    (claims,) = found["penstock.claims"].sum.data_points
    assert (claims.as_double or claims.as_int, claims.attributes[0].value.string_value) == (7, "order")
    assert found["penstock.claims"].sum.is_monotonic
    units = {tuple(a.value.string_value for a in p.attributes): p for p in found["penstock.units"].gauge.data_points}
    assert units["order", "new"].as_int == 3


def test_a_histogram_and_hostile_labels():
    samples = [
        Sample("run.duration_ms", distribution([500, 1_500, 9_000], [1_000, 5_000])),
        Sample("gate.open", 1, ('a"b\n\\c',)),
    ]
    with received() as (receiver, settings, _):
        data = otlp.metrics_data([DURATION, HOSTILE], samples, otlp.resource(), NOW, NOW)
        otlp.metric_exporter(settings).export(data)
    duration, hostile = receiver.metrics
    (point,) = duration.histogram.data_points
    assert (duration.unit, point.count, point.sum) == ("ms", 3, 11_000)
    assert (list(point.explicit_bounds), list(point.bucket_counts)) == ([1_000, 5_000], [1, 1, 1])
    assert hostile.gauge.data_points[0].attributes[0].value.string_value == 'a"b\n\\c'


def test_a_step_is_traced_down_to_its_calls():
    async def step(address: str) -> None:
        http = Http(address, SystemClock())
        try:
            with trace.span("invoice", unit="invoice:acme/1"):
                try:
                    await http.call("GET", "/refused?key=hunter2")
                except Rejected as error:
                    trace.failed(error)
        finally:
            await http.close()

    with received(share=1.0) as (receiver, settings, address):
        spans = otlp.Spans(settings, otlp.resource())
        with trace.tracing(spans):
            asyncio.run(step(address))
        spans.close()
    call, own = sorted(receiver.spans, key=lambda one: one.name)
    assert (call.name, own.name) == ("call", "invoice")
    assert (call.trace_id, call.parent_span_id) == (own.trace_id, own.span_id)
    facts = {one.key: one.value.string_value or one.value.int_value for one in (*call.attributes, *own.attributes)}
    assert facts == {"method": "GET", "path": "/refused", "status": 404, "unit": "invoice:acme/1"}
    assert own.status.message.startswith("Rejected: GET /refused")
    assert not trace.on()


@pytest.mark.timeout(120)
def test_a_real_worker_sends_its_steps_and_their_calls(tmp_path: Path):
    """`penstock worker` as it is started: one step of one unit, and the calls to the provider within it."""

    async def accounting(request: Request) -> Response:
        asked.append((request.method, request.url.path))
        return Response("{}", 404 if request.method == "GET" else 201, media_type="application/json")

    asked: list[tuple[str, str]] = []
    routes = [Route("/{path:path}", accounting, methods=["GET", "POST", "PUT"])]
    with received(share=1.0) as (receiver, settings, _), in_thread(Starlette(routes=routes)) as accounts:
        (tmp_path / "penstock.toml").write_text(
            'lifecycles = ["penstock.examples.invoices:lifecycle"]\n'
            f'[ledger]\nurl = "sqlite:///{tmp_path}/ledger.db"\n[invoices]\napi_url = "{accounts}"\n'
            f'[otlp]\nurl = "{settings.url}"\ntrace_share = 1.0\n'
        )
        born = [
            "invoice",
            "--set",
            "tenant=acme",
            "--set",
            "number=7",
            "--set",
            "amount_minor=100",
            "--reason",
            "x",
            "--yes",
        ]
        for command in (["db", "upgrade"], ["units", "create", *born]):
            subprocess.run([*COMMAND, *command], cwd=tmp_path, check=True, capture_output=True)
        worker = Member([*COMMAND, "worker"], {**os.environ}, tmp_path / "worker.log", cwd=tmp_path)
        try:
            until(lambda: any(method != "GET" for method, _ in asked), "the invoice was sent")
            worker.process.send_signal(signal.SIGTERM)
            assert worker.process.wait(60) == 0, worker.text()
        finally:
            if worker.alive:
                worker.kill()
    steps = {one.span_id: one for one in receiver.spans if one.name == "invoice"}
    calls = [one for one in receiver.spans if one.name == "call"]
    units = {a.value.string_value for one in steps.values() for a in one.attributes if a.key == "unit"}
    assert units == {"invoice:acme/7"}
    assert len(calls) == len(asked) > 0
    for one in calls:
        step = steps[one.parent_span_id]
        assert one.trace_id == step.trace_id
        assert step.start_time_unix_nano <= one.start_time_unix_nano <= one.end_time_unix_nano
        assert one.end_time_unix_nano <= step.end_time_unix_nano
    told = {a.value.string_value for one in calls for a in one.attributes if a.key == "path"}
    assert told == {path for _, path in asked}


def test_without_a_tracer_a_span_is_nothing():
    assert trace.span("call", path="/x") is trace.span("step")
    trace.failed(ValueError("nobody hears it"))
