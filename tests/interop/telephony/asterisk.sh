#!/bin/sh
# A real Asterisk 22 calls `antiphon bridge`: through AudioSocket and through chan_websocket, with a SIP
# caller of 30 ms packets and keys in RTP events (sipp). Not in the gate: it needs root, Debian's sid for
# Asterisk, some minutes, and 500 MB.
#
#     tests/interop/telephony/asterisk.sh target/release/antiphon [ROOT]
#
# ROOT is where Asterisk is installed, by debootstrap from the mirror that this machine's apt uses; it is
# kept, and used again. Needs debootstrap and sip-tester. Everything is on 127.0.0.1. The last line is
# "2 of 2": one call through AudioSocket, one through chan_websocket. asterisk.txt is what it printed last.
set -eu

BRIDGE=$(realpath "$1")
ROOT=${2:-/var/tmp/antiphon-asterisk}
HERE=$(cd "$(dirname "$0")" && pwd)
CONF=$ROOT/etc/antiphon
WORK=$(mktemp -d)
PIDS=

clean_up() {
    for pid in $PIDS; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    umount "$ROOT/dev" "$ROOT/proc" 2>/dev/null || true
    rm -rf "$WORK"
}
trap clean_up EXIT INT TERM

if [ ! -x "$ROOT/usr/sbin/asterisk" ]; then
    mirror=$(sed -n 's/^URIs: *//p; s/^deb \([^[ ]*\) .*main.*/\1/p' /etc/apt/sources.list \
        /etc/apt/sources.list.d/debian* 2>/dev/null | head -n 1)
    debootstrap --variant=minbase --include=ca-certificates sid "$ROOT" "$mirror"
    cp /etc/resolv.conf /etc/hosts "$ROOT/etc/"
    cp /etc/apt/apt.conf.d/* "$ROOT/etc/apt/apt.conf.d/"
    # Nothing is started by being installed.
    printf '#!/bin/sh\nexit 101\n' >"$ROOT/usr/sbin/policy-rc.d"
    chmod +x "$ROOT/usr/sbin/policy-rc.d"
    mount -t proc proc "$ROOT/proc"
    mount --bind /dev "$ROOT/dev"
    chroot "$ROOT" sh -c 'apt-get update && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends asterisk asterisk-modules'
else
    mount -t proc proc "$ROOT/proc"
    mount --bind /dev "$ROOT/dev"
fi
chroot "$ROOT" asterisk -V

modules=/usr/lib/x86_64-linux-gnu/asterisk/modules
[ -d "$ROOT$modules" ] || modules=/usr/lib/asterisk/modules
mkdir -p "$CONF" "$ROOT/tmp/ast/run" "$ROOT/tmp/ast/log" "$ROOT/tmp/ast/spool" "$ROOT/tmp/ast/db"
cat >"$CONF/asterisk.conf" <<CONFIG
[directories]
astetcdir => /etc/antiphon
astmoddir => $modules
astvarlibdir => /var/lib/asterisk
astdbdir => /tmp/ast/db
astkeydir => /var/lib/asterisk
astdatadir => /usr/share/asterisk
astagidir => /usr/share/asterisk/agi-bin
astspooldir => /tmp/ast/spool
astrundir => /tmp/ast/run
astlogdir => /tmp/ast/log
[options]
verbose = 3
CONFIG
cat >"$CONF/modules.conf" <<CONFIG
[modules]
autoload = yes
; They open other ports, or want services of their own.
noload = app_voicemail.so
noload = cdr_pgsql.so
noload = cdr_radius.so
noload = cel_pgsql.so
noload = cel_radius.so
noload = chan_console.so
noload = chan_iax2.so
noload = chan_motif.so
noload = chan_unistim.so
noload = pbx_dundi.so
noload = res_config_pgsql.so
noload = res_hep.so
noload = res_hep_pjsip.so
noload = res_hep_rtcp.so
noload = res_prometheus.so
noload = res_snmp.so
noload = res_xmpp.so
CONFIG
: >"$CONF/chan_websocket.conf"
cat >"$CONF/logger.conf" <<CONFIG
[logfiles]
messages = notice,warning,error,verbose
CONFIG
cat >"$CONF/rtp.conf" <<CONFIG
[general]
rtpstart = 20400
rtpend = 20498
CONFIG
cat >"$CONF/pjsip.conf" <<CONFIG
[udp]
type = transport
protocol = udp
bind = 127.0.0.1:5070
[anonymous]
type = endpoint
context = calls
disallow = all
allow = alaw,ulaw
direct_media = no
dtmf_mode = rfc4733
CONFIG
cat >"$CONF/websocket_client.conf" <<CONFIG
[agent]
type = websocket_client
uri = ws://127.0.0.1:8787/telephony/asterisk
protocols = media
connection_type = per_call_config
tls_enabled = no
CONFIG
# What docs/telephony.md says of a dialplan, with a number that nobody answers.
cat >"$CONF/extensions.conf" <<'CONFIG'
[calls]
exten => 100,1,Answer()
 same => n,Set(ID=${UUID()})
 same => n(agent),AudioSocket(${ID},127.0.0.1:9092)
 same => n,Set(TO=${CURL(http://127.0.0.1:8787/telephony/audiosocket/next?call=${ID})})
 same => n,GotoIf($["${TO}" = ""]?end)
 same => n,Verbose(0,handed on to ${TO})
 same => n,Wait(1)
 same => n,Set(BACK=${CURL(http://127.0.0.1:8787/telephony/audiosocket/next?call=${ID}&status=NOANSWER)})
 same => n,GotoIf($["${BACK}" = "back"]?agent)
 same => n(end),Hangup()

exten => 200,1,Answer()
 same => n,Set(ID=${UUID()})
 same => n(agent),Dial(WebSocket/agent/c(ulaw)f(json)v(call=${ID},from=${CALLERID(num)},to=${EXTEN}),,g)
 same => n,Set(TO=${CURL(http://127.0.0.1:8787/telephony/asterisk/next?call=${ID})})
 same => n,GotoIf($["${TO}" = ""]?end)
 same => n,Verbose(0,handed on to ${TO})
 same => n,Wait(1)
 same => n,Set(BACK=${CURL(http://127.0.0.1:8787/telephony/asterisk/next?call=${ID}&status=NOANSWER)})
 same => n,GotoIf($["${BACK}" = "back"]?agent)
 same => n(end),Hangup()
CONFIG

# The bridge, with the offline agent.
sed -e 's/^\[agent\]/[carriers.audiosocket]\nverify = "none"\n\n[agent]/' \
    -e "1i records = \"$WORK/records\"\ntransfer_allow = [\"+1555\"]" \
    "$HERE/../../../examples/bridge-offline.toml" >"$WORK/bridge.toml"
"$BRIDGE" bridge --config "$WORK/bridge.toml" >"$WORK/bridge.log" 2>&1 &
PIDS="$PIDS $!"
chroot "$ROOT" asterisk -C /etc/antiphon/asterisk.conf -f >"$WORK/asterisk.log" 2>&1 &
PIDS="$PIDS $!"

asterisk() { chroot "$ROOT" asterisk -C /etc/antiphon/asterisk.conf -rx "$1"; }
tries=0
until grep -q 'answering AudioSocket' "$WORK/bridge.log" \
    && asterisk 'pjsip show transports' 2>/dev/null | grep -q 5070; do
    tries=$((tries + 1))
    [ $tries -lt 60 ] || { cat "$WORK/bridge.log" "$WORK/asterisk.log"; exit 1; }
    sleep 1
done

call() { # an extension
    timeout 60 sipp 127.0.0.1:5070 -sf "$HERE/sipp.xml" -s "$1" -m 1 -i 127.0.0.1 -p 5098 \
        -mi 127.0.0.1 -mp 20720 -nostdin >"$WORK/sipp.log" 2>&1 || { tail -n 40 "$WORK/sipp.log"; return 1; }
}

good=0
for extension in 100 200; do
    before=$(wc -l <"$WORK/records" 2>/dev/null || echo 0)
    call $extension || true
    tries=0
    while [ "$(wc -l <"$WORK/records" 2>/dev/null || echo 0)" -le "$before" ] && [ $tries -lt 20 ]; do
        tries=$((tries + 1)); sleep 1
    done
    record=$(tail -n 1 "$WORK/records")
    echo "$extension: $record"
    if echo "$record" | python3 -c '
import json, sys
call = json.load(sys.stdin)
assert call["reason"] == "caller_hung_up", call["reason"]
assert call["keys"] == 2, "the keys 1 and # in RTP events"
assert call["intake"]["samples"] > 8000 * 4, "the caller was heard"
assert call["playout"]["sent"] > 8000 * 3, "the greeting was sent"
assert call["heard_ms"] > 2000, "and heard, until the caller spoke"
'; then good=$((good + 1)); fi
done
# What Asterisk has to say of the calls.
grep -hE '(ERROR|WARNING)\[[0-9]+\]\[C-' "$WORK/asterisk.log" "$ROOT/tmp/ast/log/messages" 2>/dev/null \
    | tail -n 10 || true
echo "$good of 2"
[ $good -eq 2 ]
