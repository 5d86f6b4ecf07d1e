#!/usr/bin/env python3
"""The command line as a user meets it, with voices and ears that are not ours, and no network.

    tests/interop/run.py target/debug/antiphon [--seed N] [--only PART-OF-A-NAME ...]

Prints PASS or FAIL for each scenario, last "peers N, scenarios M, skipped 0"; exit status 1 if one
failed or a peer is missing.
"""

import argparse
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
}

def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("binary", type=pathlib.Path)
    arguments.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    arguments.add_argument("--only", nargs="+", default=[])
    options = arguments.parse_args()

    missing = [f"{peer} ({why})" for peer, why in PEERS.items() if not shutil.which(peer)]
    try:
        import moonshine_voice  # noqa: F401
        import numpy  # noqa: F401
    except ImportError as error:
        missing.append(f"{error.name} (tests/interop/requirements.txt)")
    if missing:
        for peer in missing:
            print(f"FAIL peer missing: {peer}; scripts/setup.sh test installs it")
        sys.exit(1)

    # Not before it is known that what they need is there.
    from command_line import CommandLine
    from talk import Scenarios

    print(f"seed {options.seed}")
    scenarios = Scenarios(options.only)
    binary = options.binary.resolve()
    scenarios.run_all(CommandLine(binary, random.Random(options.seed)))
    count, failed = scenarios.count, scenarios.failed
    if not options.only or "audio" in options.only:
        more, broken = real_devices(binary)
        count, failed = count + more, failed + broken
    if failed:
        print(f"{failed} of {count} scenarios failed (seed {options.seed})")
    print(f"peers {len(PEERS) + 1}, scenarios {count}, skipped 0")
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
