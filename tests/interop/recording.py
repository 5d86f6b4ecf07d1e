"""A recording of what two strangers say to each other over WebSocket, made on the wire between them."""

import asyncio
import json
import socket
import struct
import threading

from websockets.exceptions import ProtocolError
from websockets.frames import OP_BINARY, OP_CONT, OP_TEXT, Frame
from websockets.http11 import Request, Response
from websockets.streams import StreamReader

PIECE = 64 * 1024
PATIENCE_S = 5


class Proxy:
    """Passes the bytes of each connection on to a port as they are, and its end as it came: a close
    frame, an end of stream or a reset. Beside that it reads them, and writes every message to a file
    as our own servers do: JSONL of {"connection": 1, "dir": "client" | "server", "frame": {...}},
    where one that is not JSON stands under "raw"."""

    def __init__(self, port, recording):
        self.recording = recording
        self.faults = []
        """What went wrong in the proxy itself; without any, the recording is whole."""
        self._target = port
        self._connections = 0
        self._running = set()
        self._file = open(recording, "w", encoding="utf-8")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, sock=self._listener)
        )
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self):
        """To be called when one end of each connection is gone, so that nothing more is to come."""
        done = asyncio.run_coroutine_threadsafe(self._settle(), self._loop)
        try:
            done.result(2 * PATIENCE_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
            self._loop.close()
            self._file.close()

    async def _settle(self):
        self._server.close()
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=PATIENCE_S)
            for connection in late:
                connection.cancel()
            if late:
                self.faults.append(f"{len(late)} connections did not end")
                await asyncio.wait(late, timeout=PATIENCE_S)

    async def _serve(self, client_reader, client):
        task = asyncio.current_task()
        self._running.add(task)
        self._connections += 1
        number = self._connections
        try:
            try:
                server_reader, server = await asyncio.wait_for(
                    asyncio.open_connection("127.0.0.1", self._target), PATIENCE_S
                )
            except OSError:  # nobody is there; so the client shall see it
                _reset(client)
                return
            try:
                await asyncio.gather(
                    self._pass(client_reader, server, Tap(True, self._note(number, "client"))),
                    self._pass(server_reader, client, Tap(False, self._note(number, "server"))),
                )
            finally:
                server.close()
        except Exception as error:  # told at the end: nobody awaits this task
            self.faults.append(f"connection {number}: {error!r}")
        finally:
            client.close()
            self._running.discard(task)

    async def _pass(self, source, sink, tap):
        try:
            while piece := await source.read(PIECE):
                tap.read(piece)
                sink.write(piece)
                await sink.drain()
        except ConnectionError:
            # Either end may be the one that has gone.
            _reset(sink)
            return
        if not sink.is_closing():
            try:
                sink.write_eof()
            except OSError:
                pass

    def _note(self, connection, side):
        def note(message):
            entry = {"connection": connection, "dir": side}
            try:
                entry["frame"] = json.loads(message)
            except ValueError:
                entry["raw"] = bytes(message).decode(errors="replace")
            print(json.dumps(entry), file=self._file, flush=True)

        return note


class Tap:
    """Reads one direction of a WebSocket connection; gives each message to `note`."""

    def __init__(self, from_client, note):
        self._from_client = from_client
        self._note = note
        self._reader = StreamReader()
        self._parser = self._parse()
        next(self._parser)

    def read(self, piece):
        if self._parser is None:
            return
        self._reader.feed_data(piece)
        try:
            next(self._parser)
        except StopIteration:
            self._parser = None
        except ProtocolError as error:
            # No frame: it stands in the recording, to be judged, and what follows has no beginning.
            self._note(f"{error}: {piece[:80]!r}".encode())
            self._parser = None

    def _parse(self):
        reader = self._reader
        if self._from_client:
            head = yield from Request.parse(reader.read_line)
        else:
            head = yield from Response.parse(
                reader.read_line, reader.read_exact, reader.read_to_eof
            )
            if head.status_code != 101:
                return
            if "Sec-WebSocket-Extensions" in head.headers:
                raise ProtocolError("frames with extensions are not read")
        message = bytearray()
        while True:
            frame = yield from Frame.parse(reader.read_exact, mask=self._from_client)
            if frame.opcode in (OP_TEXT, OP_BINARY, OP_CONT):
                message += frame.data
                if frame.fin:
                    self._note(bytes(message))
                    message.clear()


def _reset(writer):
    """Ends a connection at once, without a farewell."""
    if peer := writer.get_extra_info("socket"):
        try:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
    writer.transport.abort()
