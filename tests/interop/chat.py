"""`antiphon chat` as somebody writes with it."""

import json
import os
import signal
import subprocess
import threading

from aimock import WEATHER, Mock
from chat_models import FIXTURES
from talk import check


class Chat:
    """Each public method is a scenario; it is given an empty folder."""

    def __init__(self, binary):
        self.binary = binary

    def chat_with_echo_repeats_each_line(self, _folder):
        events = self._chat(["--agent", "echo"], "Hello there.\n\n  Again \nlast without an end")
        check(texts(events) == ["Hello there.", "Again", "last without an end"], str(events))

    def chat_asks_before_it_sends_money(self, _folder):
        """What the policy wants confirmed is asked; yes sends, no does not; too much is refused."""
        lines = "Send 5 euros to Charlie.\nyes\nSend 6 euros to Alice.\nno\n"
        events = self._chat([], lines + "Send nine hundred euros to Alice.\n")
        questions = [event["question"] for event in events if event["type"] == "question"]
        check(questions == ["Send 5 euros to Charlie?", "Send 6 euros to Alice?"], str(events))
        outputs = [event["output"] for event in events if event["type"] == "tool_result"]
        check(len(outputs) == 3 and outputs[0].get("sent") is True, str(outputs))
        check(all("error" in output for output in outputs[1:]), str(outputs))

    def chat_for_people_says_the_same(self, _folder):
        lines = "Send 5 euros to Charlie.\nyes\nConvert five miles to kilometers.\n"
        done = self._run([], lines)
        check(done.returncode == 0, done.stderr)
        check("? Send 5 euros to Charlie? (yes or no)" in done.stdout, done.stdout)
        check("5 miles are 8.05 kilometers." in done.stdout, done.stdout)

    def chat_holds_a_tool_round_with_aimock(self, folder):
        tools = folder / "tools.json"
        tools.write_text(json.dumps([WEATHER]))
        with Mock(folder, "--chunk-size", "5", fixtures=FIXTURES) as mock:
            events = self._chat([*self._model(mock), "--tools", tools], "weather in Paris\nhello\n")
        check(texts(events) == ["It is 18 degrees.", "Hello!"], str(events))
        pieces = [event["text"] for event in events if event["type"] == "chunk"]
        check(len(pieces) > 4, f"nothing streamed: {pieces}")

    def chat_follows_a_prompt_file(self, folder):
        """What the file says reaches the model; the tools that it does not name are not offered."""
        prompts = folder / "prompts"
        prompts.mkdir()
        (prompts / "pirate.prompt").write_text(
            '---\ndescription: A pirate.\ntools: [get_weather]\ninput:\n  default:\n    sea: Baltic\n'
            '---\n{{role "system"}}You sail the {{sea}} sea.{{history}}\n'
        )
        tools = folder / "tools.json"
        tools.write_text(json.dumps([WEATHER]))
        with Mock(folder, fixtures=FIXTURES) as mock:
            arguments = ["--agent", "pirate", "--prompts", prompts, "--tools", tools]
            events = self._chat([*arguments, *self._model(mock)], "weather in Paris\n")
            asked = mock.journal()[0]["body"]
        check(texts(events) == ["It is 18 degrees."], str(events))
        check(asked["messages"][0]["content"] == "You sail the Baltic sea.", str(asked))
        offered = [tool["function"]["name"] for tool in asked["tools"]]
        check(offered == ["get_weather"], str(offered))

    def chat_goes_on_after_a_turn_that_failed(self, folder):
        with Mock(folder, "--chaos-ratelimit", "1", fixtures=FIXTURES) as mock:
            events = self._chat(self._model(mock), "hello\nhello\n")
        errors = [event for event in events if event["type"] == "error"]
        check([error["status"] for error in errors] == ["RESOURCE_EXHAUSTED"] * 2, str(events))

    def chat_is_stopped_in_an_answer_and_then_for_good(self, folder):
        """Ctrl-C ends the answer under way; the next one the program."""
        mock = Mock(folder, "--latency", "100", "--chunk-size", "12", fixtures=FIXTURES)
        with mock:
            process = self._start([*self._model(mock)])
            deadline = threading.Timer(60, process.kill)
            deadline.start()
            process.stdin.write("Tell me a story.\n")
            process.stdin.flush()
            kinds, stopped = [], None
            for line in process.stdout:
                event = json.loads(line)
                kinds.append(event["type"])
                if event["type"] == "chunk" and kinds.count("chunk") == 3:
                    process.send_signal(signal.SIGINT)
                if event["type"] == "agent_message":
                    stopped = event["finish_reason"]
                    process.send_signal(signal.SIGINT)
            status = process.wait(10)
            deadline.cancel()
        check(stopped == "aborted" and status == 0, f"{stopped}, {status}: {kinds}")
        check(kinds.count("chunk") < 60, f"it went on: {kinds}")

    def chat_names_what_is_wrong(self, folder):
        broken = folder / "tools.json"
        broken.write_text("[{")
        cases = [
            (["--agent", "nobody"], "nobody"),
            (["--agent", "assistant"], "--chat-model"),
            (["--chat-model", "m", "--chat-url", "localhost:1"], "localhost:1"),
            (["--tools", broken], "tools.json"),
        ]
        for arguments, word in cases:
            done = self._run(arguments, "hello\n")
            lines = done.stderr.strip().splitlines()
            check(done.returncode == 2 and len(lines) == 1, f"{arguments}: {done.stderr!r}")
            check(word in lines[0], f"{arguments}: {lines[0]}")

    def _model(self, mock):
        return ["--chat-model", "mock-model", "--chat-url", f"http://127.0.0.1:{mock.port}/v1"]

    def _chat(self, arguments, lines):
        done = self._run([*arguments, "--events", "json"], lines)
        check(done.returncode == 0, f"exit status {done.returncode}: {done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _run(self, arguments, lines):
        process = self._start(arguments, json_events=False)
        try:
            out, err = process.communicate(lines, timeout=60)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def _start(self, arguments, json_events=True):
        command = [self.binary, "chat", *arguments]
        if json_events:
            command += ["--events", "json"]
        environment = {key: value for key, value in os.environ.items() if "API_KEY" not in key}
        return subprocess.Popen(
            [str(part) for part in command], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )


def texts(events):
    """What the agent said at the end of each turn."""
    return [event["text"] for event in events if event["type"] == "agent_message"]
