"""Scenarios of `antiphon talk`. All of them run without a network."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np

import audio
from judge import Judge, word_errors, words
from talk import Failure, Run, check

ROOT = pathlib.Path(__file__).resolve().parents[2]

GAP_S = 0.040
"""What nobody hears as a gap."""


class CommandLine:
    """Each public method is a scenario; it is given an empty folder."""

    def __init__(self, binary, chance):
        self.binary = binary
        self.chance = chance
        self.judge = Judge()

    def there_is_no_network(self, folder):
        """What the other scenarios rest on."""
        probe = "import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        with socket.create_server(("127.0.0.1", 0)) as server:
            probe = probe.format(port=server.getsockname()[1])
            inside = subprocess.run(
                [*no_network(), sys.executable, "-c", probe], stderr=subprocess.PIPE, text=True
            )
        check("OSError" in inside.stderr, f"the network is still there: {inside.stderr!r}")

    def a_strange_voice_sets_timers_of_random_length(self, folder):
        numbers = self.chance.sample(range(2, 60), 6)
        understood, heard = 0, []
        for number in numbers:
            question = audio.flite(f"Set a timer for {number} minutes.", folder / f"{number}.wav")
            run = self._talk("--fast", "--input", question, "--output", "none")
            lengths = [
                call["args"].get("duration")
                for call in run.of("tool_call", name="set_timer")
            ]
            understood += lengths == [number * 60]
            heard.append((number, lengths, [m["text"] for m in run.of("user_message")]))
        check(understood >= 5, f"{understood} of 6 were right: {heard}")

    def two_questions_in_one_file_are_two_turns(self, folder):
        first = audio.flite("What time is it?", folder / "first.wav")
        second = audio.flite("What is the date today?", folder / "second.wav")
        both = audio.join(folder / "both.wav", first, 2.0, second)
        run = self._talk("--fast", "--input", both, "--output", folder / "answers.wav")
        asked = run.of("user_message")
        check(len(asked) == 2, f"{len(asked)} messages; {run.story()}")
        check(len({m["turn"] for m in asked}) == 2, f"in one turn; {run.story()}")
        answers = run.of("agent_message")
        check(len(answers) == 2, f"{len(answers)} answers; {run.story()}")

    def a_timer_rings_in_the_file_and_as_an_event(self, folder):
        out = folder / "timer.wav"
        run = self._talk("--fast", "--text", "set a timer for three seconds", "--output", out)
        rings = run.of("timer")
        check(len(rings) == 1, f"{len(rings)} rings; {run.story()}")
        result = run.of("tool_result", name="set_timer")
        check(len(result) == 1, f"no timer was set; {run.story()}")
        after = (rings[0]["t_ms"] - result[0]["t_ms"]) / 1000
        check(2.8 <= after <= 3.5, f"it rang after {after} s")
        samples, rate = audio.read(out)
        at = int(rings[0]["t_ms"] / 1000 * rate)
        loud = audio.loudness(samples[max(0, at - rate // 5) : at + rate * 3 // 2], rate)
        ringing = float((loud > 0.01).sum()) * audio.BLOCK_S
        check(ringing >= 0.2, f"only {ringing:.2f} s of sound where it rang")

    def a_tool_of_ones_own_is_reached_by_its_phrases(self, folder):
        log = folder / "log.jsonl"
        tools = self._tool_file(folder, DOOR, command=[sys.executable, script(folder, DOOR_BODY), log])
        spoken = audio.flite("Open the garden door.", folder / "door.wav")
        run = self._talk("--fast", "--tools", tools, "--text", "open the cellar door",
                        "--input", spoken, "--output", "none")
        calls = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        check([c["args"] for c in calls] == [{"which": "cellar"}, {"which": "garden"}],
              f"the tool got {calls}; {run.story()}")
        session = run.of("session_started")[0]["session_id"]
        check(all(c["session"] == session for c in calls), "another session id in its environment")
        ids = [call["id"] for call in run.of("tool_call", name="open_door")]
        check([c["call"] for c in calls] == ids, f"call ids {[c['call'] for c in calls]}, not {ids}")
        said = [m["text"] for m in run.of("agent_message")]
        check(any("cellar door is open" in text.lower() for text in said), f"it said {said}")

    def too_much_money_is_denied_and_nothing_runs(self, folder):
        run = self._talk("--fast", "--text", "send 900 euros to Alice", "--text", "yes",
                        "--output", "none")
        check(run.of("tool_denied", name="send_money"), f"not denied; {run.story()}")
        check(not run.of("tool_call", name="send_money"), f"it ran; {run.story()}")
        check(not run.of("tool_confirm"), f"it was read back; {run.story()}")
        check(not run.of("tool_result", outcome="success"), f"it succeeded; {run.story()}")

    def a_little_money_is_sent_after_the_read_back_was_confirmed(self, folder):
        run = self._talk("--fast", "--text", "send 5 euros to Alice", "--text", "yes",
                        "--output", "none")
        kinds = [e["type"] for e in run.events
                 if e["type"] in ("tool_confirm", "tool_call", "tool_result")]
        check(kinds == ["tool_confirm", "tool_call", "tool_result"], f"{kinds}; {run.story()}")
        asked = run.of("tool_confirm")[0]["read_back"]
        check("5" in asked and "Alice" in asked, f"it read back {asked!r}")
        args = run.of("tool_call")[0]["args"]
        check(args["amount"] == 5 and args["name"].lower() == "alice", f"it sent {args}")
        check(run.of("tool_result")[0]["outcome"] == "success", run.story())

    def money_is_not_sent_after_a_no(self, folder):
        run = self._talk("--fast", "--text", "send 5 euros to Alice", "--text", "no",
                        "--output", "none")
        check(run.of("tool_confirm"), f"not read back; {run.story()}")
        check(not run.of("tool_call"), f"it ran; {run.story()}")

    def money_by_voice_is_read_back_and_confirmed_by_voice(self, folder):
        ask = audio.flite("Send five euros to Alice.", folder / "ask.wav")
        yes = audio.flite("Yes.", folder / "yes.wav")
        run = self._talk("--fast", "--input", ask, "--input", yes, "--output", "none")
        check(run.of("tool_confirm", name="send_money"), f"not read back; {run.story()}")
        check(run.of("tool_result", outcome="success"), f"not sent; {run.story()}")
        check(run.of("tool_call")[0]["args"]["amount"] == 5, run.story())

    def the_session_starts_in_time(self, folder):
        """Within a second as it is released; an unoptimised build gets four."""
        limit = 1 if "release" in self.binary.parts else 4
        # The best of five: the machine may be busy with something else.
        times = []
        for _ in range(5):
            with self._start("--text", "what time is it", "--output", "none") as run:
                run.wait_for("session_started", 30)
                times.append(run.first_event_after)
            if times[-1] < limit:
                break
        check(min(times) < limit, f"it took {', '.join(f'{t:.2f} s' for t in times)}")

    def a_tool_that_spins_leaves_no_gap(self, folder):
        """Two seconds in the call itself, and one process more than there are processors while
        the answer is spoken."""
        spin = script(folder, SPIN_BODY)
        tools = self._tool_file(folder, SPIN, command=[sys.executable, spin])
        self._no_gap(folder, "--tools", tools, "--text", "spin the wheel")

    def a_hook_that_sleeps_leaves_no_gap(self, folder):
        """Hooks are written in Rust: an example of the same build."""
        example = self.binary.parent / "examples" / "slow_hook"
        if not example.exists():
            cargo = ["cargo", "build", "--quiet", "--locked", "--all-features", "--example", "slow_hook"]
            subprocess.run(cargo, cwd=ROOT, check=True)
        files = []
        for ms in (0, 2000):
            files.append(folder / f"{ms}.wav")
            run = [*no_network(), example, files[-1], ms]
            done = subprocess.run([str(r) for r in run], capture_output=True, text=True, timeout=60)
            check(done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-400:]}")
        compare(*files)

    def the_answer_is_understood_by_other_ears(self, folder):
        tools = self._tool_file(folder, DOOR, command=[sys.executable, "-c", "print('{}')"])
        out = folder / "answers.wav"
        run = self._talk("--fast", "--tools", tools, "--output", out,
                        "--text", "open the garden door",
                        "--text", "set a timer for twelve minutes",
                        "--text", "list my timers",
                        "--text", "open the kitchen door")
        said = " ".join(m["text"] for m in run.of("agent_message"))
        heard = self.judge.text(out)
        errors, words = word_errors(said, heard)
        check(words >= 12, f"it only said {said!r}; {run.story()}")
        check(errors <= words * 0.2, f"{errors} of {words} words wrong: {said!r} heard as {heard!r}")

    def of_a_phrase_whose_last_word_is_denied_no_word_is_heard(self, folder):
        tools = self._tool_file(folder, CELLAR, command=[sys.executable, "-c", "print('{}')"])
        guard = folder / "guard.json"
        guard.write_text(json.dumps({"output": {
            "phrases": ["the purple elephant"], "instead": "I am sorry, I cannot tell you that.",
        }}))
        ask = ["--fast", "--tools", tools, "--text", "look into the cellar",
               "--text", "set a timer for twelve minutes"]
        free, guarded = folder / "free.wav", folder / "guarded.wav"
        self._talk(*ask, "--output", free)
        heard = words(self.judge.text(free))
        check("purple" in heard and "elephant" in heard, f"without a guard: {heard}")
        run = self._talk(*ask, "--guard", guard, "--output", guarded)
        heard = words(self.judge.text(guarded))
        check("purple" not in heard and "elephant" not in heard, f"it was heard: {heard}")
        check("sorry" in heard and "twelve" in heard, f"it said {heard}; {run.story()}")
        check(len(run.of("reply_denied")) == 1, run.story())
        told = json.dumps([e for e in run.events if e["type"].startswith("agent_")])
        check("elephant" not in told, f"it is told: {told}")

    def bad_input_is_one_readable_line(self, folder):

        (folder / "text.wav").write_text("this is no sound\n")
        (folder / "tools.json").write_text('[{"name": "x",\n "command": []}]\n')
        (folder / "broken.json").write_text('[\n{"name": \n')
        (folder / "policy.json").write_text('{"rules": [{"tool": "x", "action": "maybe"}]}\n')
        subprocess.run(["sox", "-n", "-r", "96000", folder / "fast.wav", "synth", "0.2", "sine", "440"],
                       check=True)
        subprocess.run(["sox", "-n", "-r", "16000", "-c", "3", folder / "three.wav", "synth", "0.2",
                        "sine", "440"], check=True)
        cases = [
            (["--input", folder / "missing.wav"], 2, "missing.wav"),
            (["--input", folder / "text.wav"], 2, "text.wav"),
            (["--input", folder / "fast.wav"], 2, "96"),
            (["--input", folder / "three.wav"], 2, "channel"),
            (["--text", "hello", "--tools", folder / "missing.json"], 2, "missing.json"),
            (["--text", "hello", "--tools", folder / "tools.json"], 2, "tools.json"),
            (["--text", "hello", "--tools", folder / "broken.json"], 2, "broken.json"),
            (["--text", "hello", "--policy", folder / "policy.json"], 2, "policy.json"),
            (["--text", "hello", "--idle-stop", "soon"], 2, "soon"),
            (["--text", "hello", "--models", folder / "nowhere"], 1, "nowhere"),
            (["--text", "hello", "--output", folder / "no" / "such" / "out.wav"], None, "out.wav"),
        ]
        wrong = []
        for arguments, status, part in cases:
            command = [*no_network(), self.binary, "talk", "--fast", *arguments]
            if "--output" not in arguments:
                command += ["--output", "none"]
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60)
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            right = done.returncode in ((1, 2) if status is None else (status,))
            readable = lines and part in lines[0] and "panicked" not in done.stderr
            # clap adds how to get help to what it refuses.
            short = len(lines) == 1 or (part == "soon" and len(lines) <= 3)
            if not (right and readable and short):
                wrong.append((" ".join(map(str, arguments)), done.returncode, done.stderr[:300]))
        if wrong:
            raise Failure(f"{len(wrong)} of {len(cases)}: {wrong}")

    # What scenarios are made of.

    def _command(self, *arguments):
        return [*no_network(), self.binary, "talk", "--events", "json", *arguments]

    def _start(self, *arguments):
        return Run(self._command(*arguments))

    def _talk(self, *arguments, timeout=120):
        """A whole session that must end in order."""
        with self._start(*arguments) as run:
            status = run.wait(timeout)
        check(status == 0, f"exit status {status}; {run.story()}")
        check(len(run.of("session_ended")) == 1, f"it did not end once; {run.story()}")
        return run

    def _no_gap(self, folder, *arguments):
        """Runs a session in real time, and without it; the answer must take as long, and have no
        hole that it does not have there."""
        calm, loaded = folder / "calm.wav", folder / "loaded.wav"
        reference = self._talk("--fast", *arguments, "--output", calm)
        run = self._talk(*arguments, "--output", loaded)
        said = [m["text"] for m in run.of("agent_message")]
        check(said == [m["text"] for m in reference.of("agent_message")], f"it said {said}")
        compare(calm, loaded)

    def _tool_file(self, folder, tool, command):
        path = folder / "tools.json"
        path.write_text(json.dumps([{**tool, "command": [str(part) for part in command]}]))
        return path


DOOR = {
    "name": "open_door",
    "description": "Opens a door of the house.",
    "parameters": {
        "type": "object",
        "properties": {"which": {"type": "string", "enum": ["garden", "cellar", "kitchen"]}},
        "required": ["which"],
        "additionalProperties": False,
    },
    "phrases": ["open the {which} door", "unlock the {which} door"],
    "answer": "The {which} door is open.",
}

CELLAR = {
    "name": "look_into_the_cellar",
    "description": "Says what is in the cellar.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    "phrases": ["look into the cellar"],
    "answer": "There is something big down there. I am sure that it is the purple elephant.",
}

DOOR_BODY = """
import json, os, sys
args = json.load(sys.stdin)
with open(sys.argv[1], "a") as log:
    print(json.dumps({"args": args, "session": os.environ["ANTIPHON_SESSION_ID"],
                      "call": os.environ["ANTIPHON_CALL_ID"]}), file=log)
