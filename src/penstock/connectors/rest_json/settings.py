"""How `penstock.toml` describes a JSON API: `[queries.rest_json.*]`."""

from __future__ import annotations

from typing import Annotated

from penstock.settings.typed import Settings, TimeZone, Url, says


class RestSettings(Settings):
    """One API: where it is, how it is asked, and what its records are."""

    url: Annotated[Url, says("Where the API is served.", examples=["https://api.example.com"])]
    time_zone: Annotated[TimeZone, says("In which time zone days begin.")] = TimeZone("UTC")
    requests_per_second: Annotated[
        float, says("How fast the API may be called; 0 means no limit. [gates] takes precedence.", ge=0, le=1_000)
    ] = 1.0
