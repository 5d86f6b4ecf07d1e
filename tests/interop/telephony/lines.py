"""Five telephone lines, written from the carriers' pages; they share no code with the bridge.

A line plays what it is sent as a carrier does: in order, at 8,000 samples a second, from a queue that a
clear empties. Of what was heard it keeps the time line, so that what a caller heard can be judged.
"""

import asyncio
import base64
import json
import struct
import time
import uuid

import numpy as np
import websockets

RATE = 8_000


def mulaw_encode(samples):
    """G.711 mu-law of samples from -1 to 1, by its definition."""
    value = np.clip(samples * 32767, -32635, 32635).astype(np.int32)
    sign = np.where(value < 0, 0x80, 0).astype(np.uint8)
    magnitude = np.abs(value) + 132
    exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 7
    mantissa = (magnitude >> (exponent + 3)) & 15
    return (~(sign | (exponent << 4).astype(np.uint8) | mantissa.astype(np.uint8))).astype(np.uint8).tobytes()


def mulaw_decode(data):
    """Samples from -1 to 1 of mu-law."""
    code = ~np.frombuffer(data, np.uint8)
    exponent = (code >> 4) & 7
    magnitude = ((((code & 15).astype(np.int32) << 3) + 132) << exponent) - 132
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.float32) / 32768


def l16_encode(samples):
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


def l16_decode(data):
    return np.frombuffer(data, "<i2").astype(np.float32) / 32768


class Line:
    """What all carriers have in common: a queue that is played, and a caller who listens."""

    encode = staticmethod(mulaw_encode)
    decode = staticmethod(mulaw_decode)
    clears = True
    """The carrier can be told to forget its queue."""

    def __init__(self):
        self.began = time.monotonic()
        self.queue = []
        self._heard = np.zeros(RATE * 60, np.float32)
        self._length = 0
        self.clears_at = []
        self.closed_at = None
        self.close_code = None
        self.timestamp = 0
        self.chunk = 0
        self.lateness = 0.0

    def now(self):
        return time.monotonic() - self.began

    def played(self):
        """Until when the caller has heard something, be it silence."""
        return self._length / RATE

    def between(self, start, end):
        """What was heard from one moment to another."""
        return self.heard[max(0, int(start * RATE)) : max(0, int(end * RATE))].copy()

    def unplayed(self):
        """Samples that came and were not heard."""
        return sum(len(item) for item in self.queue if not isinstance(item, str))

    def unproven(self):
        """Seconds of audio that the bridge cannot know to be unheard when it hangs up: none, where marks
        come back."""
        return 0.0

    @property
    def heard(self):
        """What was heard so far, in samples from -1 to 1."""
        return self._heard[: self._length]

    def hear(self, piece):
        if self._length + len(piece) > len(self._heard):
            self._heard = np.concatenate([self._heard, np.zeros_like(self._heard)])
        self._heard[self._length : self._length + len(piece)] = piece
        self._length += len(piece)

    def take_audio(self, data):
        self.queue.append(self.decode(data))

    def take_mark(self, name):
        self.queue.append(name)

    async def play(self):
        """Plays the queue at its rate, silence where it is empty, and answers marks as they are reached."""
        while True:
            slept = self.now()
            await asyncio.sleep(0.02)
            self.lateness = max(self.lateness, self.now() - slept - 0.02)
            until = int(self.now() * RATE)
            while self._length < until:
                while self.queue and isinstance(self.queue[0], str):
                    await self.answer_mark(self.queue.pop(0))
                due = until - self._length
                if not self.queue:
                    piece = np.zeros(due, np.float32)
                elif len(self.queue[0]) > due:
                    piece, self.queue[0] = self.queue[0][:due], self.queue[0][due:]
                else:
                    piece = self.queue.pop(0)
                self.hear(piece)
            while self.queue and isinstance(self.queue[0], str):
                await self.answer_mark(self.queue.pop(0))

    async def clear(self):
        self.clears_at.append(self.now())
        marks = [item for item in self.queue if isinstance(item, str)]
        self.queue.clear()
        await self.answer_cleared(marks)

    async def answer_cleared(self, marks):
        pass

    def level(self, start, end):
        piece = self.heard[int(start * RATE) : int(end * RATE)]
        return float(np.sqrt((piece**2).mean())) if len(piece) else 0.0


