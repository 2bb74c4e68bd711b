"""Addresses of APIs and of object stores: plain `http` is for this machine alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from penstock.model.errors import UsageError

PLAIN_URL = re.compile(r"https?://[!-~]+")
_STORES = {"s": "AWS_", "g": "GOOGLE_", "a": "AZURE_"}
"""How the environment variables of a store begin, by the first letter of its scheme."""
_ENDPOINTS = ("ENDPOINT", "ENDPOINT_URL", "ENDPOINT_URL_S3", "STORAGE_ENDPOINT", "STS_ENDPOINT", "BASE_URL")
"""How they end where they say where the store is. Others say where a machine learns who it is, over plain http."""


def check_address(url: str) -> str:
    """The address of an API, as it is; plain `http` is for this machine alone. Raises UsageError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or port == 0 or not PLAIN_URL.fullmatch(url) or parts.username is not None:
        raise UsageError(f"{url!r} is not the address of an API; write it like https://api.example.com")
    if parts.scheme == "http" and not is_loopback(host):
        raise UsageError(f"{url!r} is not https; plain http is only for this machine")
    return url


def read_hosts(value: Any) -> tuple[str, ...]:
    """Hosts with their ports, of a setting. Raises ValueError with what is allowed."""
    if not isinstance(value, list) or not all(isinstance(item, str) and ":" in item for item in value):
        raise ValueError('a list of host:port, for example ["127.0.0.1:8080"]')
    return tuple(value)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its very name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def plain_store(scheme: str, options: Mapping[str, Any]) -> bool:
    """Whether the object store of a scheme is an emulator of this machine, spoken to without TLS.

    Looks at its options and its environment variables. Raises UsageError where plain `http` would leave the machine.
    """
    begin = _STORES[scheme[0]]
    known = {begin + end for end in _ENDPOINTS} | {"AZURITE_BLOB_STORAGE_URL"}
    given = {name.upper(): value for name, value in options.items()}
    if any(name.endswith("ALLOW_HTTP") for name in given):
        raise UsageError("allow_http is not an option; plain http is only for this machine, and allowed there")
    ends = [value for name, value in given.items() if {name, begin + name} & known]
    ends += [value for name, value in os.environ.items() if name in known]
    plain = [check_address(str(end)) for end in ends if str(end).lower().startswith("http:")]
    return bool(plain)
