"""Gemini Live among strangers: their clients with our server, our client with theirs."""

import base64
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import wave

from aimock import NODE, WEATHER, RecordedMock, node
from realtime.suite import example
from talk import Run, check

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE / "server.json"
"""What our server answers; see the testkit's documentation of script files."""
EXAMPLES = HERE.parents[2] / "examples" / "audio"

WRONG = [
    {"realtimeInput": {"activityStart": {}}},
    {"clientContent": {"turnComplete": True, "voice": "loud"}},
    {"toolResponse": {"functionResponses": [{"id": "x", "response": "sunny"}]}},
]
"""What a scenario sends wrong on purpose; see genai_python.py."""

AIMOCK_DEVIATIONS = {
    # It tells an error in a message, for which the vendor's types have no kind.
    ("error", "error"),
}


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

    def python_genai_is_refused_a_handle_whose_socket_is_open(self, folder):
        self._python("handle_in_use", folder)

    def python_genai_is_refused_a_stale_handle(self, folder):
        self._python("stale_handle", folder)

    def python_genai_is_refused_a_tool_answer_that_is_no_object(self, folder):
        self._python("tool_text", folder, told_wrong=WRONG)

    def python_genai_is_refused_media_before_the_setup_is_complete(self, folder):
        self._python("too_early", folder)

    def python_genai_is_refused_what_else_the_vendor_refuses(self, folder):
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

    def our_client_holds_a_voice_turn_with_our_gemini_server(self, folder):
        answer = folder / "answer.wav"
        with Server(self.testkit, folder) as server:
            run = self._talk(
                server.url, "--input", EXAMPLES / "time.wav", "--output", answer
            )
        check(len(run.of("agent_message")) == 1, run.story())
        check(answer.stat().st_size > 20_000, f"{answer.stat().st_size} bytes of answer")
        self._judge(server)

    def our_client_holds_a_tool_turn_with_our_gemini_server(self, folder):
        tools = folder / "tools.json"
        tools.write_text(json.dumps([WEATHER]))
        with Server(self.testkit, folder) as server:
            run = self._talk(
                server.url, "--text", "What is the weather in Paris?", "--tools", tools,
                "--output", "none",
            )
        (call,) = run.of("tool_call")
        check(call["args"] == {"city": "Paris"}, run.story())
        check("18" in run.of("agent_message")[-1]["text"], run.story())
        self._judge(server)

    def our_client_is_interrupted_by_our_gemini_server(self, folder):
        with Server(self.testkit, folder) as server:
            run = self._talk(
                server.url, "--text", "Tell me a long story.",
                "--barge-in", f"{EXAMPLES / 'time.wav'}@1500",
                "--output", folder / "answer.wav",
            )
        story, answer = run.of("agent_message")
        check(story["interrupted"] and not answer["interrupted"], run.story())
        check(len(story["text"]) < 60, f"more was told than heard: {story}")
        self._judge(server)

    def example_gemini_asks_our_server(self, folder):
        with Server(self.testkit, folder) as server:
            said = example(self.binary, "gemini", folder, server.url)
        check(said.startswith("gemini: gemini-3.8-live\n"), said)
        check("agent: Yes, it is cold." in said, said)
        self._judge(server)

    def example_fallback_goes_to_the_second_where_the_first_is_gone(self, folder):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            gone = f"ws://127.0.0.1:{probe.getsockname()[1]}/v1/realtime"
        with Server(self.testkit, folder) as server:
            said = example(self.binary, "fallback", folder, gone, server.url)
        check(said.startswith("gemini: gemini-3.8-live\n"), said)
        check("agent: Yes, it is cold." in said, said)
        self._judge(server)

    def our_client_holds_text_turns_with_aimock_as_gemini(self, folder):
        with RecordedMock(folder) as mock:
            run = self._talk(
                mock.root, "--text", "hello", "--text", "goodbye",
                "--output", "none",
            )
        self._judge_aimock(mock)
        said = [message["text"] for message in run.of("agent_message")]
        check(said == ["Hello! How can I help you today?", "Goodbye!"], run.story())

    def our_client_holds_a_tool_turn_with_aimock_as_gemini(self, folder):
        tools = folder / "tools.json"
        tools.write_text(json.dumps([WEATHER]))
        with RecordedMock(folder) as mock:
            run = self._talk(
                mock.root, "--text", "weather in Paris", "--tools", tools,
                "--output", "none",
            )
        self._judge_aimock(mock)
        (result,) = run.of("tool_result")
        check(result["outcome"] == "success", run.story())
        check(run.of("agent_message")[-1]["text"] == "It is 18 degrees.", run.story())

    def our_client_hears_the_voice_of_aimock_as_gemini(self, folder):
        """A second of a tone in one message, with words beside it and the end of the turn."""
        answer = folder / "answer.wav"
        tone = struct.pack("<240h", *([8_000] * 120 + [-8_000] * 120)) * 100
        voice = {
            "audio": {"b64Json": base64.b64encode(tone).decode(),
                      "contentType": "audio/pcm;rate=24000"},
            "content": "Hello!",
        }
        fixtures = [{"match": {"userMessage": "hello"}, "response": voice}]
        with RecordedMock(folder, fixtures=fixtures) as mock:
            run = self._talk(mock.root, "--text", "hello", "--output", answer)
        self._judge_aimock(mock)
        check(len(run.of("agent_message")) == 1, run.story())
        with wave.open(str(answer)) as file:
            samples = file.readframes(file.getnframes())
        check(tone in samples, "its voice is not in the file, sample by sample")

    def our_client_outlives_a_slow_aimock_as_gemini(self, folder):
        with RecordedMock(folder, "--chaos-latency", "400", "--latency", "50") as mock:
            run = self._talk(mock.root, "--text", "hello", "--output", "none")
        self._judge_aimock(mock)
        check(len(run.of("agent_message")) == 1, run.story())

    def our_client_says_why_when_aimock_breaks_as_gemini(self, folder):
        """Its chaos flags always on, which do nothing on a socket as of 1.43 (see realtime/suite.py),
        and each way its answer may break: a readable reason, no hang."""
        hello = {"content": "Hello! How can I help you today?"}
        match = {"match": {"userMessage": "hello"}}
        breaks = {
            "is cut off": {**match, "response": hello, "chunkSize": 8, "truncateAfterChunks": 2},
            "is disconnected": {**match, "response": hello, "latency": 200, "chunkSize": 4,
                                "disconnectAfterMs": 300},
        }
        flags = ("drop", "malformed", "disconnect", "ratelimit")
        ways = {f"--chaos-{flag}": ((f"--chaos-{flag}", "1"), None) for flag in flags}
        ways |= {what: ((), [fixture]) for what, fixture in breaks.items()}
        for what, (arguments, fixtures) in ways.items():
            options = {"fixtures": fixtures} if fixtures else {}
            with RecordedMock(folder, *arguments, **options) as mock:
                with self._run(mock.root, "--text", "hello", "--output", "none") as run:
                    status = run.wait(120)
            self._judge_aimock(mock)
            check(status in (0, 1), f"{what}: exit status {status}")
            # Every run ends, so that its end says nothing unless by its reason; the flags break nothing.
            ended = [end for end in run.of("session_ended") if end["reason"] != "stopped"]
            told = run.of("error") + run.of("reconnecting") + ended
            said = told or run.stderr.strip() or what not in breaks
            check(said, f"{what}: nothing was said; {run.story()}")
            check("panicked" not in run.stderr, f"{what}: {run.stderr}")
            if not run.of("session_started"):
                lines = run.stderr.strip().splitlines()
                check(status == 1 and len(lines) == 1, f"{what}: {status}, {run.stderr!r}")

    def our_client_passes_on_what_aimock_refuses_as_gemini(self, folder):
        refusal = {"error": {"message": "Too many requests.", "type": "RESOURCE_EXHAUSTED"},
                   "status": 429}
        fixtures = [{"match": {"userMessage": "hello"}, "response": refusal}]
        for said, why in (("hello", "Too many requests."), ("goodbye", "No fixture matched")):
            with RecordedMock(folder, fixtures=fixtures) as mock:
                with self._run(mock.root, "--text", said, "--output", "none") as run:
                    error = run.wait_for("error", 30)
                    # Its turn has failed with that, and nobody waits for anything more.
                    status = run.wait(20)
            self._judge_aimock(mock)
            check(why in error["message"], str(error))
            check(status in (0, 1), f"{said}: exit status {status}")

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

    def _judge_aimock(self, mock):
        before = len(self.frames.invalid)
        counts = self.frames.judge(mock.recording, deviations=AIMOCK_DEVIATIONS)
        check(all(counts.values()), f"frames are missing: {counts}")
        check(len(self.frames.invalid) == before, "; ".join(self.frames.invalid[before:][:12]))

    def _talk(self, url, *arguments):
        with self._run(url, *arguments) as run:
            status = run.wait(60)
        check(status == 0, f"exit status {status}; {run.story()}")
        return run

    def _run(self, url, *arguments):
        environment = {**os.environ, "GEMINI_API_KEY": "test-key"}
        command = [self.binary, "talk", "--provider", "gemini", "--url", url, "--events", "json"]
        return Run([*command, *arguments], environment)


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
