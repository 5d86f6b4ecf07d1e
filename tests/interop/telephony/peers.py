#!/usr/bin/env python3
"""Peers that nobody here wrote: Twilio's own signer, and a caller over Media Streams.

    tests/interop/telephony/peers.py target/debug/antiphon

`twilio` signs upgrades and webhooks, which the bridge must take or refuse; `streamdouble` calls the
bridge, interrupts its greeting with a question, must be cleared and hear an answer that a recogniser
understands, and hangs up; also over a line that loses packets, one that jitters, and one that is late.
The last line is "N of N".
"""

import asyncio
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request

import websockets
from twilio.request_validator import RequestValidator

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(HERE.parent)]
import audio  # noqa: E402
from judge import Judge, words  # noqa: E402
from run import NUMBERS  # noqa: E402

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
    """`antiphon bridge`, while it is needed; then the records of its calls."""

    def __init__(self, program, config, **variables):
        self.command = [program, "bridge", "--config", str(config)]
        self.environment = os.environ | variables
        self.records = []

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        # Nobody waits for ever for one that says nothing.
        late = threading.Timer(60, self.process.kill)
        late.start()
        try:
            while "answering calls" not in (said := self.process.stderr.readline()):
                assert said, "the bridge does not run"
        finally:
            late.cancel()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            rest, _ = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            rest, _ = self.process.communicate()
        self.records = [json.loads(line) for line in rest.splitlines()]


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
        assert post(fields, good) == (200, twiml), "an impatient carrier is answered as before"
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


LINES = {
    "is clean": (),
    "loses packets": ("--packet-loss", "0.03", "--chaos-seed", "7"),
    "jitters": ("--jitter", "26", "--chaos-seed", "7"),
    "is late": ("--latency", "13"),
}
"""What may be wrong with streamdouble's line. It waits for the delay of each frame before it looks at the
next one: with more than 20 ms of it in the mean it keeps the time of no call, and sends a second of speech
in several."""


def interrupts(program, folder, port, *flags):
    """streamdouble interrupts the greeting with a question; what it heard is returned as a file."""
    folder = pathlib.Path(folder)
    question, reply = folder / "question.wav", folder / "reply.wav"
    source = audio.flite("what time is it", folder / "wide.wav")
    subprocess.run(["sox", source, "-r", "8000", "-c", "1", question], check=True)
    scenario = folder / "scenario.yaml"
    scenario.write_text(
        f"""
name: a question over the greeting
steps:
  - wait_for: {{event: audio, timeout: 30}}
  - wait: 2.5
  - say: {question}
  - wait_for: {{event: clear, timeout: 20}}
  - expect: clear
  - wait: 12
  - expect: mark
  - expect: no_violations
  - hangup
"""
    )
    config = folder / "bridge.toml"
    text = (ROOT / "examples" / "bridge-offline.toml").read_text()
    text = text.replace(":8787", f":{port}").replace('audiosocket = "127.0.0.1:9092"', "")
    config.write_text(text)
    command = [
        str(pathlib.Path(sys.executable).parent / "streamdouble"),
        "scenario", str(scenario), f"ws://127.0.0.1:{port}/telephony/twilio",
        "--out", str(reply), "--json", "--response-timeout", "30", *flags,
    ]
    with Bridge(program, config) as bridge:
        done = subprocess.run(command, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, f"{done.returncode}: {done.stdout[-4000:]}{done.stderr[-800:]}"
    assert len(bridge.records) == 1, bridge.records
    record = bridge.records[0]
    assert record["reason"] == "caller_hung_up", record["reason"]
    assert record["playout"]["clears"] >= 1, record["playout"]
    assert record["playout"]["marks_heard"] > 0, record["playout"]
    assert record["session"]["interruptions"] >= 1, record["session"]
    assert 0 < record["heard_ms"] < record["generated_ms"], "the greeting was not heard whole"
    wide = folder / "reply-wide.wav"
    subprocess.run(["sox", reply, "-r", "16000", wide], check=True)
    return wide


def understands(judge, reply):
    """What a recogniser understands of it: of the greeting nothing is a number; the answer has the hour."""
    samples, rate = audio.read(reply)
    heard = judge.text(reply)
    assert set(words(heard)) & NUMBERS, f"{len(samples) / rate:.1f} s were heard as {heard!r}"
    return heard


def main():
    program, judge = sys.argv[1], Judge()
    scenarios = {
        "requests signed by Twilio's own library": lambda folder: signed_requests(program, folder),
    } | {
        f"a line that {how}": lambda folder, flags=flags: understands(
            judge, interrupts(program, folder, 8790, *flags)
        )
        for how, flags in LINES.items()
    }
    passed = 0
    for name, scenario in scenarios.items():
        try:
            with tempfile.TemporaryDirectory() as folder:
                print(f"PASS {name}: {scenario(folder) or ''}", flush=True)
            passed += 1
        except (AssertionError, OSError, subprocess.SubprocessError, AttributeError) as error:
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
    print(f"{passed} of {len(scenarios)}")
    sys.exit(0 if passed == len(scenarios) else 1)


if __name__ == "__main__":
    main()
