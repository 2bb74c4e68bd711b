"""Google Sheets: the tabs of a spreadsheet, ranges of their cells, and room for more, over REST.

A `GoogleSheets` speaks for one service account. It knows nothing of the ledger, and retries nothing, but for one
renewal of a token that Google refuses. Cells are written as they are (RAW): what looks like a formula stays a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from penstock.connectors.google_ads.errors import Failure, read_body
from penstock.connectors.google_sheets.login import ServiceLogin
from penstock.connectors.google_sheets.ranges import MOST_BYTES, Area, Values
from penstock.connectors.http.client import Http, NotJson, Response
from penstock.connectors.http.exchange import Transport
from penstock.model.clock import Clock
from penstock.model.errors import Fatal, Rejected, StepError, Throttled, Transient
from penstock.settings.redaction import redact
from penstock.settings.secret import Secret

_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _THROTTLED = 401, 403, 404, 429
_OUTSIDE = "exceeds grid limits"
_SPENT = "RESOURCE_EXHAUSTED"
_ANSWERED = (400, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _THROTTLED)
_AS_STORED = {
    "majorDimension": "ROWS",
    "valueRenderOption": "UNFORMATTED_VALUE",
    "dateTimeRenderOption": "FORMATTED_STRING",
}
_FIELDS = "sheets.properties(sheetId,title,sheetType,gridProperties(rowCount,columnCount))"


class Tab(msgspec.Struct, frozen=True):
    """One tab with a grid: its name, Google's id of it, and its size."""

    title: str
    sheet_id: int
    rows: int
    columns: int


class _Grid(msgspec.Struct):
    rowCount: int = 0  # noqa: N815 - Google's name
    columnCount: int = 0  # noqa: N815 - Google's name


class _Properties(msgspec.Struct):
    title: str
    sheetId: int = 0  # noqa: N815 - Google's name
    gridProperties: _Grid | None = None  # noqa: N815 - Google's name


class _Sheet(msgspec.Struct):
    properties: _Properties


class _Spreadsheet(msgspec.Struct):
    sheets: list[_Sheet] = []


class _Range(msgspec.Struct):
    values: list[list[Any]] = []


class _Ranges(msgspec.Struct):
    valueRanges: list[_Range]  # noqa: N815 - Google's name


