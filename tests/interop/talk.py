"""Running `antiphon talk` as a user does, and keeping score."""

import json
import pathlib
import queue
import signal
import subprocess
import tempfile
import threading
import time
import traceback


class Failure(Exception):
    """What a scenario expected and did not get."""


def check(holds, otherwise):
    if not holds:
        raise Failure(otherwise)


class Run:
    """A running program whose standard output is events, one JSON object per line."""

    def __init__(self, command, env=None):
        self.started = time.monotonic()
        self.events = []
        self.first_event_after = None
        self._queue = queue.Queue()
        self._stderr = []
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_events(self):
        for line in self._process.stdout:
            if self.first_event_after is None:
                self.first_event_after = time.monotonic() - self.started
            try:
                event = json.loads(line)
            except ValueError:
                event = {"type": "no_json", "line": line}
            self._queue.put(event)
        self._queue.put(None)

    def _read_errors(self):
        for line in self._process.stderr:
            self._stderr.append(line)

    @property
    def stderr(self):
        return "".join(self._stderr)

    def wait_for(self, kind, timeout, **fields):
        """The next event of a kind (and with these fields); those before it are kept too."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                event = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Failure(f"no {kind} within {timeout} s; {self.story()}") from None
            if event is None:
                self._queue.put(None)
                raise Failure(f"it ended before {kind}; {self.story()}")
            self.events.append(event)
            if event["type"] == kind and all(event.get(k) == v for k, v in fields.items()):
                return event

    def wait(self, timeout):
        """The exit status; all events are in `events` then."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Failure(f"still running after {timeout} s; {self.story()}") from None
        for reader in self._readers:
            reader.join(5)
        while not self._queue.empty():
            event = self._queue.get()
            if event is not None:
                self.events.append(event)
        return status

    def interrupt(self):
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def of(self, kind, **fields):
        """The events of a kind (and with these fields)."""
        return [
            event
            for event in self.events
            if event["type"] == kind and all(event.get(k) == v for k, v in fields.items())
        ]

    def story(self):
        """What happened, for a failure's line."""
        kinds = ("user_message", "agent_message", "tool_call", "tool_result", "tool_denied",
                 "tool_confirm", "timer", "error", "session_ended", "no_json")
        told = [
            {k: v for k, v in event.items() if k not in ("epoch", "turn", "id", "stats")}
            for event in self.events
            if event["type"] in kinds
        ]
        return f"events {json.dumps(told)}, standard error {self.stderr[-400:]!r}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


class Scenarios:
    """Runs scenarios and prints PASS or FAIL for each."""

    def __init__(self, only=()):
        self.count = 0
        self.failed = 0
        self.skipped = 0
        self._only = only

    def run_all(self, suite):
        """Each public method of `suite`, in the order of its class; it is given a folder."""
        for name, scenario in vars(type(suite)).items():
            if name.startswith("_") or not callable(scenario):
                continue
            if self._only and not any(part in name for part in self._only):
                self.skipped += 1
                continue
            self.run(name, lambda folder, scenario=scenario: scenario(suite, folder))

    def run(self, name, scenario):
        self.count += 1
        started = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="antiphon-") as folder:
                scenario(pathlib.Path(folder))
        except Failure as failure:
            self._fail(name, str(failure), started)
        except Exception:  # a fault of the scenario is a failure, not the end of the suite
            self._fail(name, traceback.format_exc(), started)
        else:
            print(f"PASS {name} ({time.monotonic() - started:.1f} s)", flush=True)

    def _fail(self, name, why, started):
        self.failed += 1
        print(f"FAIL {name} ({time.monotonic() - started:.1f} s): {why}", flush=True)
