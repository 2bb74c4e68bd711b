"""The bodies of answers: of one content encoding at most, and never larger than was agreed, decompressed too."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

_PIECE = 1 << 18
_RATIO_FROM = 1 << 24  # below it any ratio is harmless
_GZIP = 16 + zlib.MAX_WBITS


class BadBody(Exception):
    """The body breaks off, is damaged, or is encoded in a way that was not asked for."""


class TooLarge(Exception):
    """The body is larger than was agreed."""


class Unpacker:
    """Gives the text of a body piece by piece, each of bounded size. `ratio` is how often it may outgrow what came.

    Only gzip is known, since nothing else is asked for: one layer of it, and nothing after its end.
    """

    def __init__(self, encoding: str, most: int, ratio: int | None = None) -> None:
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip"):
            raise BadBody(f"the answer is encoded as {name[:40]!r}; only one layer of gzip is read")
        self._stream = None if name in ("", "identity") else zlib.decompressobj(_GZIP)
        self._most = most
        self._ratio = ratio
        self._received = self._made = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The text in a piece. Raises BadBody or TooLarge."""
        self._received += len(piece)
        if self._stream is None:
            self._count(len(piece))
            yield piece
            return
        text = b""
        # The input may be spent and its text not yet.
        while piece or (len(text) == _PIECE and not self._stream.eof):
            if self._stream.eof:
                raise BadBody("something follows the end of the compressed answer")
            try:
                text = self._stream.decompress(piece, _PIECE)
            except zlib.error as error:
                raise BadBody(f"the compressed answer is damaged: {error}") from error
            piece = self._stream.unused_data or self._stream.unconsumed_tail
            self._count(len(text))
            yield text

    def close(self) -> None:
        """The body has ended; raises BadBody when it should not have."""
        if self._stream is not None and self._received and not self._stream.eof:
            raise BadBody(f"the compressed answer breaks off after {self._received:,} bytes")

    def _count(self, size: int) -> None:
        self._made += size
        if self._made > self._most:
            raise TooLarge(f"the answer is larger than {self._most:,} bytes, the limit of an answer")
        if self._ratio is not None and self._made > max(_RATIO_FROM, self._received * self._ratio):
            raise TooLarge(f"{self._received:,} bytes became {self._made:,}: more than {self._ratio} times as much")
