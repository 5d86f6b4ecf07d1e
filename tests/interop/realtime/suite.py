"""OpenAI Realtime among strangers: their clients with our server, our client with theirs."""

import json
import os
import pathlib
import subprocess
import sys

from aimock import NODE, WEATHER, RecordedMock, node
from talk import Run, check

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE / "server.json"
"""What our server answers; see the testkit's documentation of script files."""

AIMOCK_DEVIATIONS = {
    # Its sessions have fields of the retired beta beside those of today.
    **{(f"session.{done}", f"session.{field}"): None for done in ("created", "updated")
       for field in ("modalities", "temperature", "max_response_output_tokens")},
    # It says in which phase an item is, in each of three events; the types do not know of any.
    ("response.output_item.added", "item.phase"): None,
    ("response.output_item.done", "item.phase"): None,
    ("response.done", "response.output.phase"): None,
    # Its parts are called as in items, not as in events of parts.
    ("response.content_part.added", "part.type"): {"output_text": "text"},
    ("response.content_part.done", "part.type"): {"output_text": "text"},
    # The end of a call's arguments does not name the function.
    ("response.function_call_arguments.done", "name"): {None: "unnamed"},
    # It gives the kind of the error where the status belongs.
    ("response.done", "response.status_details.type"): {"error": "failed"},
}


