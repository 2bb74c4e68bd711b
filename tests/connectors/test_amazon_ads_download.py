"""Downloads go where the configuration allows, to the address that was checked, and nowhere else."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.amazon_ads.client import DOWNLOAD_HOSTS
from penstock.connectors.http.download import Allowed, Downloads, LinkExpired, RefusedLink, TooLarge, is_public
from penstock.connectors.http.exchange import Patience
from penstock.model.clock import SystemClock, VirtualClock
from penstock.model.errors import Rejected, Transient

HOST = "offline-report-storage-eu-west-1-prod.s3.amazonaws.com"
LINK = f"https://{HOST}/a/b.json.gz?X-Amz-Signature=opens-it"


class Names:
    """A resolver with a memory: what each next question is answered with."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        if not self.answers:
            raise OSError(-2, "Name or service not known")
        return self.answers.pop(0)


def get(url: str, allowed: Allowed | None = None, **options: Any) -> bytes:
    async def main() -> bytes:
        downloads = Downloads(allowed or Allowed(DOWNLOAD_HOSTS), SystemClock(), **options)
        try:
            return b"".join([piece async for piece in downloads.get(url)])
        finally:
            await downloads.close()

    return asyncio.run(main())


class Storage:
    """A plain server that keeps what it was sent."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, b"the file")
        self.port = 0


@contextmanager
def storage(context: ssl.SSLContext | None = None) -> Iterator[Storage]:
    made = Storage()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.requests.append({":path": self.path, **dict(self.headers)})
            status, headers, body = made.answer
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """It is quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    "url",
    [
        LINK.replace("https", "http"),
        LINK.replace("https", "ftp"),
        f"https://{HOST}:8443/a",
        f"https://{HOST}:0/a",
        f"https://{HOST}:00/a",
        f"https://{HOST}:-443/a",
        f"https://user:pass@{HOST}/a",
        f"https://{HOST}@evil.test/a",
        f"https://{HOST}.evil.test/a",
        f"https://{HOST}./a",
        f"https://evil.test/{HOST}",
        f"https://evil.test\\@{HOST}/a",
        f"https://{HOST}\n.evil.test/a",
        "https://127.0.0.1/a",
        "https://[::1]/a",
        "https://169.254.169.254/latest/meta-data",
        "https://localhost/a",
        "https://2130706433/a",
        "https://[::1/a",
        "file:///etc/passwd",
        "//no.scheme/a",
        "",
        "https://",
        f"https://{HOST}:99999/a",
        "https://\u2100.s3.amazonaws.com/",
    ],
)
def test_a_link_to_anywhere_else_is_refused_before_anything_is_looked_up(url):
    names = Names(["52.216.0.1"])
    with pytest.raises(RefusedLink) as caught:
        get(url, resolve=names)
    assert names.asked == []
    assert isinstance(caught.value, Rejected)
    assert "pass" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fd00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        *("fec0::1", "feff::1", "3fff::1", "3fff:fff::1", "192.88.99.1", "168.63.129.16"),
        *("::ffff:168.63.129.16", "64:ff9b::a83f:8110", "64:ff9b:1::1", "192.0.0.192", "5f00::1", "100::1", "::7f00:1"),
        "nonsense",
    ],
)
def test_a_name_that_leads_to_an_address_that_is_not_public_is_refused(address):
    with pytest.raises(RefusedLink, match="not a public address") as caught:
        get(LINK, resolve=Names(["52.216.0.1", address]))
    assert "opens-it" not in str(caught.value)


@pytest.mark.parametrize("address", ["52.216.0.1", "2600:1fa0::1", "64:ff9b::34d8:1", "::ffff:52.216.0.1"])
def test_public_addresses_are_public(address):
    assert is_public(address)


def test_a_name_that_cannot_be_resolved_is_transient():
    with pytest.raises(Transient, match="cannot be resolved"):
        get(LINK, resolve=Names())
    with pytest.raises(Transient, match="has no address"):
        get(LINK, resolve=Names([]))


def test_a_name_is_not_waited_for_without_end(monkeypatch):
    async def never(host: str, port: int) -> list[str]:
        await asyncio.sleep(3_600)
        return [host]

    monkeypatch.setattr("penstock.connectors.http.download.Patience", lambda total: Patience(connect=0.05, total=total))
    with pytest.raises(Transient, match=r"no address after 0\.05 s"):
        get(LINK, resolve=never)


