#!/usr/bin/env python3
"""What a session costs beside the raw client, on the same load server, in turns.

    benches/peers/run.py [--sessions 1 50 400] [--rounds 3] [--seconds 6] [--chunk-ms 100]

Builds all three programs, runs the server on one processor and the client on another, and prints
for each number of sessions the medians of both clients and their ratio. The raw client has a read
buffer of 8 KiB. Nothing else should run meanwhile.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE / "target")) / "release"
CLIENTS = {"raw": "peer-floor", "antiphon": "peer-antiphon"}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--sessions", type=int, nargs="+", default=[1, 50, 400])
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=6)
    arguments.add_argument("--chunk-ms", type=int, default=100)
    options = arguments.parse_args()
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=HERE, check=True)

    print(f"load {os.getloadavg()[0]:.1f}, {options.chunk_ms} ms deltas, medians of {options.rounds}")
    print("sessions  client     CPU ms/s   delay p50   p99 ms   uplink p99   tool p99   kB/session")
    for sessions in options.sessions:
        rows = {name: [] for name in CLIENTS}
        for _ in range(options.rounds):
            for name in CLIENTS:
                rows[name].append(measure(name, sessions, options))
        medians = {}
        for name, runs in rows.items():
            middle = medians[name] = [statistics.median(column) for column in zip(*runs)]
            cpu, p50, p99, uplink, tool, memory = middle
            print(f"{sessions:8}  {name:9} {cpu:9.3f} {p50:11.2f} {p99:8.2f} {uplink:12.2f}"
                  f" {tool:10.2f} {memory:12.1f}", flush=True)
        print(f"{sessions:8}  ratio     {medians['antiphon'][0] / medians['raw'][0]:9.2f}", flush=True)


def measure(name, sessions, options):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = pinned(1, "peer-server", "--port", port, "--chunk-ms", options.chunk_ms)
    try:
        wait_for(port)
        with tempfile.NamedTemporaryFile("r") as out:
            client = pinned(0, CLIENTS[name], "--sessions", sessions, "--dur", options.seconds,
                            "--warm", 3.5, "--port", port, "--out", out.name)
            client.wait(timeout=60 + options.seconds + sessions * 0.2)
            seen = json.load(out)
        address = f"http://127.0.0.1:{port}/dump?t0={seen['t0']}&t1={seen['t1']}"
        with urllib.request.urlopen(address, timeout=20) as answer:
            told = json.load(answer)
    finally:
        server.kill()
        server.wait()
    trouble = seen["errors"] + told["errors"]
    lost = told["deltas_sent"] - seen["deltas_recv"]
    if trouble or lost > sessions + told["deltas_sent"] * 0.02:
        raise SystemExit(f"{name} at {sessions}: {lost} deltas lost, {trouble}")
    percentile = lambda value, p: (value or {}).get(p) or float("nan")
    return (seen["cpu_ms_per_session_s"], percentile(seen["lat_ms"], "p50"),
            percentile(seen["lat_ms"], "p99"), percentile(told["uplink_ms"], "p99"),
            percentile(told["tool_out_ms"], "p99"), seen["rss_kb_per_session"])


def pinned(core, program, *arguments):
    command = ["taskset", "-c", str(core), TARGET / program, *map(str, arguments)]
    # The raw client's read buffer; the default of its library costs a third more.
    environment = {**os.environ, "RTB_RBUF": "8192"}
    return subprocess.Popen(command, env=environment, start_new_session=True)


def wait_for(port):
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the load server does not start")


if __name__ == "__main__":
    main()