class GoogleSheets:
    """The spreadsheets that are shared with a service account. `transport` replaces the network."""

    def __init__(self, url: str, credentials: Secret, clock: Clock, *, transport: Transport | None = None) -> None:
        self._http = Http(url, clock, transport=transport)
        self._login = ServiceLogin(credentials, clock, transport)

    async def tabs(self, spreadsheet_id: str) -> list[Tab]:
        """The tabs that have a grid. Raises Throttled, Rejected, Fatal or Transient."""
        found = await self._ask("GET", spreadsheet_id, f"?fields={quote(_FIELDS)}", _Spreadsheet)
        listed = [one.properties for one in found.sheets]
        return [
            Tab(one.title, one.sheetId, one.gridProperties.rowCount, one.gridProperties.columnCount)
            for one in listed
            if one.gridProperties is not None
        ]

    async def read(self, spreadsheet_id: str, areas: Sequence[Area]) -> list[list[list[Any]]]:
        """The rows of each area, in one call; empty rows and cells at the end of an area are left out.

        Numbers and booleans are what they are; dates are texts, as they are shown. Raises as `tabs`.
        """
        query = urlencode([*(("ranges", area.text) for area in areas), *_AS_STORED.items()], quote_via=quote)
        found = await self._ask("GET", spreadsheet_id, f"/values:batchGet?{query}", _Ranges)
        if len(found.valueRanges) != len(areas):
            told = f"{len(areas)} ranges were asked for, and {len(found.valueRanges)} came"
            raise Transient(f"GET /v4/spreadsheets/{spreadsheet_id}/values:batchGet: {told}")
        return [one.values for one in found.valueRanges]

    async def write(self, spreadsheet_id: str, values: Sequence[Values]) -> None:
        """Set cells, by one call. Raises InDoubt where nobody knows whether they are set, and else as `tabs`."""
        body = {"valueInputOption": "RAW", "data": [one.wire() for one in values]}
        await self._change(spreadsheet_id, "/values:batchUpdate", body)

    async def add_tab(self, spreadsheet_id: str, title: str) -> None:
        """Add a tab; one of that name must not be there. Raises as `write`."""
        await self._change(
            spreadsheet_id, ":batchUpdate", {"requests": [{"addSheet": {"properties": {"title": title}}}]}
        )

    async def grow(self, spreadsheet_id: str, sheet_id: int, *, rows: int = 0, columns: int = 0) -> None:
        """Add so many empty rows and columns to the end of a tab. Raises as `write`."""
        wanted = [("ROWS", rows), ("COLUMNS", columns)]
        more = [
            {"appendDimension": {"sheetId": sheet_id, "dimension": dimension, "length": count}}
            for dimension, count in wanted
            if count > 0
        ]
        await self._change(spreadsheet_id, ":batchUpdate", {"requests": more})

    async def close(self) -> None:
        """Close the connections."""
        await self._login.close_connections()
        await self._http.close()

    async def _change(self, spreadsheet_id: str, path: str, body: Any) -> None:
        content = msgspec.json.encode(body)
        if len(content) > MOST_BYTES:
            raise Rejected(f"a change of {len(content):,} bytes is too large; {MOST_BYTES:,} is the most")
        await self._exchange("POST", spreadsheet_id, path, content)

    async def _ask(self, method: str, spreadsheet_id: str, path: str, kind: type[Any]) -> Any:
        response = await self._exchange(method, spreadsheet_id, path)
        try:
            return msgspec.convert(response.json(), kind)
        except (NotJson, msgspec.ValidationError) as error:
            told = redact(str(error))[:200]
            raise Transient(f"{_call(method, spreadsheet_id, path)}: the answer cannot be read: {told}") from error

    async def _exchange(self, method: str, spreadsheet_id: str, path: str, content: bytes = b"") -> Response:
        """One call; a token that is refused is renewed once."""
        call = _call(method, spreadsheet_id, path)
        token, refused = await self._login.token(), False
        while True:
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            if content:
                headers["Content-Type"] = "application/json"
            response = await self._http.call(
                method,
                f"/v4/spreadsheets/{quote(spreadsheet_id, safe='')}{path}",
                content=content,
                headers=headers,
                answers=_ANSWERED,
                shown=call.partition(" ")[2],
            )
            if response.is_success:
                return response
            if response.status_code != _UNAUTHORIZED or refused:
                raise self._meaning(call, spreadsheet_id, response)
            token, refused = await self._login.token(instead_of=token), True

    def _meaning(self, call: str, spreadsheet_id: str, response: Response) -> StepError:
        """What an answer means that is no success."""
        failure = read_body(response.content, response.status_code) or Failure(response.status_code)
        code = response.status_code
        text = redact(f"{call}: {failure}")[:400]
        if code == _THROTTLED or failure.status == _SPENT or (code == _FORBIDDEN and _limited(response)):
            asked = [one for one in (failure.retry_after, self._http.retry_after(response)) if one is not None]
            return Throttled(text, max(asked) if asked else None)
        if code == _FORBIDDEN:
            share = f"share the spreadsheet {spreadsheet_id} with {self._login.email}, as an editor"
            return Fatal(f"{text}; {share}, and see that the Google Sheets API is enabled")
        if code == _UNAUTHORIZED:
            return Fatal(f"{text}; a new token was refused too: check the key of {self._login.email}")
        if code == _NOT_FOUND:
            return Rejected(f"{text}; there is no spreadsheet {spreadsheet_id}: check 'spreadsheet_id'")
        if _OUTSIDE in text:
            return Transient(f"{text}; somebody has made the tab smaller")
        return Rejected(text)


def _limited(response: Response) -> bool:
    """Whether a 403 is about a rate; some of Google's services answer so."""
    return b"ateLimitExceeded" in response.content


def _call(method: str, spreadsheet_id: str, path: str) -> str:
    """The call as errors name it: without its query, which lists every range."""
    return f"{method} /v4/spreadsheets/{spreadsheet_id}{path.partition('?')[0]}"
