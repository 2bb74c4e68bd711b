"""The address of a PostgreSQL ledger, as libpq reads it: one host or several, and a password that is never shown.

postgresql://user@host:5432/name?sslmode=require
postgresql://user@first:5432,second:5432/name?target_session_attrs=read-write
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import psycopg
from psycopg import conninfo

from penstock.model.errors import UsageError
from penstock.settings.scalars import secret_parameters

_ADDRESS = re.compile(
    r"postgres(?:ql)?://(?:(?P<user>[^:/@]*)(?::(?P<password>[^@]*))?@)?(?P<hosts>[^/?@]*)"
    r"(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?"
)
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]*\]|[^:\[\]]*)(?::(?P<port>\d+))?")
_SAFE = "/,:=+-_.~*[]"
CONNECT_SECONDS = 10
_USUAL = {
    "application_name": "penstock",
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address; its texts are as they were written, percent-encoding included."""

    user: str | None
    password: str | None
    hosts: str
    database: str | None
    query: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises UsageError, which never shows the part before the hosts."""
        found = _ADDRESS.fullmatch(url)
        shown = url.rsplit("@", maxsplit=1)[-1]
        if found is None or not all(_HOST.fullmatch(host) for host in found["hosts"].split(",")):
            msg = f"{shown!r} is not a PostgreSQL address; write postgresql://user@host/name"
            raise UsageError(msg)
        if named := secret_parameters(url):
            msg = f"a ledger's address is shown and logged; take {' and '.join(named)} out of its query"
            raise UsageError(msg)
        query = tuple(parse_qsl(found["query"] or "", keep_blank_values=True))
        address = cls(found["user"], found["password"], found["hosts"], found["database"], query)
        try:
            conninfo.make_conninfo("", **address.parameters())
        except (psycopg.Error, ValueError) as error:
            msg = f"{shown!r} is not a PostgreSQL address: {str(error).strip()}"
            raise UsageError(msg) from None
        return address

    @property
    def shown(self) -> str:
        """For people and logs."""
        return self._written("" if self.password is None else ":***")

    @property
    def bare(self) -> str:
        """Without its password, for programs that take it otherwise."""
        return self._written("")

    @property
    def secret(self) -> str | None:
        """The password itself."""
        return None if self.password is None else unquote(self.password)

    def parameters(self) -> dict[str, Any]:
        """What psycopg connects with. Of several hosts the one that can be written to is meant, unless it says."""
        given: dict[str, str] = {}
        for name, value in self.query:
            given[name] = f"{given[name]},{value}" if name in given and name == "host" else value
        hosts, ports = _split(given.pop("host", "") or unquote(self.hosts))
        named = {
            "user": unquote(self.user) if self.user else None,
            "password": self.secret,
            "host": hosts,
            "port": ports,
            "dbname": unquote(self.database) if self.database else None,
        }
        several = {"target_session_attrs": "read-write"} if "," in hosts else {}
        return _USUAL | several | {name: value for name, value in named.items() if value} | given

    def _written(self, password: str) -> str:
        who = "" if self.user is None else f"{self.user}{password}@"
        name = "" if self.database is None else f"/{self.database}"
        query = "&".join(f"{quote(n, safe='')}={quote(v, safe=_SAFE)}" for n, v in self.query)
        return f"postgresql://{who}{self.hosts}{name}{'?' if query else ''}{query}"


def _split(hosts: str) -> tuple[str, str]:
    """Hosts and ports as libpq lists them; a host that is a folder holds sockets, and has no port of its own."""
    names, ports = [], []
    for written in hosts.split(","):
        found = None if written.startswith("/") else _HOST.fullmatch(written)
        names.append((found["host"] if found else written).strip("[]"))
        ports.append((found["port"] if found else None) or "")
    return ",".join(names), ",".join(ports) if any(ports) else ""
