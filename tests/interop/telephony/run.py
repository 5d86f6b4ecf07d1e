#!/usr/bin/env python3
"""Whole calls through `antiphon bridge` with the offline agent, over each carrier's line.

    tests/interop/telephony/run.py target/debug/antiphon [--only NAME ...]

Each call hears the greeting, asks a question in pieces of 20 ms, 30 ms and ragged ones, hears an answer,
interrupts one and hears silence, keys in a number for a tool, says goodbye, and hears that to its end
before the bridge hangs up; then the record of the call is judged. The last line is "5 of 5".
"""

import argparse
import asyncio
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import audio  # noqa: E402
import lines  # noqa: E402
from lines import RATE  # noqa: E402

CONFIG = HERE.parents[2] / "examples" / "bridge-offline.toml"
QUIET = 0.004
"""Below this level nobody speaks."""


def spoken(text, folder):
    """`text` in a voice that is not ours, as a telephone hears it."""
    path = pathlib.Path(folder) / "spoken.wav"
    audio.flite(text, path)
    samples, rate = audio.read(path)
    # Halved with a short low-pass: enough for a voice.
    assert rate == 2 * RATE, rate
    smooth = np.convolve(samples, [0.25, 0.5, 0.25], mode="same")
    return smooth[::2].astype(np.float32) * 0.8


class Caller:
    def __init__(self, line):
        self.line = line
        self.saying = np.zeros(0, np.float32)
        self.sizes = [160, 160, 240, 160, 240, 171, 149, 160, 80, 320]
        self.done = False

    async def talk(self):
        """Sends what is to be said, and otherwise silence, as a line does: all the time."""
        at, sent = 0, 0
        began = self.line.now()
        while not self.done and self.line.closed_at is None:
            size = self.sizes[at % len(self.sizes)]
            at += 1
            piece = self.saying[:size]
            self.saying = self.saying[size:]
            if len(piece) < size:
                piece = np.concatenate([piece, np.zeros(size - len(piece), np.float32)])
            await self.line.speak(piece)
            sent += size
            await asyncio.sleep(max(0, began + sent / RATE - self.line.now()))

    async def say(self, samples):
        self.saying = samples
        while len(self.saying):
            await asyncio.sleep(0.02)
        return self.line.now()

    async def until_heard(self, since, within, what):
        """When the agent begins to speak."""
        while self.line.now() < since + within:
            await asyncio.sleep(0.05)
            now = self.line.now()
            if self.line.level(max(since, now - 0.25), now) > QUIET:
                return now
            if self.line.closed_at is not None:
                break
        raise AssertionError(f"{what}: nothing was heard within {within} s")

    async def until_silent(self, since, within, what, pause=1.0):
        """When the agent has stopped speaking."""
        while self.line.now() < since + within:
            await asyncio.sleep(0.05)
            now = self.line.now()
            if now - since > pause and self.line.level(now - pause, now) <= QUIET:
                return now - pause
        raise AssertionError(f"{what}: the agent does not stop within {within} s")


async def call(line, address, voices):
    caller = Caller(line)
    await line.open(address)
    tasks = [asyncio.create_task(work) for work in (line.listen(), line.play(), caller.talk())]
    try:
        # The greeting, to its end.
        began = await caller.until_heard(0, 20, "greeting")
        at = await caller.until_silent(began, 30, "greeting")
        # A question, and an answer.
        asked = await caller.say(voices["time"])
        began = await caller.until_heard(asked + 0.1, 20, "the time")
        at = await caller.until_silent(began, 30, "the time")
        # A question whose answer is interrupted.
        asked = await caller.say(voices["time"])
        began = await caller.until_heard(asked + 0.1, 20, "the time again")
        interrupted = line.now()
        speaking = asyncio.create_task(caller.say(voices["time"]))
        at = await caller.until_silent(interrupted, 12, "barge-in", pause=0.3)
        assert at - interrupted < 3, f"silent only {at - interrupted:.1f} s after the interruption"
        if line.clears:
            assert any(when >= interrupted for when in line.clears_at), "no clear"
        asked = await speaking
        began = await caller.until_heard(asked + 0.1, 20, "the answer to the interruption")
        at = await caller.until_silent(began, 30, "the answer to the interruption")
        # Keys for a tool.
        await caller.say(voices["code"])
        await asyncio.sleep(4)
        for key in "4711#":
            await line.press(key)
            await asyncio.sleep(0.1)
        pressed = line.now()
        began = await caller.until_heard(pressed, 20, "the answer to the keys")
        at = await caller.until_silent(began, 30, "the answer to the keys")
        # Goodbye, which is heard before the call ends.
        asked = await caller.say(voices["goodbye"])
        began = await caller.until_heard(asked + 0.1, 20, "goodbye")
        while line.closed_at is None and line.now() < began + 20:
            await asyncio.sleep(0.05)
        assert line.closed_at is not None, "the bridge does not hang up"
        left = [item for item in line.queue if not isinstance(item, str)]
        assert sum(map(len, left)) < RATE * 0.3, "the goodbye was cut off"
    finally:
        caller.done = True
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await line.close()
    for result in results:
        if isinstance(result, Exception):
            raise result


def judge(record, line):
    assert record["carrier"] == line.name, record
    assert record["reason"] == "agent_hung_up", record["reason"]
    assert record["keys"] == 5, record["keys"]
    assert record["session"]["turns"] >= 4, record["session"]["turns"]
    assert record["session"]["interruptions"] >= 1
    assert 0 < record["heard_ms"] < record["generated_ms"], "an interrupted answer is not heard whole"
    assert record["intake"]["dropped"] == 0, record["intake"]
    assert "4711" not in json.dumps(record)


async def all_calls(program, only):
    bridge = subprocess.Popen(
        [program, "bridge", "--config", str(CONFIG)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    passed = tried = 0
    try:
        while "AudioSocket" not in (said := bridge.stderr.readline()):
            assert said, "the bridge does not run"
        with tempfile.TemporaryDirectory() as folder:
            voices = {
                "time": spoken("what time is it", folder),
                "code": spoken("I want to enter a code", folder),
                "goodbye": spoken("goodbye", folder),
            }
        for kind in lines.ALL:
            if only and kind.name not in only:
                continue
            tried += 1
            line = kind()
            address = (
                "127.0.0.1:9092"
                if kind is lines.AudioSocket
                else f"ws://127.0.0.1:8787/telephony/{kind.name}"
            )
            try:
                await call(line, address, voices)
                record = json.loads(await asyncio.to_thread(bridge.stdout.readline))
                judge(record, line)
                passed += 1
                print(f"PASS {line.name}: {record['duration_ms'] / 1000:.1f} s, "
                      f"heard {record['heard_ms']} of {record['generated_ms']} ms", flush=True)
            except (AssertionError, OSError, KeyError, ValueError) as error:
                print(f"FAIL {line.name}: {type(error).__name__}: {error}", flush=True)
                if line.closed_at is not None:
                    print(f"     closed at {line.closed_at:.1f} s with {line.close_code}")
    finally:
        bridge.terminate()
        try:
            rest, errors = bridge.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            bridge.kill()
            rest, errors = bridge.communicate()
        for line in (rest + errors).splitlines():
            print(f"     {line}")
    print(f"{passed} of {tried}")
    return passed == tried


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("program")
    arguments.add_argument("--only", nargs="+", default=[])
    options = arguments.parse_args()
    sys.exit(0 if asyncio.run(all_calls(options.program, options.only)) else 1)


if __name__ == "__main__":
    main()