def test_loopback_is_allowed_for_the_very_host_of_the_configuration_alone():
    with storage() as one, storage() as other:
        allowed = Allowed((), (f"127.0.0.1:{one.port}",))
        assert get(f"http://127.0.0.1:{one.port}/file", allowed) == b"the file"
        with pytest.raises(RefusedLink):
            get(f"http://127.0.0.1:{other.port}/file", allowed)
        with pytest.raises(RefusedLink):
            get(f"http://localhost:{one.port}/file", allowed)
        assert other.requests == []


def test_the_connection_goes_to_the_address_that_was_checked():
    with storage() as made:
        host = f"storage.test:{made.port}"
        names = Names(["127.0.0.1"], ["203.0.113.1"])
        assert get(f"http://{host}/file?a=%2F&b=1#part", Allowed((), (host,)), resolve=names) == b"the file"
        assert names.asked == [("storage.test", made.port)], "asked once: there is no second answer to be fooled by"
        (request,) = made.requests
        assert (request["Host"], request[":path"]) == (host, "/file?a=%2F&b=1")


def test_plain_http_goes_to_this_machine_alone():
    allowed = Allowed((), ("storage.test:80", "storage.test:443"))
    with pytest.raises(RefusedLink, match="plain http is only for this machine"):
        get("http://storage.test/file", allowed, resolve=Names(["10.0.0.1"]))
    with pytest.raises(RefusedLink, match="plain http is only for this machine"):
        get("http://storage.test/file", allowed, resolve=Names(["127.0.0.1", "52.216.0.1"]))


def test_nothing_of_the_environment_is_sent(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret-of-netrc\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with storage() as made:
        get(f"http://127.0.0.1:{made.port}/file", Allowed((), (f"127.0.0.1:{made.port}",)))
        assert "Authorization" not in made.requests[0]
        assert "Cookie" not in made.requests[0]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((403, {}, b"<Error/>"), LinkExpired),
        ((302, {"Location": "http://169.254.169.254/"}, b""), RefusedLink),
        ((404, {}, b""), Rejected),
        ((400, {}, b""), Rejected),
        ((429, {}, b""), Transient),
        ((500, {}, b""), Transient),
        ((200, {"Content-Length": "4000"}, b"short"), Transient),
        ((200, {"Content-Length": "2000000"}, b""), TooLarge),
    ],
)
def test_what_an_answer_means(answer, error):
    with storage() as made:
        made.answer = answer
        host = f"127.0.0.1:{made.port}"
        with pytest.raises(error) as caught:
            get(f"http://{host}/file?signature=opens-it", Allowed((), (host,), max_bytes=1_000_000))
        assert type(caught.value) is error
        assert "opens-it" not in str(caught.value)


def test_a_server_that_is_away_is_transient():
    with storage() as made:
        host = f"127.0.0.1:{made.port}"
    with pytest.raises(Transient, match="could not connect"):
        get(f"http://{host}/file", Allowed((), (host,)))


def test_a_file_that_never_ends_is_given_up():
    async def main(host: str) -> None:
        clock = VirtualClock()
        downloads = Downloads(Allowed((), (host,), max_seconds=60), clock)
        pieces = downloads.get(f"http://{host}/file")
        await anext(pieces)
        clock.advance(61)
        with pytest.raises(Transient, match="not finished after 60 s"):
            async for _ in pieces:
                pass
        await downloads.close()

    with storage() as made:
        made.answer = (200, {}, b"x" * 3_000_000)
        asyncio.run(main(f"127.0.0.1:{made.port}"))


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's side of a certificate for one name."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, made = folder / f"{name}.key", folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += [
        "-keyout",
        str(key),
        "-out",
        str(made),
        "-days",
        "2",
        "-subj",
        "/CN=x",
        "-addext",
        f"subjectAltName=DNS:{name}",
    ]
    subprocess.run(command, check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made, key)
    return server, ssl.create_default_context(cafile=str(made))


def test_tls_asks_for_the_name_and_checks_the_certificate_against_it(tmp_path):
    server, client = certificate(tmp_path, "storage.test")
    seen: list[str | None] = []
    server.sni_callback = lambda _socket, name, _context: seen.append(name)
    with storage(server) as made:
        for name in ("storage.test", "other.test"):
            host = f"{name}:{made.port}"
            allowed, names = Allowed((), (host,)), Names(["127.0.0.1"])
            if name == "storage.test":
                assert get(f"https://{host}/file", allowed, resolve=names, context=client) == b"the file"
            else:
                with pytest.raises(Transient, match="could not connect"):
                    get(f"https://{host}/file", allowed, resolve=names, context=client)
    assert seen == ["storage.test", "other.test"]
