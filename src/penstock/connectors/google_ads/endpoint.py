"""Where Google serves the API of Google Ads."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.model.errors import UsageError

_VERSION = re.compile(r"v[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where Google serves the API and its tokens, and in which version. A version lives about a year."""

    api_url: str = "https://googleads.googleapis.com"
    token_url: str = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address
    version: str = "v26"

    def __post_init__(self) -> None:
        if not _VERSION.fullmatch(self.version):
            raise UsageError(f"{self.version!r} is not a version of the Google Ads API; write one such as v26")
