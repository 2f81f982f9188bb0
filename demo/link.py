"""A link with a rate, where tc shapes none: a proxy of TCP. All its connections together give so many bytes a second.

python -m demo.link RATE FROM TO        bytes a second; ADDRESS:PORT where it listens, and where it connects to

It prints "listening". Bytes that clients send have no limit, as on a link that tc shapes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

CHUNK = 64 * 1024
BURST = 256 * 1024  # bytes that may pass at once after a pause, as that of tc in demo.hosts


class Link:
    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0  # when the bytes that were let through so far have passed

    async def take(self, count: int) -> None:
        """Waits until so many bytes may pass. Who comes first goes first."""
        now = asyncio.get_running_loop().time()
        self._free = max(self._free, now - BURST / self._rate) + count / self._rate
        await asyncio.sleep(max(self._free - now, 0))

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, limited: bool) -> None:
        while data := await source.read(CHUNK):
            if limited:
                await self.take(len(data))
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()

    async def serve(self, listen: str, to: str) -> None:
        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):  # an end that breaks off ends the other one
                there, back = await asyncio.open_connection(*split(to), limit=CHUNK)
                try:
                    await asyncio.gather(self._pass(reader, back, False), self._pass(there, writer, True))
                finally:
                    back.transport.abort()
            writer.close()

        server = await asyncio.start_server(connect, *split(listen), limit=CHUNK, backlog=128)
        print("listening", flush=True)
        async with server:
            await server.serve_forever()


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    asyncio.run(Link(float(sys.argv[1])).serve(*sys.argv[2:]))
