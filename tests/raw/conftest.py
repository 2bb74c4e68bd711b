"""Raw sinks on every kind of store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.raw.sink import RawSink
from tests.support.s3 import S3, s3


@pytest.fixture(params=["disk", "memory"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> RawSink:
    """An empty sink; a test that takes it runs once on each kind of store."""
    return RawSink(tmp_path / "raw" if request.param == "disk" else "memory://")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3]:
    """A bucket on loopback, and the environment that leads there."""
    with s3() as made:
        account: dict[str, object] = {"disable_oauth": True}
        account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        (tmp_path / "account.json").write_text(json.dumps(account))
        settings = {
            "GOOGLE_SERVICE_ACCOUNT": str(tmp_path / "account.json"),
            "GOOGLE_BASE_URL": made.address,
            "AWS_ENDPOINT": made.address,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "eu-west-1",
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture(params=["s3", "gs"])
def objects(bucket: S3, request: pytest.FixtureRequest) -> RawSink:
    """An empty sink in the bucket, as S3 and as Google's store."""
    return RawSink(f"{request.param}://landed/raw/data")
