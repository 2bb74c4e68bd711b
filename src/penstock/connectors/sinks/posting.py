"""One call to somebody who takes notices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.connectors.http.client import Http, Response
from penstock.connectors.http.exchange import Transport
from penstock.model.clock import Clock
from penstock.model.errors import Rejected, StepError, Transient, UsageError
from penstock.settings.secret import ConfigError


async def post(
    url: str,
    clock: Clock,
    who: str,
    *,
    json: Any = None,
    content: bytes = b"",
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
    transport: Transport | None = None,
) -> Response:
    """Call an address that may be a secret: errors name who was called, never where. It may be called twice.

    Raises a StepError, and ConfigError for an address that cannot be called.
    """
    try:
        http = Http(url, clock, transport=transport)
    except UsageError:
        raise ConfigError(f"the address of {who} is not one that can be called; it must be https") from None
    try:
        return await http.call(method, "", repeatable=True, json=json, content=content, headers=headers)
    except StepError as error:
        error.args = (f"{who}: {str(error).removeprefix(f'{method} : ')}", *error.args[1:])
        raise
    finally:
        await http.close()


def check_taken(answer: Response, who: str) -> None:
    """Raise where a success says otherwise: Rejected for a document that tells of an error, Transient for a page."""
    if answer.content.lstrip()[:1] == b"<":
        raise Transient(f"{who}: {answer.status_code} with a page; something else has answered in its place")
    try:
        said = msgspec.json.decode(answer.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if isinstance(said, dict) and (
        said.get("ok", said.get("success")) is False or said.get("error", said.get("errors"))
    ):
        raise Rejected(f"{who}: {answer.status_code}, and yet an error: {answer.text:.200}")
