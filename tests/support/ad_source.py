"""A small advertising API on loopback: a day of a customer's campaigns as JSON lines, and how it can go wrong."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.app.ports import Ports
from penstock.connectors.http.client import Http
from penstock.lifecycles.partitions import partitions_lifecycle
from penstock.lifecycles.partitions.flow import Landing
from penstock.lifecycles.partitions.validate import Rules
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import Rejected
from penstock.raw.paths import PartitionKey

ENVIRONMENT = "AD_SOURCE"
CUSTOMERS = ("1111111111", "2222222222")
CONFIG = """
[partitions.sources.google_ads]
customers = ["111-111-1111", "2222222222"]
days = 2
time_zone = "UTC"
{more}

[partitions.sources.google_ads.queries.campaign_daily]
schema_version = "1"
fields = {{ "campaign.id" = "whole", "metrics.clicks" = "whole", "segments.date" = "date", note = "text?" }}
unique = ["campaign.id"]
date_field = "segments.date"
"""


def good_rows(day: str, count: int = 3, note: str = "") -> list[dict[str, Any]]:
    return [
        {"campaign": {"id": str(n)}, "metrics": {"clicks": str(n)}, "segments": {"date": day}, "note": note}
        for n in range(count)
    ]


class AdSource:
    """What it answers by `customer/query/date`: rows, or a status; nothing was said means three good rows."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.address = ""


@contextlib.contextmanager
def ad_source() -> Iterator[AdSource]:
    made = AdSource()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/")
            made.asked.append(name)
            answer = made.answers.get(name, 200)
            if isinstance(answer, list) and answer and isinstance(answer[0], int):
                answer = answer.pop(0) if len(answer) > 1 else answer[0]
            if answer == 200:
                answer = good_rows(name.rpartition("/")[2])
            status = answer if isinstance(answer, int) else 200
            body = "no" if isinstance(answer, int) else "\n".join(map(json.dumps, answer))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """It is quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class AdExtractor:
    """The connector of the small API."""

    def __init__(self, address: str, clock: Clock | None = None) -> None:
        self._http = Http(address, clock or SystemClock())

    async def extract(self, key: PartitionKey, run_id: str, sink: Landing) -> None:
        answer = await self._http.send("GET", f"/{key.customer_id}/{key.query_name}/{key.logical_date}")
        assert answer is not None
        try:
            rows = [json.loads(line) for line in answer.text.splitlines()]
        except ValueError as error:
            raise Rejected(f"the answer is not JSON: {error}") from error
        sink.facts["asked"] = key.customer_id
        for start in range(0, len(rows), 2):
            await sink.write(rows[start : start + 2])

    async def close(self) -> None:
        await self._http.close()


rules = Rules()


@rules.row("campaign_daily")
def clicks_are_not_negative(_: PartitionKey, row: Mapping[str, Any]) -> str | None:
    return "clicks below zero" if int(row["metrics"]["clicks"]) < 0 else None


def _extractors(_: Any, ports: Ports) -> dict[str, AdExtractor]:
    import os

    return {"google_ads": AdExtractor(os.environ[ENVIRONMENT], ports.clock)} if ENVIRONMENT in os.environ else {}


lifecycle = partitions_lifecycle("ads", "Advertisements of one's own.", _extractors, rules=rules)
