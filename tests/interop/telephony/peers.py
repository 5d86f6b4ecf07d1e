#!/usr/bin/env python3
"""Peers that nobody here wrote: Twilio's own signer, and a caller over Media Streams.

    tests/interop/telephony/peers.py target/debug/antiphon

`twilio` signs upgrades and webhooks, which the bridge must take or refuse; `streamdouble` calls the
bridge, speaks a question, must hear an answer and echoes marks, also over a line that loses packets.
Needs requirements.txt beside this file. The last line is "N of N".
"""

import asyncio
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

import websockets
from twilio.request_validator import RequestValidator

ROOT = pathlib.Path(__file__).resolve().parents[3]
ORIGIN = "calls.example.com"
TOKEN = "an auth token for tests"
CONFIG = f"""
listen = "127.0.0.1:8788"
public_url = "https://{ORIGIN}"
token_secret_env = "BRIDGE_TOKENS"

[carriers.twilio]
verify = "signature_and_token"
auth_token_env = "TWILIO_AUTH_TOKEN"

[agent]
provider = "offline"
"""


class Bridge:
    """`antiphon bridge`, while it is needed."""

    def __init__(self, program, config, **variables):
        self.command = [program, "bridge", "--config", str(config)]
        self.environment = os.environ | variables

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        while "answering calls" not in (said := self.process.stderr.readline()):
            assert said, "the bridge does not run"
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.rest = self.process.communicate(timeout=60)[0]

    def record(self):
        return json.loads(self.process.stdout.readline())


def post(fields, signature):
    request = urllib.request.Request(
        "http://127.0.0.1:8788/telephony/twilio/answer",
        data=urllib.parse.urlencode(fields).encode(),
        headers={"X-Twilio-Signature": signature},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


async def upgrade(signature, parameters=None):
    """The status of the upgrade, or the code of the close after a start with these parameters."""
    headers = {"X-Twilio-Signature": signature} if signature else {}
    url = "ws://127.0.0.1:8788/telephony/twilio"
    try:
        async with websockets.connect(url, additional_headers=headers) as socket:
            if parameters is None:
                return 101
            start = {
                "event": "start",
                "streamSid": "MZ1",
                "start": {
                    "streamSid": "MZ1",
                    "accountSid": "AC1",
                    "callSid": "CA1",
                    "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                    "customParameters": parameters,
                },
            }
            await socket.send(json.dumps(start))
            try:
                await asyncio.wait_for(socket.recv(), 2)
            except TimeoutError:
                return 101
            except websockets.ConnectionClosed:
                return socket.close_code
            return 101
    except websockets.InvalidStatus as error:
        return error.response.status_code


def signed_requests(program, folder):
    validator = RequestValidator(TOKEN)
    config = pathlib.Path(folder) / "bridge.toml"
    config.write_text(CONFIG)
    fields = {"CallSid": "CA1", "From": "+14158675309", "To": "+18005551212", "Caller": "A & B <c>"}
    with Bridge(program, config, TWILIO_AUTH_TOKEN=TOKEN, BRIDGE_TOKENS="0123456789abcdef0123"):
        hook = f"https://{ORIGIN}/telephony/twilio/answer"
        good = validator.compute_signature(hook, fields)
        status, twiml = post(fields, good)
        assert status == 200, status
        assert post(fields | {"To": "+19005551212"}, good)[0] == 403, "another body"
        assert post(fields, validator.compute_signature(hook + "/", fields))[0] == 403, "another URL"
        assert f'url="wss://{ORIGIN}/telephony/twilio"' in twiml, twiml
        token = re.search(r'name="token" value="([^"]+)"', twiml).group(1)
        stream = f"wss://{ORIGIN}/telephony/twilio"
        good = validator.compute_signature(stream, {})
        wrong = RequestValidator("another").compute_signature(stream, {})
        run = lambda *arguments: asyncio.run(upgrade(*arguments))
        assert run(None) == 403
        assert run(wrong) == 403
        assert run(validator.compute_signature(f"https://{ORIGIN}/telephony/twilio", {})) == 403
        assert run(good) == 101
        assert run(good, {}) == 1008, "no token"
        assert run(good, {"token": token}) == 101
        assert run(good, {"token": token}) == 1008, "a token is good once"


def calls(program, folder, *flags):
    reply = pathlib.Path(folder) / "reply.wav"
    question = pathlib.Path(folder) / "question.wav"
    source = ROOT / "examples" / "audio" / "time.wav"
    # The greeting is over by then.
    subprocess.run(["sox", source, "-r", "8000", "-c", "1", question, "pad", "6", "1"], check=True)
    command = [
        str(pathlib.Path(sys.executable).parent / "streamdouble"),
        "call",
        "ws://127.0.0.1:8787/telephony/twilio",
        "--audio", str(question),
        "--out", str(reply),
        "--json",
        "--response-timeout", "20",
        *flags,
    ]
    with Bridge(program, ROOT / "examples" / "bridge-offline.toml") as bridge:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{done.returncode}: {done.stdout[-800:]}{done.stderr[-800:]}"
        record = bridge.record()
    assert record["reason"] == "caller_hung_up", record["reason"]
    assert record["playout"]["marks_heard"] > 0, record["playout"]
    assert record["heard_ms"] > 1_000, record["heard_ms"]
    assert reply.stat().st_size > 8_000, "no voice"


def main():
    program = sys.argv[1]
    scenarios = {
        "requests signed by Twilio's own library": signed_requests,
        "a call": calls,
        "a call over a bad line": lambda *where: calls(
            *where, "--packet-loss", "0.03", "--jitter", "40", "--latency", "120", "--chaos-seed", "7"
        ),
    }
    passed = 0
    for name, scenario in scenarios.items():
        try:
            with tempfile.TemporaryDirectory() as folder:
                scenario(program, folder)
            print(f"PASS {name}", flush=True)
            passed += 1
        except (AssertionError, OSError, subprocess.SubprocessError, AttributeError) as error:
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
    print(f"{passed} of {len(scenarios)}")
    sys.exit(0 if passed == len(scenarios) else 1)


if __name__ == "__main__":
    main()
