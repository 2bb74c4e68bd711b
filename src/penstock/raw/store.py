"""The port to where landed data lies, and what may go wrong there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from penstock.model.errors import PenstockError

PAYLOAD = "payload.jsonl"
METADATA = "metadata.json"
CHUNK = 1024 * 1024
"""Bytes that are moved at once, whatever the size of a payload."""


class RawError(PenstockError):
    """Landed data cannot be written or read."""


class RawMissing(RawError):
    """There is no finalised run of that name."""


class AlreadyFinalised(RawError):
    """The run is there and can no longer be changed."""


class RawCorrupt(RawError):
    """What lies there is not what was landed."""


class RawUnavailable(RawError):
    """The store does not answer, or refuses; it may do so later."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An attempt that was never finalised: where it lies, in the folder of which partition or run, and since when.

    `beside` says that the run itself was finalised, by another attempt.
    """

    path: str
    folder: str
    written_at: datetime
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Something of which nobody can tell whether it is finalised."""

    path: str
    why: str


class Attempt(Protocol):
    """A run that is being written. Nobody sees it before it is finalised."""

    def write(self, data: bytes) -> None:
        """Append to the payload."""

    def finalise(self, metadata: Mapping[str, object]) -> None:
        """Make the run visible, whole and for good. Raises AlreadyFinalised when somebody else has been faster."""

    def abandon(self) -> None:
        """Forget what was written. It may also simply be left: it is collected later."""


class Store(Protocol):
    """Where runs lie. A folder is what `paths.run_folder` makes."""

    def begin(self, folder: str) -> Attempt:
        """Start to write a run."""

    def metadata(self, folder: str) -> bytes | None:
        """What a finalised run says of itself; None when there is none."""

    def size(self, folder: str, metadata: Mapping[str, object]) -> int:
        """The bytes of a run's payload."""

    def chunks(self, folder: str, metadata: Mapping[str, object]) -> Iterator[bytes]:
        """The payload, a little at a time."""

    def address(self, folder: str, metadata: Mapping[str, object]) -> str:
        """The payload as other programs name it."""

    def folders(self, below: str) -> Iterator[str]:
        """The folders of all finalised runs below a folder, in order."""

    def remove(self, folder: str) -> None:
        """Remove a finalised run: first what makes it visible, then the rest."""

    def unfinished(self, before: datetime) -> Iterator[Unfinished | Unreadable]:
        """The attempts that were last written before that moment and never finalised, and what cannot be told."""

    def discard(self, found: Unfinished) -> bool:
        """Remove an attempt; False when it is gone already."""


def encode_metadata(metadata: Mapping[str, object]) -> bytes:
    """The text of `metadata.json`: for people as well, and the same for the same facts."""
    return json.dumps(metadata, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"
