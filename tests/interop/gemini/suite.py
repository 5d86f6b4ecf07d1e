"""Gemini Live among strangers: their clients with our server."""

import os
import pathlib
import subprocess
import sys

from aimock import NODE, node
from talk import check

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE / "server.json"
"""What our server answers; see the testkit's documentation of script files."""

WRONG = [
    {"realtimeInput": {"activityStart": {}}},
    {"clientContent": {"turnComplete": True, "voice": "loud"}},
    {"toolResponse": {"functionResponses": [{"id": "x", "response": "sunny"}]}},
]
"""What a scenario sends wrong on purpose; see genai_python.py."""


class GeminiPeers:
    """Each public method is a scenario; it is given an empty folder."""

    def __init__(self, binary, testkit, frames):
        self.binary = binary
        self.testkit = testkit
        self.frames = frames

    def python_genai_holds_a_text_turn_over_tls(self, folder):
        self._python("text", folder)

    def python_genai_holds_an_audio_turn_over_tls(self, folder):
        self._python("audio", folder)

    def python_genai_takes_turns_by_hand_over_tls(self, folder):
        self._python("manual", folder)

    def python_genai_holds_a_tool_turn_over_tls(self, folder):
        self._python("tool", folder)

    def python_genai_interrupts_over_tls(self, folder):
        self._python("interrupt", folder)

    def python_genai_resumes_over_tls(self, folder):
        self._python("resume", folder)

    def python_genai_is_refused_what_the_vendor_refuses(self, folder):
        self._python("refusals", folder, told_wrong=WRONG)

    def npm_genai_holds_a_text_turn_over_tls(self, folder):
        self._node("text", folder)

    def npm_genai_holds_an_audio_turn_over_tls(self, folder):
        self._node("audio", folder)

    def npm_genai_holds_a_tool_turn_over_tls(self, folder):
        self._node("tool", folder)

    def npm_genai_interrupts_over_tls(self, folder):
        self._node("interrupt", folder)

    def npm_genai_resumes_over_tls(self, folder):
        self._node("resume", folder)

    def _python(self, turn, folder, told_wrong=()):
        script = HERE / "genai_python.py"
        with Server(self.testkit, folder, tls=True) as server:
            trust = {"SSL_CERT_FILE": str(server.certificate)}
            self._client([sys.executable, script, server.http, turn], trust)
        self._judge(server, told_wrong)

    def _node(self, turn, folder):
        with Server(self.testkit, folder, tls=True) as server:
            trust = {"NODE_EXTRA_CA_CERTS": str(server.certificate)}
            self._client([node(), NODE / "genai_node.mjs", server.http, turn], trust)
        self._judge(server)

    def _client(self, command, environment):
        done = subprocess.run(
            [str(part) for part in command], env={**os.environ, **environment}, timeout=150,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        check(done.returncode == 0, f"exit status {done.returncode}: {done.stdout[-600:]}")

    def _judge(self, server, told_wrong=()):
        before = len(self.frames.invalid)
        self.frames.judge(server.recording, told_wrong)
        check(len(self.frames.invalid) == before, "; ".join(self.frames.invalid[before:][:3]))


class Server:
    """Our server as a process, with every frame written down."""

    def __init__(self, testkit, folder, tls=False):
        self.recording = folder / "frames.jsonl"
        command = [testkit, "gemini", "--script", SCRIPT, "--port", "0", "--record", self.recording]
        if tls:
            self.certificate, key = folder / "certificate.pem", folder / "key.pem"
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                 "-keyout", key, "-out", self.certificate, "-subj", "/CN=localhost",
                 "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                check=True, stderr=subprocess.DEVNULL,
            )
            command += ["--tls", self.certificate, key]
        self._process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, text=True
        )
        self.url = self._process.stdout.readline().strip()
        check(self.url.startswith("ws"), f"our server does not start: {self.url!r}")
        self.http = self.url.split("/ws/")[0].replace("ws", "http", 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
