"""Who asks: a service account, whose key signs an assertion that is exchanged for access tokens of an hour."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import msgspec

from penstock.connectors.http.client import Http
from penstock.connectors.http.exchange import Transport
from penstock.connectors.oauth import read_token
from penstock.connectors.tokens import Tokens
from penstock.model.clock import EPOCH, Clock
from penstock.model.errors import Fatal, Rejected, UsageError
from penstock.settings.addresses import check_address
from penstock.settings.redaction import conceal
from penstock.settings.secret import ConfigError, Secret

SCOPE = "https://www.googleapis.com/auth/spreadsheets"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_LIFE = 3_600
_MOST_BYTES = 1 << 16


class Key(msgspec.Struct, frozen=True):
    """A service account's key, as far as it is needed; the rest of the document is left alone."""

    client_email: str
    private_key: str
    token_uri: str
    private_key_id: str | None = None

    def __repr__(self) -> str:
        return f"the key of {self.client_email}"


@lru_cache(maxsize=4)
def _signer(private_key: str, private_key_id: str | None) -> Any:
    """What signs with a key. To read one takes 40 ms, and who asks for tokens may live for one of them only."""
    from google.auth import crypt

    make: Any = crypt.RSASigner.from_service_account_info
    return make({"private_key": private_key, "private_key_id": private_key_id})


class ServiceLogin(Tokens):
    """Access tokens of a service account. The key is read anew for each exchange, as somebody may have replaced it.

    `token` raises Fatal when the key cannot be read or is refused, Throttled or Transient when there is no answer now.
    """

    def __init__(self, credentials: Secret, clock: Clock, transport: Transport | None) -> None:
        super().__init__(self._exchange_assertion, clock)
        # Slow to load: only who logs in waits for it.
        from google.auth import jwt

        self._encode: Any = jwt.encode
        self._credentials = credentials
        self._time = clock
        self._transport = transport
        self._https: dict[str, Http] = {}
        #: Whom a spreadsheet must be shared with; known from the first login on.
        self.email = "the service account"

    async def close_connections(self) -> None:
        """Give up an exchange that is under way, and close the connections."""
        self.close()
        for http in self._https.values():
            await http.close()

    async def _exchange_assertion(self) -> tuple[str, float]:
        key = self._key()
        self.email = key.client_email
        place = urlsplit(key.token_uri)
        path = place.path or "/"
        # It needs not be concealed: of an answer that quotes it, errors keep less than what makes it good.
        form = {"grant_type": GRANT, "assertion": self._assertion(key)}
        try:
            http = self._http(f"{place.scheme}://{place.netloc}")
            # Alone: a token that answers somebody else's request would open somebody else's account.
            response = await http.call("POST", path, form=form, repeatable=True, alone=True)
        except Rejected as error:
            raise Fatal(f"{error}; check the key of {key.client_email} ({self._credentials})") from error
        return read_token(response, path, _LIFE)

    def _key(self) -> Key:
        try:
            text = self._credentials.reveal()
        except ConfigError as error:
            raise Fatal(str(error)) from error
        wrong = f"the service account's key ({self._credentials}) cannot be used"
        if len(text) > _MOST_BYTES:
            raise Fatal(f"{wrong}: it has more than {_MOST_BYTES:,} characters; give the JSON file that Google made")
        try:
            key = msgspec.json.decode(text, type=Key)
            check_address(key.token_uri)
        except UsageError as error:
            raise Fatal(f"{wrong}: its token_uri {error}") from error
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Fatal(f"{wrong}: {error}; give the JSON file that Google made for the account") from error
        conceal(key.private_key)
        return key

    def _assertion(self, key: Key) -> str:
        now = int((self._time.now() - EPOCH).total_seconds())
        claims = {"iss": key.client_email, "scope": SCOPE, "aud": key.token_uri, "iat": now, "exp": now + _LIFE}
        try:
            return str(self._encode(_signer(key.private_key, key.private_key_id), claims), "ascii")
        except (ValueError, TypeError) as error:
            # Not the error's own words: they may quote the key.
            wrong = f"the service account's key ({self._credentials}) cannot be used"
            raise Fatal(f"{wrong}: its private_key is no RSA key that can be read ({type(error).__name__})") from None

    def _http(self, origin: str) -> Http:
        if origin not in self._https:
            self._https[origin] = Http(origin, self._time, transport=self._transport)
        return self._https[origin]
