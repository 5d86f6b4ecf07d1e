"""`antiphon chat` as somebody writes with it."""

import json
import os
import pathlib
import signal
import subprocess
import threading

from aimock import WEATHER, Mock
from chat_models import FIXTURES
from talk import check

ROOT = pathlib.Path(__file__).resolve().parents[2]


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

    def chat_is_killed_and_goes_on_where_it_was(self, folder):
        """What was committed before the kill is there; the question that was open is asked again."""
        for name in ["calls.db", "calls/"]:
            store = f"{folder}/{name}"
            first = self._kept(["--store", store], "Convert five miles to kilometers.\n", 1)
            question = self._kept(
                ["--store", store, "--resume-latest"], "Send 5 euros to Charlie.\n", 1
            )
            events = self._chat(["--store", store, "--resume-latest"], "yes\n")
            check([event["type"] for event in events[:3]]
                  == ["chat_started", "resumed", "question"], str(events))
            check(events[1]["snapshot_id"] == question[0], str(events))
            outputs = [event["output"] for event in events if event["type"] == "tool_result"]
            check(outputs and outputs[0].get("sent") is True, str(events))
            # A branch from before the money.
            forked = self._kept(["--store", store, "--resume", first[0]], "What time is it?\n", 1)
            history = self._snapshots("history", store)
            parents = {row["snapshotId"]: row.get("parentId") for row in history}
            check(len(parents) == 4 and parents[first[0]] is None, str(history))
            check(parents[forked[0]] == parents[question[0]] == first[0], str(history))
            tree = self._antiphon("snapshots", "history", "--store", store).stdout
            check("├─* " + question[0] in tree and "└─* " + forked[0] in tree, tree)
            [session] = self._snapshots("list", store)
            check(session["snapshots"] == 4, str(session))
            check(session["latest"]["snapshotId"] == forked[0], str(session))
            [shown] = self._snapshots("show", store, forked[0])
            said = [message["content"][0].get("text") for message in shown["state"]["messages"]]
            check(said[0] == "Convert five miles to kilometers.", str(said))
            check("What time is it?" in said, str(said))
            [difference] = self._snapshots("diff", store, question[0], forked[0])
            common = difference["commonMessages"]
            check(common >= 2 and common + len(difference["addedMessages"]) == len(said),
                  str(difference))
            exported = self._antiphon("snapshots", "export", session["sessionId"], "--store", store)
            check(len(exported.stdout.splitlines()) == 4, exported.stdout)
            [aborted] = self._snapshots("abort", store, forked[0])
            check(aborted["status"] == "completed", str(aborted))

    def chat_does_not_go_on_from_what_there_is_not(self, folder):
        cases = [
            (["chat", "--store", folder / "a.db", "--resume", "nobody"], "nobody"),
            (["chat", "--store", folder / "b.db", "--resume-latest"], "no conversation"),
            (["chat", "--resume", "x"], "--store"),
            (["snapshots", "list", "--store", folder / "missing.db"], "missing.db"),
            (["snapshots", "show", "nobody", "--store", folder / "a.db"], "nobody"),
        ]
        broken = folder / "broken.db"
        broken.write_text("I am no database, but a text that is somewhat longer than its head." * 9)
        cases.append((["snapshots", "list", "--store", broken], "broken.db"))
        # A directory with something else in it.
        cases.append((["chat", "--store", folder], str(folder)))
        for arguments, word in cases:
            done = self._antiphon(*arguments)
            lines = done.stderr.strip().splitlines()
            check(done.returncode == 2 and len(lines) == 1, f"{arguments}: {done.stderr!r}")
            check(word in lines[0] and not done.stdout, f"{arguments}: {lines[0]}")
        check(broken.read_text().startswith("I am no"), "it was written to")

    def text_agent_keeps_a_question_over_a_restart(self, folder):
        """The example, run twice by the same command."""
        command = [self.binary.parent / "examples" / "text_agent", folder / "store"]
        said = [
            subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60)
            for lines in ["send 200 to alice\n", "y\nsend 5 to bob\n"]
        ]
        check(all(run.returncode == 0 for run in said), str(said))
        check("Transfer 200 euros? [y/n]" in said[0].stdout, said[0].stdout)
        check("Transfer 200 euros? [y/n]" in said[1].stdout, said[1].stdout)
        check("sent 200 euros to alice" not in said[0].stdout, said[0].stdout)
        check("sent 200 euros to alice" in said[1].stdout, said[1].stdout)
        check("sent 5 euros to bob" in said[1].stdout, said[1].stdout)

    def a_voice_conversation_goes_on_in_writing_and_forks(self, folder):
        """The example, and the tree that it leaves."""
        store = folder / "talk.db"
        command = [self.binary.parent / "examples" / "resume_by_text", store]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
        check(done.returncode == 0, done.stderr)
        check("The garden door is open." in done.stdout, done.stdout)
        check(done.stdout.count("10 miles are 16.09 kilometers.") == 2, done.stdout)
        rows = self._snapshots("history", store)
        ids = [row["snapshotId"] for row in rows]
        parents = [row.get("parentId") for row in rows]
        check(len(ids) == 4 and parents == [None, ids[0], ids[0], ids[2]], str(rows))
        tree = self._antiphon("snapshots", "history", "--store", store).stdout
        check(all(tree.count(name) == 1 for name in ids), tree)

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

    def _kept(self, arguments, lines, turns):
        """Chats until so many turns are committed, and kills the program. Gives their snapshots."""
        process = self._start(arguments)
        deadline = threading.Timer(60, process.kill)
        deadline.start()
        process.stdin.write(lines)
        process.stdin.flush()
        kept = []
        for line in process.stdout:
            event = json.loads(line)
            if event["type"] == "committed":
                kept.append(event["snapshot_id"])
                if len(kept) == turns:
                    process.kill()
                    break
        process.wait(10)
        deadline.cancel()
        check(len(kept) == turns, f"{kept}; {process.stderr.read()}")
        return kept

    def _snapshots(self, command, store, *ids):
        done = self._antiphon("snapshots", command, *ids, "--store", store, "--json")
        check(done.returncode == 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _antiphon(self, *arguments):
        command = [str(part) for part in [self.binary, *arguments]]
        return subprocess.run(
            command, input="", capture_output=True, text=True, timeout=60, check=False
        )

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