print(json.dumps(args))
"""

SPIN = {
    "name": "spin",
    "description": "Spins the wheel of fortune.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    "phrases": ["spin the wheel"],
    "answer": "The wheel of fortune has come to a stop, and the winner of this round is nobody at all.",
}

SPIN_BODY = """
import os, subprocess, sys, time
busy = "import time; end = time.monotonic() + {}\nwhile time.monotonic() < end: pass"
for _ in range(os.cpu_count() + 1):
    subprocess.Popen([sys.executable, "-c", busy.format(8)], stdin=subprocess.DEVNULL,
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
exec(busy.format(2))
print("{}")
"""


def compare(calm, loaded):
    """Both files hold the same answer; the second may not be longer, nor have a hole that the first
    does not have."""
    spans = []
    for path in (calm, loaded):
        samples, rate = audio.read(path)
        sounding = np.flatnonzero(np.abs(samples) > 1e-4)
        check(len(sounding), f"{path.name} is silent")
        samples = samples[sounding[0] : sounding[-1] + 1]
        spans.append((len(samples) / rate, audio.longest_hole(samples, rate)))
    (calm_s, calm_hole), (loaded_s, loaded_hole) = spans
    check(loaded_s - calm_s <= GAP_S, f"the answer takes {loaded_s:.3f} s, not {calm_s:.3f}")
    check(loaded_hole - calm_hole <= GAP_S, f"a hole of {loaded_hole * 1000:.0f} ms")


def script(folder, body):
    path = folder / "tool.py"
    path.write_text(body)
    return path


def no_network():
    """Runs what follows in a network name space of its own, in which there is nothing."""
    return ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
