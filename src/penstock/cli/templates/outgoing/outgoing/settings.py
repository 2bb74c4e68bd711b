"""`[outgoing]` of penstock.toml: a field is a setting, and its sentence is its documentation."""

from __future__ import annotations

from typing import Annotated

from penstock import Settings, Url, says


class OutgoingSettings(Settings):
    """`[outgoing]`."""

    url: Annotated[Url, says("Where the API is served.")] = Url("http://127.0.0.1:8099")
    look_first: Annotated[bool, says("Ask whether the API has an item before the first try too.")] = False
