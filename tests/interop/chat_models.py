"""The offline ears and mouth around language models of a server that is not ours."""

import json
import os
import pathlib
import socket
import threading
import time

from aimock import WEATHER, Mock
from talk import Run, check

SPEECH = pathlib.Path(__file__).resolve().parents[2] / "examples" / "audio" / "time.wav"

FIXTURES = [
    {"match": {"userMessage": "weather in Paris", "hasToolResult": True},
     "response": {"content": "It is 18 degrees."}},
    {"match": {"userMessage": "weather in Paris"},
     "response": {"content": "Let me look.", "toolCalls": [
         {"id": "call_weather", "name": "get_weather", "arguments": {"city": "Paris"}}]}},
    {"match": {"userMessage": "story"},
     "response": {"content": "Once upon a time there was a king. " * 60}},
    {"match": {"userMessage": "hello"}, "response": {"content": "Hello!"}},
]


class ChatModels:
    """Each public method is a scenario; it is given an empty folder."""

    def __init__(self, binary):
        self.binary = binary

    def cascade_holds_a_tool_round_with_openai_of_aimock(self, folder):
        self._tool_round(folder, "openai", "/v1")

    def cascade_holds_a_tool_round_with_anthropic_of_aimock(self, folder):
        self._tool_round(folder, "anthropic", "/v1")

    def cascade_holds_a_tool_round_with_gemini_of_aimock(self, folder):
        self._tool_round(folder, "gemini", "/v1beta")

    def cascade_hangs_up_on_a_model_whose_answer_is_interrupted(self, folder):
        """The server, which goes on for minutes, is left within a second."""
        mock = Mock(folder, "--latency", "100", "--chunk-size", "12", fixtures=FIXTURES)
        with mock, Relay(mock.port) as relay:
            run = self._run(
                "openai", relay.port, "/v1", "--text", "Tell me a story.",
                "--barge-in", f"{SPEECH}@1500", "--output", folder / "answer.wav",
            )
            with run:
                run.wait_for("agent_message", 60, interrupted=True)
                heard = time.monotonic()
                hung_up = relay.first_hung_up.wait(10) and relay.hung_up_at
                check(run.wait(60) == 0, run.story())
        check(hung_up, "the connection stayed open")
        check(not relay.server_was_done, "the server had said all before")
        check(hung_up - heard < 1, f"{hung_up - heard:.2f} s after the interruption")

    def cascade_says_why_when_aimock_breaks(self, folder):
        """Each fault of the mock, always on: one readable reason, never a hang."""
        for chaos in ("drop", "malformed", "disconnect", "ratelimit"):
            with Mock(folder, f"--chaos-{chaos}", "1", fixtures=FIXTURES) as mock:
                run = self._run("openai", mock.port, "/v1", "--text", "hello", "--output", "none")
                with run:
                    status = run.wait(60)
            check(status in (0, 1), f"{chaos}: exit status {status}")
            told = run.of("error") + run.of("session_ended")
            check(told or run.stderr.strip(), f"{chaos}: nothing was said; {run.story()}")
            check("panicked" not in run.stderr, f"{chaos}: {run.stderr}")

    def _tool_round(self, folder, api, path):
        tools = folder / "tools.json"
        tools.write_text(json.dumps([WEATHER]))
        with Mock(folder, "--chunk-size", "5", fixtures=FIXTURES) as mock:
            run = self._run(
                api, mock.port, path, "--text", "weather in Paris", "--tools", tools,
                "--output", "none",
            )
            with run:
                status = run.wait(60)
        check(status == 0, f"exit status {status}; {run.story()}")
        (call,) = run.of("tool_call")
        (result,) = run.of("tool_result")
        check(call["args"] == {"city": "Paris"} and result["outcome"] == "success", run.story())
        check(run.of("agent_message")[-1]["text"] == "It is 18 degrees.", run.story())

    def _run(self, api, port, path, *arguments):
        environment = {**os.environ}
        for vendor in ("OPENAI", "ANTHROPIC", "GEMINI"):
            environment[f"{vendor}_API_KEY"] = "sk-test"
        command = [
            self.binary, "talk", "--provider", "cascade", "--chat-api", api, "--chat-model",
            "mock-model", "--chat-url", f"http://127.0.0.1:{port}{path}", "--events", "json",
        ]
        return Run([*command, *arguments], environment)


class Relay:
    """Passes bytes between a client and a server, and notes who hangs up first."""

    def __init__(self, server):
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.first_hung_up = threading.Event()
        self.hung_up_at = None
        self.server_was_done = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server))
            for pair in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source, target, from_client):
        try:
            while data := source.recv(65536):
                if not from_client and data.endswith(b"0\r\n\r\n"):
                    self.server_was_done |= not self.first_hung_up.is_set()
                target.sendall(data)
        except OSError:
            pass
        if from_client and not self.first_hung_up.is_set():
            self.hung_up_at = time.monotonic()
            self.first_hung_up.set()
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()
