#!/usr/bin/env python3
"""Whole calls through `antiphon bridge` with the offline agent, over each carrier's line.

    tests/interop/telephony/run.py target/debug/antiphon [--only NAME ...]

Two calls at a time, since a telephone waits for nobody: the offline agents of five share two cores badly.
Each call hears the greeting, asks a question in pieces of 20 ms, 30 ms and ragged ones, understands the
answer, interrupts one and hears silence, keys in a number for a tool, says goodbye, and hears that to its
end before the bridge hangs up; then the record of the call is judged. What was heard is judged by a
recogniser that is not ours; how long the agent thinks is not. The last line is "5 of 5".
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
sys.path[:0] = [str(HERE), str(HERE.parent)]
import audio  # noqa: E402
import lines  # noqa: E402
from judge import Judge, word_errors, words  # noqa: E402
from lines import RATE  # noqa: E402

CONFIG = HERE.parents[2] / "examples" / "bridge-offline.toml"
AT_ONCE = 2
"""Calls at a time."""
QUIET = 0.004
"""Below this level nobody speaks."""
PATIENCE = 60
"""Seconds for which an answer is waited for."""
GREETING = "Hello. You can ask me for the time, or to convert miles into kilometers."


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
            now = self.line.played()
            if self.line.level(max(since, now - 0.25), now) > QUIET:
                return now
            if self.line.closed_at is not None:
                break
        raise AssertionError(f"{what}: nothing was heard within {within} s")

    async def until_cleared(self, since, within):
        """When the carrier is told to forget what it has."""
        while self.line.now() < since + within:
            if any(when >= since for when in self.line.clears_at):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"nothing was cleared within {within} s")

    async def until_silent(self, since, within, what, pause=2.0):
        """When the agent has stopped speaking. Between two sentences it may have to think."""
        while self.line.now() < since + within:
            await asyncio.sleep(0.05)
            now = self.line.played()
            if now - since > pause and self.line.level(now - pause, now) <= QUIET:
                return now - pause
        raise AssertionError(f"{what}: the agent does not stop within {within} s")


async def call(line, address, voices):
    """Holds a call; returns the stretches of what was heard in it, by name."""
    caller = Caller(line)
    heard = {}
    await line.open(address)
    tasks = [asyncio.create_task(work) for work in (line.listen(), line.play(), caller.talk())]

    async def answer(since, what):
        began = await caller.until_heard(since, PATIENCE, what)
        over = await caller.until_silent(began, PATIENCE, what)
        heard[what] = line.between(began - 0.5, over + 0.5)

    try:
        await answer(0, "greeting")
        asked = await caller.say(voices["time"])
        await answer(asked + 0.1, "the time")
        # A question whose answer, a long one, is interrupted.
        asked = await caller.say(voices["miles"])
        await caller.until_heard(asked + 0.1, PATIENCE, "the kilometers")
        interrupted = line.now()
        asked = await caller.say(voices["time"])
        if line.clears:
            await caller.until_cleared(interrupted, 15)
        # That it was cut off, and not at its end, the record tells.
        await answer(asked + 0.1, "the answer to the interruption")
        # Keys for a tool.
        await caller.say(voices["code"])
        await asyncio.sleep(8)
        for key in "4711#":
            await line.press(key)
            await asyncio.sleep(0.1)
        await answer(line.now(), "the answer to the keys")
        # Goodbye, which is heard before the call ends.
        asked = await caller.say(voices["goodbye"])
        began = await caller.until_heard(asked + 0.1, PATIENCE, "goodbye")
        while line.closed_at is None and line.now() < began + PATIENCE:
            await asyncio.sleep(0.05)
        assert line.closed_at is not None, "the bridge does not hang up"
        left = line.unplayed() / RATE
        assert left <= line.unproven(), f"the goodbye was cut off: {left:.2f} s of it were not heard"
        heard["goodbye"] = line.between(began - 0.5, line.played())
    finally:
        caller.done = True
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await line.close()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return heard


def judge_record(record, line):
    assert record["carrier"] == line.name, record
    assert record["reason"] == "agent_hung_up", record["reason"]
    assert record["keys"] == 5, record["keys"]
    assert record["session"]["turns"] >= 4, record["session"]["turns"]
    assert record["session"]["interruptions"] >= 1
    assert 0 < record["heard_ms"] < record["generated_ms"], "an interrupted answer is not heard whole"
    assert record["intake"]["dropped"] == 0, record["intake"]
    assert "4711" not in json.dumps(record)


def judge_words(judge, heard, folder):
    """What a recogniser that is not ours understands of a call."""
    text = {}
    for what, samples in heard.items():
        path = pathlib.Path(folder) / "heard.wav"
        # It was trained on wider voices; every second sample is between its neighbours.
        wide = np.interp(np.arange(2 * len(samples)) / 2, np.arange(len(samples)), samples)
        audio.write(path, wide, 2 * RATE)
        text[what] = judge.text(path)
    wrong, said = word_errors(GREETING, text["greeting"])
    assert wrong <= 0.35 * said, f"the greeting was heard as {text['greeting']!r}"
    for what in ("the time", "the answer to the interruption"):
        told = set(words(text[what]))
        assert {"it", "its", "time"} & told and told & NUMBERS, f"{what} was heard as {text[what]!r}"
    keys = words(text["the answer to the keys"])
    assert "entered" in keys, f"the keys were heard as {text['the answer to the keys']!r}"
    # In one word or two, with or without an e.
    assert "goodby" in "".join(words(text["goodbye"])), f"heard {text['goodbye']!r}"
    return text


NUMBERS = set(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty".split()
)


async def all_calls(program, only, judge, ports=(8787, 9092)):
    """Holds the calls; returns a line for each, and whether it passed."""
    web, tcp = ports
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "bridge.toml"
        text = CONFIG.read_text().replace(":8787", f":{web}").replace(":9092", f":{tcp}")
        config.write_text(text)
        bridge = subprocess.Popen(
            [program, "bridge", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        told = []
        try:
            while "AudioSocket" not in (said := bridge.stderr.readline()):
                assert said, "the bridge does not run"
                told.append(said)
            voices = {
                "time": spoken("what time is it", folder),
                "miles": spoken("convert twenty six miles into kilometers", folder),
                "code": spoken("I want to enter a code", folder),
                "goodbye": spoken("goodbye", folder),
            }
            all_lines = [kind() for kind in lines.ALL if not only or kind.name in only]

            free = asyncio.Semaphore(AT_ONCE)

            async def one(line, after):
                # Telephones do not ring in the same instant.
                await asyncio.sleep(after)
                socket = line.name == "audiosocket"
                address = f"127.0.0.1:{tcp}" if socket else f"ws://127.0.0.1:{web}/telephony/{line.name}"
                async with free:
                    return await call(line, address, voices)

            calls = [one(line, 3 * index) for index, line in enumerate(all_lines)]
            held = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            bridge.terminate()
            try:
                rest, errors = bridge.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                bridge.kill()
                rest, errors = bridge.communicate()
        records = {record["carrier"]: record for record in map(json.loads, rest.splitlines())}
        results = []
        for line, heard in zip(all_lines, held):
            try:
                if isinstance(heard, BaseException):
                    raise heard
                record = records[line.name]
                judge_record(record, line)
                text = judge_words(judge, heard, folder)
                results.append((True, f"PASS {line.name}: {record['duration_ms'] / 1000:.1f} s, heard "
                                f"{record['heard_ms']} of {record['generated_ms']} ms, "
                                f"{text['the time']!r}"))
            except (AssertionError, OSError, KeyError, ValueError) as error:
                end = f", closed at {line.closed_at:.1f} s with {line.close_code}" if line.closed_at else ""
                results.append((False, f"FAIL {line.name}: {type(error).__name__}: {error}{end}"))
        if not all(passed for passed, _ in results):
            results.append((None, "".join(told) + errors + rest))
        return results


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("program")
    arguments.add_argument("--only", nargs="+", default=[])
    options = arguments.parse_args()
    results = asyncio.run(all_calls(options.program, options.only, Judge()))
    for _, told in results:
        print(told, flush=True)
    tried = [passed for passed, _ in results if passed is not None]
    print(f"{sum(tried)} of {len(tried)}")
    sys.exit(0 if all(tried) else 1)


if __name__ == "__main__":
    main()
