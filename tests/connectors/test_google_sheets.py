"""The connector, through real HTTP on loopback, against Google's simulator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.google_sheets.client import GoogleSheets, Tab
from penstock.connectors.google_sheets.ranges import MOST_BYTES, Area, Values, letters, number, split
from penstock.model.clock import VirtualClock
from penstock.model.errors import Fatal, InDoubt, Rejected, StepError, Throttled, Transient
from penstock.settings.redaction import MARK, redact
from penstock.settings.secret import Secret
from penstock.simulators.google_sheets import LOST, SPREADSHEET, Fault, GoogleSheetsSimulator, quota
from penstock.simulators.server import serving

NOW = datetime(2026, 11, 15, 3, tzinfo=UTC)
A1 = Area("Sheet1", 1, 1, 1, 1)


@dataclass
class Both:
    """Both sides."""

    simulator: GoogleSheetsSimulator
    clock: VirtualClock
    sheets: GoogleSheets
    key: Path
    address: str

    async def read(self, *areas: Area) -> list[list[list[Any]]]:
        return await self.sheets.read(SPREADSHEET, areas or [A1])

    async def write(self, *values: Values) -> None:
        await self.sheets.write(SPREADSHEET, values or [Values("Sheet1", 1, 1, [["x"]])])


def on(folder: Path, test: Callable[[Both], Awaitable[None]], **options: Any) -> None:
    """Run a test on a spreadsheet on a loopback socket."""

    @contextlib.asynccontextmanager
    async def both() -> AsyncIterator[Both]:
        clock = VirtualClock(NOW)
        simulator = GoogleSheetsSimulator(clock, **options)
        async with serving(simulator) as address:
            key = folder / "key.json"
            key.write_text(simulator.key(address))
            sheets = GoogleSheets(address, Secret("file", str(key)), clock)
            try:
                yield Both(simulator, clock, sheets, key, address)
            finally:
                await sheets.close()

    async def main() -> None:
        async with both() as made:
            await test(made)

    asyncio.run(main())


def test_what_is_written_is_read_again(tmp_path):
    async def test(g: Both) -> None:
        rows: list[list[Any]] = [["=1+1", 7, 1.5, True], ["", "ñ'\"", "7", "+34 600"]]
        await g.write(Values("Sheet1", 2, 3, rows))
        whole, part, none = await g.read(
            Area("Sheet1", 1, 1, 10, 26), Area("Sheet1", 3, 4, 3, 4), Area("Sheet1", 9, 1, 10, 2)
        )
        assert whole == [[], ["", "", *rows[0]], ["", "", *rows[1]]]
        assert part == [["ñ'\""]]
        assert none == []
        (body,) = g.simulator.bodies
        assert (body["valueInputOption"], body["data"][0]["range"]) == ("RAW", "'Sheet1'!C2:F3")
        assert g.simulator.calls("token") == 1

    on(tmp_path, test)


def test_tabs_are_listed_added_and_made_larger(tmp_path):
    async def test(g: Both) -> None:
        await g.sheets.add_tab(SPREADSHEET, "People's 'own'")
        await g.sheets.grow(SPREADSHEET, 1, rows=500, columns=2)
        assert await g.sheets.tabs(SPREADSHEET) == [
            Tab("Sheet1", 0, 1_000, 26),
            Tab("People's 'own'", 1, 1_500, 28),
        ]
        await g.write(Values("People's 'own'", 1_500, 28, [["end"]]))
        assert await g.read(Area("People's 'own'", 1_500, 28, 1_500, 28)) == [[["end"]]]
        with pytest.raises(Rejected, match="already exists"):
            await g.sheets.add_tab(SPREADSHEET, "Sheet1")

    on(tmp_path, test)


def test_a_tab_that_became_smaller_is_read_again_later(tmp_path):
    async def test(g: Both) -> None:
        with pytest.raises(Transient, match=r"exceeds grid limits.*somebody has made the tab smaller"):
            await g.read(Area("Sheet1", 1, 1, 2_000, 2))
        with pytest.raises(Rejected, match="Unable to parse range"):
            await g.read(Area("Elsewhere", 1, 1, 1, 1))

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("fault", "reading", "writing"),
    [
        (Fault(cut=True), Transient, InDoubt),
        (LOST, Transient, InDoubt),
        (Fault(500), Transient, InDoubt),
        (Fault(503), Transient, Transient),
        (quota(), Throttled, Throttled),
        (Fault(403, "rateLimitExceeded"), Throttled, Throttled),
        (Fault(400, "Invalid"), Rejected, Rejected),
        (Fault(302), Transient, InDoubt),
    ],
)
def test_what_a_failed_call_means(tmp_path, fault, reading, writing):
    async def test(g: Both) -> None:
        for kind, call, error in (("read", g.read, reading), ("write", g.write, writing)):
            g.simulator.faults[kind].append(fault)
            with pytest.raises(StepError) as told:
                await call()
            assert type(told.value) is error
            assert "?" not in str(told.value), "which ranges were asked for is left out"
            await call()

    on(tmp_path, test)


def test_a_quota_of_a_minute_comes_back(tmp_path):
    async def test(g: Both) -> None:
        await g.read()
        await g.read()
        with pytest.raises(Throttled, match=r"RESOURCE_EXHAUSTED.*Read requests per minute per user") as told:
            await g.read()
        assert told.value.retry_after is None
        await g.write()
        g.clock.advance(60)
        await g.read()
        g.simulator.faults["read"].append(quota(retry_after="17"))
        with pytest.raises(Throttled) as told:
            await g.read()
        assert told.value.retry_after == 17

    on(tmp_path, test, per_minute=2)


def test_a_token_is_renewed_before_its_end_and_after_a_refusal(tmp_path):
    async def test(g: Both) -> None:
        await asyncio.gather(g.read(), g.read())
        assert g.simulator.calls("token") == 1
        g.clock.advance(3_590)
        await g.read()
        assert g.simulator.calls("token") == 2
        g.simulator.expire_tokens()
        await g.write()
        assert g.simulator.calls("token") == 3
        g.simulator.faults["read"].extend([Fault(401, "invalid")] * 2)
        with pytest.raises(Fatal, match="a new token was refused too: check the key of penstock@simulated"):
            await g.read()

    on(tmp_path, test)


def test_what_is_not_shared_and_what_is_not_there(tmp_path):
    async def test(g: Both) -> None:
        with pytest.raises(Rejected, match="there is no spreadsheet other: check 'spreadsheet_id'"):
            await g.sheets.tabs("other")
        g.simulator.spreadsheets[SPREADSHEET].editors.clear()
        wanted = f"share the spreadsheet {SPREADSHEET} with {g.simulator.email}, as an editor"
        with pytest.raises(Fatal, match=wanted):
            await g.read()

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"private_key": "-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n"}, "no RSA key that can"),
        ({"private_key": None}, "private_key"),
        ({"client_email": 5}, "client_email"),
        ({"token_uri": "http://example.com/token"}, "plain http is only for this machine"),
        ({"token_uri": "ftp://example.com/token"}, "is not the address of an API"),
        ({"token_uri": "https://user@example.com/token"}, "is not the address of an API"),
        ({"client_email": "another@example.com"}, "; check the key of another@example.com"),
    ],
)
def test_a_key_that_cannot_be_used(tmp_path, change, says):
    async def test(g: Both) -> None:
        key = {**json.loads(g.key.read_text()), **change}
        g.key.write_text(json.dumps(key))
        with pytest.raises(Fatal) as told:
            await g.read()
        assert says in str(told.value)
        assert "nonsense" not in str(told.value)
        assert g.simulator.calls("read") == 0

    on(tmp_path, test)


@pytest.mark.parametrize("text", ["not JSON at all", "[1, 2]", "{}", "", "x" * 70_000, "[" * 1_200])
def test_a_key_that_is_none(tmp_path, text):
    async def test(g: Both) -> None:
        g.key.write_text(text)
        with pytest.raises(Fatal, match=r"key\.json"):
            await g.read()
        g.key.unlink()
        with pytest.raises(Fatal, match=r"key\.json cannot be read"):
            await g.read()

    on(tmp_path, test)


def test_a_key_of_another_pair_is_refused(tmp_path):
    async def test(g: Both) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        made = rsa.generate_private_key(public_exponent=65_537, key_size=2_048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        g.key.write_text(json.dumps({**json.loads(g.key.read_text()), "private_key": made.decode()}))
        with pytest.raises(Fatal, match="Invalid JWT Signature"):
            await g.read()

    on(tmp_path, test)


def test_a_clock_that_is_wrong_is_told_by_google(tmp_path):
    async def test(g: Both) -> None:
        late = VirtualClock(NOW + timedelta(hours=2))
        sheets = GoogleSheets(g.address, Secret("file", str(g.key)), late)
        with pytest.raises(Fatal, match="short-lived token"):
            await sheets.tabs(SPREADSHEET)
        await sheets.close()

    on(tmp_path, test)


def test_secrets_stay_out_of_texts(tmp_path):
    async def test(g: Both) -> None:
        await g.read()
        key = json.loads(g.key.read_text())["private_key"]
        for text in (key, json.dumps(key), g.key.read_text(), "ya29.simulated-sheets-000001"):
            assert "PRIVATE" not in redact(f"a {text} b")
            assert MARK in redact(f"a {text} b")

    on(tmp_path, test)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"valueRanges": []}', b'{"valueRanges": [{"values": 5}]}', b"<html>"])
def test_an_answer_that_cannot_be_read_is_transient(tmp_path, body):
    async def main() -> None:
        clock = VirtualClock(NOW)
        simulator = GoogleSheetsSimulator(clock)

        async def application(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/token":
                await simulator(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})

        async with serving(application) as address:
            (tmp_path / "key.json").write_text(simulator.key(address))
            sheets = GoogleSheets(address, Secret("file", str(tmp_path / "key.json")), clock)
            with pytest.raises(Transient):
                await sheets.read(SPREADSHEET, [A1])
            await sheets.close()

    asyncio.run(main())


def test_a_change_that_is_too_large_is_refused_and_can_be_split(tmp_path):
    values = [Values("Sheet1", row, 1, [["x" * 40_000]]) for row in range(1, 61)]

    async def test(g: Both) -> None:
        with pytest.raises(Rejected, match="bytes is too large"):
            await g.write(*values)
        parts = list(split(values, MOST_BYTES - 100))
        assert [len(part) for part in parts] == [49, 11]
        for part in parts:
            await g.write(*part)
        assert [len(row[0]) for row in (await g.read(Area("Sheet1", 1, 1, 60, 1)))[0]] == [40_000] * 60

    on(tmp_path, test)


def test_columns_have_names():
    assert [letters(column) for column in (1, 26, 27, 52, 53, 702, 703)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]
    assert all(number(letters(column)) == column for column in range(1, 2_000))
    with pytest.raises(ValueError, match="no column 0"):
        letters(0)


def test_only_who_makes_a_connector_loads_what_signs():
    code = (
        "import sys, penstock.connectors.google_sheets.client, penstock.lifecycles.queries.sheet_job;"
        "print([name for name in ('google.auth', 'cryptography') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert told.stdout.strip() == "[]"
