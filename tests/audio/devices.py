#!/usr/bin/env python3
"""The scenarios of run.sh. Each has a sound server of its own, which it takes down again."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))

import audio  # noqa: E402
from judge import Judge, word_errors  # noqa: E402
from talk import Run, Scenarios, check  # noqa: E402

RECORD_HZ = 24_000


@contextlib.contextmanager
def sound_server():
    """A PulseAudio daemon; gives (environment, process id)."""
    with tempfile.TemporaryDirectory(prefix="antiphon-audio-") as folder:
        started = subprocess.run(
            [HERE / "pulse-up.sh", folder], stdout=subprocess.PIPE, text=True, timeout=30
        )
        check(started.returncode == 0, "the sound server does not start")
        pid = int((pathlib.Path(folder) / "pid").read_text())
        try:
            yield {**os.environ, "PULSE_SERVER": started.stdout.strip()}, pid
        finally:
            end(pid)


def end(pid):
    """Ends a daemon that is not our child, and waits until it is gone."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, sig)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.05)


@contextlib.contextmanager
def recording(env, path):
    """Records the loudspeaker into a WAV file."""
    raw = pathlib.Path(path).with_suffix(".raw")
    recorder = subprocess.Popen(
        ["parec", "-d", "spk.monitor", "--format=s16le", f"--rate={RECORD_HZ}", "--channels=1",
         "--latency-msec=20", str(raw)],
        env=env,
    )
    try:
        yield
    finally:
        recorder.send_signal(signal.SIGINT)
        recorder.wait(10)
        subprocess.run(
            ["sox", "-r", str(RECORD_HZ), "-e", "signed", "-b", "16", "-c", "1", str(raw), str(path)],
            check=True,
        )


def speak(env, wav):
    """Plays a file into the microphone."""
    subprocess.run(["paplay", "-d", "mic", "--latency-msec=300", str(wav)], env=env, check=True, timeout=60)


class Devices:
    def __init__(self, binary, judge):
        self.binary = binary
        self.judge = judge

    def a_question_into_the_microphone_is_answered_on_the_loudspeaker(self, folder):
        question = audio.flite("Set a timer for seven minutes.", folder / "question.wav")
        with sound_server() as (env, _), recording(env, folder / "answer.wav"):
            # No flags: devices are what `talk` uses when there are any.
            with Run([self.binary, "talk", "--events", "json"], env=env) as run:
                run.wait_for("session_started", 30)
                time.sleep(0.5)
                # Who is not understood says it again; a busy machine may swallow a syllable.
                for _ in range(3):
                    speak(env, question)
                    answer = run.wait_for("agent_message", 30)
                    run.wait_for("playback_finished", 20)
                    time.sleep(0.5)
                    if run.of("tool_result"):
                        break
                run.interrupt()
                ended = run.wait_for("session_ended", 10)
                status = run.wait(10)
        check(run.of("tool_result", outcome="success"), f"the tool did not succeed; {run.story()}")
        check(ended["reason"] == "stopped", f"it ended with {ended['reason']}")
        check(status == 0, f"exit status {status} after Ctrl-C")
        _, _, heard = self.judge.stretches(folder / "answer.wav")[-1]
        errors, said = word_errors(answer["text"], heard)
        check(
            errors <= said // 3,
            f"the loudspeaker said {heard!r} where the agent said {answer['text']!r}",
        )

    def without_a_device_there_is_one_readable_line(self, folder):
        env = {**os.environ, "PULSE_SERVER": f"unix:{folder}/nobody", "XDG_RUNTIME_DIR": str(folder)}
        command = [self.binary, "talk", "--input", "mic", "--output", "speaker"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
        lines = done.stderr.strip().splitlines()
        check(done.returncode == 1, f"exit status {done.returncode}")
        check(len(lines) == 1 and "device" in lines[0], f"standard error: {done.stderr!r}")

    def a_lost_device_ends_the_session_once(self, _folder):
        with sound_server() as (env, pid):
            with Run([self.binary, "talk", "--events", "json"], env=env) as run:
                run.wait_for("session_started", 30)
                time.sleep(0.5)
                os.kill(pid, signal.SIGKILL)
                run.wait_for("session_ended", 10)
                status = run.wait(10)
                ends = [event for event in run.events if event["type"] == "session_ended"]
        check(len(ends) == 1, f"{len(ends)} ends")
        check(status == 1, f"exit status {status}")
        check("microphone is gone" in run.stderr, f"standard error: {run.stderr!r}")

    def a_sound_server_that_hangs_does_not_hang_the_session(self, _folder):
        with sound_server() as (env, pid):
            with Run([self.binary, "talk", "--events", "json"], env=env) as run:
                run.wait_for("session_started", 30)
                time.sleep(0.5)
                os.kill(pid, signal.SIGSTOP)
                run.wait_for("session_ended", 15)
                status = run.wait(10)
        check(status == 1, f"exit status {status}")

    def doctor_names_the_devices(self, _folder):
        with sound_server() as (env, _):
            command = [self.binary, "doctor"]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        check("Null Output" in done.stdout, f"doctor says {done.stdout!r} {done.stderr!r}")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: devices.py PATH-TO-antiphon")
    for tool in ("pulseaudio", "pactl", "paplay", "parec", "sox", "flite"):
        if subprocess.run(["which", tool], stdout=subprocess.DEVNULL).returncode:
            print(f"FAIL peer {tool}: not installed\nscenarios 0, failed 1")
            sys.exit(1)
    devices = Devices(str(pathlib.Path(sys.argv[1]).resolve()), Judge())
    scenarios = Scenarios()
    scenarios.run_all(devices)
    print(f"scenarios {scenarios.count}, failed {scenarios.failed}")
    sys.exit(1 if scenarios.failed else 0)


if __name__ == "__main__":
    main()