class RealtimePeers:
    """Each public method is a scenario; it is given an empty folder."""

    def __init__(self, binary, testkit, frames):
        self.binary = binary
        self.testkit = testkit
        self.frames = frames

    def python_openai_holds_a_text_turn(self, folder):
        self._python("openai_python.py", "text", folder)

    def python_openai_holds_an_audio_turn(self, folder):
        self._python("openai_python.py", "audio", folder)

    def python_openai_holds_a_tool_turn(self, folder):
        self._python("openai_python.py", "tool", folder)

    def python_openai_takes_turns_by_hand(self, folder):
        self._python("openai_python.py", "manual", folder)

    def python_openai_interrupts(self, folder):
        self._python("openai_python.py", "interrupt", folder)

    def python_openai_is_refused_unknown_keys_in_a_session_update(self, folder):
        # Sent wrong on purpose.
        self._python("openai_python.py", "unknown_key", folder, told_wrong=["session.update"])

    def python_openai_is_refused_a_second_response_while_one_is_active(self, folder):
        self._python("openai_python.py", "second_response", folder)

    def python_openai_is_refused_what_else_the_vendor_refuses(self, folder):
        self._python("openai_python.py", "refusals", folder)

    def python_agents_hold_a_text_turn(self, folder):
        self._python("agents_python.py", "text", folder)

    def python_agents_hold_an_audio_turn(self, folder):
        self._python("agents_python.py", "audio", folder)

    def python_agents_hold_a_tool_turn(self, folder):
        self._python("agents_python.py", "tool", folder)

    def python_agents_interrupt(self, folder):
        self._python("agents_python.py", "interrupt", folder)

    def npm_openai_holds_a_text_turn_over_tls(self, folder):
        self._node("text", folder)

    def npm_openai_holds_an_audio_turn_over_tls(self, folder):
        self._node("audio", folder)

    def npm_openai_holds_a_tool_turn_over_tls(self, folder):
        self._node("tool", folder)

    def npm_openai_interrupts_over_tls(self, folder):
        self._node("interrupt", folder)

    def our_client_holds_a_voice_turn_with_our_server(self, folder):
        question = HERE.parents[2] / "examples" / "audio" / "time.wav"
        answer = folder / "answer.wav"
        with Server(self.testkit, folder) as server:
            run = self._talk(server.url, "--input", question, "--output", answer)
        check(len(run.of("agent_message")) == 1, run.story())
        check(answer.stat().st_size > 48_000, f"{answer.stat().st_size} bytes of answer")
        self._judge(server)

    def our_client_holds_a_tool_turn_with_our_server(self, folder):
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

    def our_client_is_interrupted_and_says_how_much_was_heard(self, folder):
        speech = HERE.parents[2] / "examples" / "audio" / "time.wav"
        with Server(self.testkit, folder) as server:
            run = self._talk(
                server.url, "--text", "Tell me a long story.", "--barge-in", f"{speech}@1500",
                "--output", folder / "answer.wav",
            )
        story, answer = run.of("agent_message")
        check(story["interrupted"] and not answer["interrupted"], run.story())
        check(len(story["text"]) < 60, f"more was told than heard: {story}")
        (cut,) = server.frames("client", "conversation.item.truncate")
        # The voice over it is heard within half a second; the story is eight seconds long.
        check(1_400 <= cut["audio_end_ms"] <= 3_000, str(cut))
        check(server.frames("server", "conversation.item.truncated"), "it was refused")
        check(not server.frames("client", "response.cancel"), "the server stops by itself")
        self._judge(server)

    def our_client_sends_money_only_as_the_policy_allows(self, folder):
        """Refused above the limit; below it read back, and done after a yes."""
        with Server(self.testkit, folder) as server:
            run = self._talk(
                server.url, "--text", "Send nine hundred euros to Alice.",
                "--text", "Send five euros to Alice.", "--text", "Yes.", "--output", "none",
            )
        (denied,) = run.of("tool_denied")
        (confirm,) = run.of("tool_confirm")
        (call,) = run.of("tool_call")
        check(denied["id"] != call["id"] and call["args"]["amount"] == 5, run.story())
        check(confirm["read_back"] == "Send 5 euros to Alice?", str(confirm))
        outputs = [
            frame["item"]["output"]
            for frame in server.frames("client", "conversation.item.create")
            if frame["item"]["type"] == "function_call_output"
        ]
        check(len(outputs) == 2 and "denied" in outputs[0] and "sent" in outputs[1], str(outputs))
        self._judge(server)

    def example_azure_asks_a_server_that_speaks_its_dialect(self, folder):
        script = {**json.loads(SCRIPT.read_text()), "dialect": "azure"}
        with Server(self.testkit, folder, script=script) as server:
            url = server.url.split("/openai/")[0].removesuffix("/v1/realtime")
            run = example(self.binary, "azure", folder, url, "house-model", "house-ears")
        check(run.startswith("openai: house-model\n"), run)
        check("agent: Yes, it is cold." in run, run)
        (update, *_) = server.frames("client", "session.update")
        ears = update["session"]["audio"]["input"]["transcription"]["model"]
        check(ears == "house-ears", str(update))
        self._judge(server)

    def our_client_holds_text_turns_with_aimock(self, folder):
        with RecordedMock(folder) as mock:
            run = self._talk(mock.url, "--text", "hello", "--text", "goodbye", "--output", "none")
        self._judge_aimock(mock)
        said = [message["text"] for message in run.of("agent_message")]
        check(said == ["Hello! How can I help you today?", "Goodbye!"], run.story())

    def our_client_holds_a_tool_turn_with_aimock(self, folder):
        tools = folder / "tools.json"
        tools.write_text(json.dumps([WEATHER]))
        with RecordedMock(folder) as mock:
            run = self._talk(
                mock.url, "--text", "weather in Paris", "--tools", tools, "--output", "none"
            )
        self._judge_aimock(mock)
        (result,) = run.of("tool_result")
        check(result["outcome"] == "success", run.story())
        check(run.of("agent_message")[-1]["text"] == "It is 18 degrees.", run.story())

    def our_client_outlives_a_slow_aimock(self, folder):
        with RecordedMock(folder, "--chaos-latency", "400", "--latency", "50") as mock:
            run = self._talk(mock.url, "--text", "hello", "--output", "none")
        self._judge_aimock(mock)
        check(len(run.of("agent_message")) == 1, run.story())

    # The mock rolls its chaos flags (drop, malformed, disconnect, ratelimit, latency) for requests
    # of HTTP alone: neither the upgrade nor anything on a socket asks for them, as of 1.43. Over HTTP
    # they are in chat_models.py. On a socket an answer breaks by what its fixture says; a scenario
    # for each, and one that shows that the flags do nothing, which fails once they do.

    def our_client_sees_none_of_the_chaos_that_aimock_has_for_http(self, folder):
        flags = ("drop", "malformed", "disconnect", "ratelimit")
        every = [part for flag in flags for part in (f"--chaos-{flag}", "1")]
        with RecordedMock(folder, *every) as mock:
            run = self._talk(mock.url, "--text", "hello", "--output", "none")
        self._judge_aimock(mock)
        said = [message["text"] for message in run.of("agent_message")]
        check(said == ["Hello! How can I help you today?"], run.story())

    def our_client_says_why_when_aimock_cuts_an_answer_off(self, folder):
        self._breaks(folder, {"chunkSize": 8, "truncateAfterChunks": 2})

    def our_client_says_why_when_aimock_disconnects_in_an_answer(self, folder):
        self._breaks(folder, {"latency": 200, "chunkSize": 4, "disconnectAfterMs": 300})

    def our_client_passes_on_what_aimock_refuses(self, folder):
        refusal = {"error": {"message": "Too many requests.", "type": "rate_limit_error"},
                   "status": 429}
        fixtures = [{"match": {"userMessage": "hello"}, "response": refusal}]
        for said, why in (("hello", "Too many requests."), ("goodbye", "No fixture matched")):
            with RecordedMock(folder, fixtures=fixtures) as mock:
                with self._run(mock.url, "--text", said, "--output", "none") as run:
                    error = run.wait_for("error", 30)
                    status = run.wait(60)
            self._judge_aimock(mock)
            check(why in error["message"], str(error))
            check(status in (0, 1), f"{said}: exit status {status}")

    def _breaks(self, folder, how):
        """An answer of the mock breaks off, each time: a readable reason, and never a hang."""
        hello = {"content": "Hello! How can I help you today?"}
        fixtures = [{"match": {"userMessage": "hello"}, "response": hello, **how}]
        with RecordedMock(folder, fixtures=fixtures) as mock:
            with self._run(mock.url, "--text", "hello", "--output", "none") as run:
                status = run.wait(120)
        self._judge_aimock(mock)
        check(status in (0, 1), f"exit status {status}")
        # Every run ends, so that its end says nothing unless by its reason.
        ended = [end for end in run.of("session_ended") if end["reason"] != "stopped"]
        told = run.of("error") + run.of("reconnecting") + ended
        check(told or run.stderr.strip(), f"nothing was said; {run.story()}")
        check("panicked" not in run.stderr, run.stderr)

    def _python(self, script, turn, folder, told_wrong=()):
        with Server(self.testkit, folder) as server:
            self._client([sys.executable, HERE / script, server.http, turn])
        self._judge(server, told_wrong)

    def _node(self, turn, folder):
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-keyout", key, "-out", certificate, "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
            check=True, stderr=subprocess.DEVNULL,
        )
        with Server(self.testkit, folder, "--tls", certificate, key) as server:
            environment = {**os.environ, "NODE_EXTRA_CA_CERTS": str(certificate)}
            self._client([node(), NODE / "openai_node.mjs", server.http, turn], environment)
        self._judge(server)

    def _client(self, command, environment=None):
        done = subprocess.run(
            [str(part) for part in command], env=environment, timeout=60,
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
        environment = {**os.environ, "OPENAI_API_KEY": "sk-test"}
        command = [self.binary, "talk", "--provider", "openai", "--url", url, "--events", "json"]
        return Run([*command, *arguments], environment)


def example(binary, name, folder, *arguments):
    """What one of the examples prints."""
    keys = ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "GEMINI_API_KEY")
    done = subprocess.run(
        [binary.parent / "examples" / name, *map(str, arguments)],
        env={**os.environ, **{key: "test-key" for key in keys}}, cwd=folder, timeout=60,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    check(done.returncode == 0, f"exit status {done.returncode}: {done.stdout[-600:]}")
    check((folder / "answer.wav").stat().st_size > 4_800, "it said nothing aloud")
    return done.stdout


class Server:
    """Our server as a process, with every frame written down."""

    def __init__(self, testkit, folder, *arguments, script=None):
        self.recording = folder / "frames.jsonl"
        file = SCRIPT
        if script:
            file = folder / "script.json"
            file.write_text(json.dumps(script))
        self._process = subprocess.Popen(
            [testkit, "openai", "--script", file, "--port", "0", "--record", self.recording,
             *map(str, arguments)],
            stdout=subprocess.PIPE, text=True,
        )
        self.url = self._process.stdout.readline().strip()
        check(self.url.startswith("ws"), f"our server does not start: {self.url!r}")
        base = self.url.split("?")[0].removesuffix("/realtime")
        self.http = base.replace("ws", "http", 1)

    def frames(self, side, kind):
        """The recorded frames of a kind."""
        with open(self.recording, encoding="utf-8") as lines:
            entries = [json.loads(line) for line in lines]
        frames = [entry["frame"] for entry in entries if entry["dir"] == side]
        return [frame for frame in frames if frame.get("type") == kind]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