class WebSocketLine(Line):
    headers = {}
    subprotocols = None

    async def open(self, address):
        self.socket = await websockets.connect(
            address,
            additional_headers=self.headers,
            subprotocols=self.subprotocols,
            max_size=None,
            compression=None,
        )
        await self.greet()
        self.began = time.monotonic()

    async def send(self, message):
        try:
            await self.socket.send(json.dumps(message))
        except websockets.ConnectionClosed:
            pass

    async def listen(self):
        try:
            async for message in self.socket:
                await self.message(message)
        except websockets.ConnectionClosed:
            pass
        self.closed_at = self.now()
        self.close_code = self.socket.close_code

    async def close(self):
        await self.socket.close()


class Twilio(WebSocketLine):
    name = "twilio"
    media_format = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
    parameters = {}

    async def greet(self):
        self.stream, self.call = "MZ" + uuid.uuid4().hex, "CA" + uuid.uuid4().hex
        self.sequence = 1
        await self.send({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        start = {
            "accountSid": "AC" + "0" * 32,
            "streamSid": self.stream,
            "callSid": self.call,
            "tracks": ["inbound"],
            "mediaFormat": self.media_format,
            "customParameters": self.parameters,
        }
        await self.event("start", {"start": start})

    async def event(self, event, body):
        message = {"event": event, "sequenceNumber": str(self.sequence), "streamSid": self.stream}
        self.sequence += 1
        await self.send(message | body)

    async def speak(self, samples):
        self.chunk += 1
        media = {
            "track": "inbound",
            "chunk": str(self.chunk),
            "timestamp": str(self.timestamp * 1000 // RATE),
            "payload": base64.b64encode(self.encode(samples)).decode(),
        }
        self.timestamp += len(samples)
        await self.event("media", {"media": media})

    async def press(self, key):
        await self.event("dtmf", {"dtmf": {"track": "inbound_track", "digit": key}})

    async def answer_mark(self, name):
        await self.event("mark", {"mark": {"name": name}})

    async def answer_cleared(self, marks):
        for name in marks:
            await self.answer_mark(name)

    async def message(self, text):
        message = json.loads(text)
        assert message["streamSid"] == self.stream, "another stream"
        match message["event"]:
            case "media":
                assert set(message) == {"event", "streamSid", "media"}, message.keys()
                data = base64.b64decode(message["media"]["payload"], validate=True)
                assert data and len(data) % 160 == 0, f"{len(data)} bytes are no whole frames"
                self.take_audio(data)
            case "mark":
                self.take_mark(message["mark"]["name"])
            case "clear":
                await self.clear()
            case other:
                raise AssertionError(f"Twilio ends a stream for {other!r}")


class SignalWire(Twilio):
    """Twilio's envelopes, and wide band: 16,000 samples a second, which the line halves."""

    name = "signalwire"
    media_format = {"encoding": "audio/x-l16", "sampleRate": 16000, "channels": 1}

    @staticmethod
    def encode(samples):
        return l16_encode(np.repeat(samples, 2))

    @staticmethod
    def decode(data):
        wide = l16_decode(data)
        return (wide[::2] + wide[1::2]) / 2

    async def press(self, key):
        await self.event("dtmf", {"dtmf": {"digit": key, "duration": 120}})


class Telnyx(WebSocketLine):
    """Telnyx: snake case, and messages that overtake each other."""

    name = "telnyx"

    async def greet(self):
        self.stream, self.call = str(uuid.uuid4()), "v3:" + uuid.uuid4().hex
        self.sequence = 1
        self.kept_back = None
        await self.send({"event": "connected", "version": "1.0.0"})
        start = {
            "user_id": str(uuid.uuid4()),
            "call_control_id": self.call,
            "call_session_id": str(uuid.uuid4()),
            "from": "+15550001111",
            "to": "+15550002222",
            "tags": [],
            "client_state": "",
            "custom_parameters": {},
            "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
        }
        await self.event("start", {"start": start})

    async def event(self, event, body):
        message = {"event": event, "sequence_number": str(self.sequence), "stream_id": self.stream}
        self.sequence += 1
        await self.send(message | body)

    async def speak(self, samples):
        self.chunk += 1
        media = {
            "track": "inbound",
            "chunk": str(self.chunk),
            "timestamp": str(self.timestamp * 1000 // RATE),
            "payload": base64.b64encode(self.encode(samples)).decode(),
        }
        self.timestamp += len(samples)
        # Each tenth piece comes after the one behind it.
        if self.chunk % 10 == 0:
            self.kept_back = media
            return
        await self.event("media", {"media": media})
        if self.kept_back:
            late, self.kept_back = self.kept_back, None
            await self.event("media", {"media": late})

    async def press(self, key):
        await self.event("dtmf", {"occurred_at": "2026-11-30T12:00:00Z", "dtmf": {"digit": key}})

    async def answer_mark(self, name):
        await self.event("mark", {"mark": {"name": name}})

    async def answer_cleared(self, marks):
        for name in marks:
            await self.answer_mark(name)

    async def message(self, text):
        message = json.loads(text)
        match message["event"]:
            case "media":
                data = base64.b64decode(message["media"]["payload"], validate=True)
                assert 160 <= len(data) <= 240_000, "20 ms to 30 s"
                self.take_audio(data)
            case "mark":
                self.take_mark(message["mark"]["name"])
            case "clear":
                await self.clear()
            case other:
                raise AssertionError(f"Telnyx has no {other!r}")


class Asterisk(WebSocketLine):
    """chan_websocket with JSON control: marks behind flushed audio are never answered."""

    name = "asterisk"
    subprotocols = ["media"]

    async def greet(self):
        assert self.socket.subprotocol == "media"
        start = {
            "event": "MEDIA_START",
            "connection_id": uuid.uuid4().hex,
            "channel": "WebSocket/agent/0x1",
            "channel_id": f"{int(time.time())}.1",
            "format": "ulaw",
            "optimal_frame_size": 160,
            "ptime": 20,
            "channel_variables": {},
        }
        # Under load some audio comes before it.
        await self.socket.send(self.encode(np.zeros(160)))
        await self.send(start)

    async def speak(self, samples):
        try:
            await self.socket.send(self.encode(samples))
        except websockets.ConnectionClosed:
            pass

    async def press(self, key):
        await self.send({"event": "DTMF_END", "channel_id": "1", "digit": key})

    async def answer_mark(self, name):
        await self.send({"event": "MEDIA_MARK_PROCESSED", "channel_id": "1", "correlation_id": name})

    async def message(self, message):
        if isinstance(message, bytes):
            assert len(message) <= 65_500 and len(message) % 160 == 0, len(message)
            self.take_audio(message)
            return
        assert len(message) <= 128, "Asterisk drops it"
        command = json.loads(message)
        match command["command"]:
            case "MARK_MEDIA":
                self.take_mark(command["correlation_id"])
            case "FLUSH_MEDIA":
                await self.clear()
            case "HANGUP":
                await self.socket.close()
            case other:
                raise AssertionError(f"chan_websocket has no {other!r}")


class AudioSocket(Line):
    """AudioSocket: packets over TCP; no clear and no marks, so what comes late is heard late."""

    name = "audiosocket"
    encode = staticmethod(l16_encode)
    decode = staticmethod(l16_decode)
    clears = False

    async def open(self, address):
        host, port = address.rsplit(":", 1)
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        self.write(0x01, uuid.uuid4().bytes)
        self.began = time.monotonic()

    def write(self, kind, body):
        try:
            self.writer.write(struct.pack(">BH", kind, len(body)) + body)
        except ConnectionError:
            pass

    async def speak(self, samples):
        self.write(0x10, self.encode(samples))

    async def press(self, key):
        self.write(0x03, key.encode())

    async def answer_mark(self, name):
        raise AssertionError("there are no marks")

    def unproven(self):
        # The bridge goes by the clock: what a real line is late, and what this program was.
        return 0.3 + self.lateness

    async def listen(self):
        try:
            while True:
                kind, length = struct.unpack(">BH", await self.reader.readexactly(3))
                body = await self.reader.readexactly(length)
                if kind == 0x00:
                    break
                assert kind == 0x10 and length == 320, f"Asterisk drops the call for {kind:#x} {length}"
                self.take_audio(body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        self.closed_at = self.now()
        self.writer.close()

    async def close(self):
        self.write(0x00, b"")
        self.writer.close()


ALL = [Twilio, SignalWire, Telnyx, AudioSocket, Asterisk]
