"""A TCP proxy that misbehaves: `python -m chaos.proxy TARGET_PORT PORT_FILE`, told what to do on standard input.

    freeze   go on accepting and acknowledging, and forward nothing in either direction
    go       forward again what was kept, and everything after it
    cut      break every connection; new ones are forwarded
    refuse   break every connection, and every new one
    delay N  forward everything N seconds later

Each order is answered with one line when it is in force.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

HOST = "127.0.0.1"


class Proxy:
    def __init__(self, target: int) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._delay = 0.0
        self._writers: set[asyncio.StreamWriter] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self._writers.add(writer)
        server: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()
            answers, server = await asyncio.open_connection(HOST, self._target)
            self._writers.add(server)
            there = asyncio.create_task(self._pump(reader, server))
            back = asyncio.create_task(self._pump(answers, writer))
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0.05)  # what the other side still has to say
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in (writer, server):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # While it is frozen the stream goes on reading into its own buffer: the sender sees everything acknowledged.
        while data := await reader.read(65_536):
            await self._open.wait()
            if self._delay:
                await asyncio.sleep(self._delay)
            writer.write(data)
            await writer.drain()

    def order(self, words: list[str]) -> None:
        what = words[0]
        if what == "freeze":
            self._open.clear()
        elif what == "go":
            self._refusing = False
            self._open.set()
        elif what in {"cut", "refuse"}:
            self._refusing = what == "refuse"
            for writer in list(self._writers):
                writer.transport.abort()
            self._open.set()
        elif what == "delay":
            self._delay = float(words[1])
        else:
            raise ValueError(what)


async def serve(target: int, port_file: Path) -> None:
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.accept, HOST, 0, backlog=1024)
    port_file.with_suffix(".new").write_text(str(server.sockets[0].getsockname()[1]))
    port_file.with_suffix(".new").rename(port_file)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        proxy.order(line.decode().split())
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
