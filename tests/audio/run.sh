#!/usr/bin/env bash
# Conversations through real audio devices: PulseAudio with null sinks for microphone and loudspeaker.
#
#   tests/audio/run.sh target/debug/antiphon
#
# Prints PASS or FAIL for each scenario, last "scenarios N, failed M"; exit status 1 if one failed.
set -euo pipefail
binary=$(realpath "${1:?usage: run.sh PATH-TO-antiphon}")
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../../.venv/bin/python" "$here/devices.py" "$binary"
