#!/usr/bin/env bash
# Starts a private PulseAudio daemon with two null sinks. Works as root and as anybody else; uses no
# D-Bus and touches nothing outside DIR.
#
#   mic   what is played into it is what a program hears (its monitor is the default source)
#   spk   what a program plays (the default sink); record spk.monitor to hear it
#
# usage: pulse-up.sh DIR     prints the server's address for PULSE_SERVER
#        kill "$(cat DIR/pid)" ends it
set -euo pipefail

dir=${1:?usage: pulse-up.sh DIR}
mkdir -p "$dir"
chmod 700 "$dir"
socket=$dir/native.sock
rm -f "$socket"

# norewinds: otherwise a null sink renders two seconds at a time, and opening a stream takes as long.
cat > "$dir/pulse.pa" <<CONFIG
load-module module-null-sink sink_name=mic rate=48000 channels=1 norewinds=1
load-module module-null-sink sink_name=spk rate=48000 channels=1 norewinds=1
load-module module-native-protocol-unix auth-anonymous=1 socket=$socket
set-default-sink spk
set-default-source mic.monitor
CONFIG

env HOME="$dir" XDG_RUNTIME_DIR="$dir" PULSE_RUNTIME_PATH="$dir/runtime" PULSE_STATE_PATH="$dir/state" \
  pulseaudio -n -F "$dir/pulse.pa" --daemonize=no --exit-idle-time=-1 --use-pid-file=no \
  --disallow-exit --log-target="file:$dir/log" --log-level=notice </dev/null >/dev/null 2>&1 &
echo $! > "$dir/pid"

for _ in $(seq 200); do
  if PULSE_SERVER=unix:$socket pactl info >/dev/null 2>&1; then
    echo "unix:$socket"
    exit 0
  fi
  kill -0 "$(cat "$dir/pid")" 2>/dev/null || break
  sleep 0.05
done
echo "PulseAudio did not start; see $dir/log" >&2
kill "$(cat "$dir/pid")" 2>/dev/null || true
exit 1
