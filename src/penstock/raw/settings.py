"""The setting that every lifecycle with landed data shares."""

from __future__ import annotations

from pathlib import Path

from penstock.settings import setting as kind
from penstock.settings.setting import Setting


def _beside(address: str, folder: Path) -> str:
    """A folder that is named without its place lies beside the configuration."""
    return address if "://" in address else str(folder / address)


RAW_URL = Setting(
    "raw.url",
    kind.text,
    "raw",
    "Where landed data lies: a folder, or an address that begins with file://, s3://, gs:// or az://.",
    anchor=_beside,
)
