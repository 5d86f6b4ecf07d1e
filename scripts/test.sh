#!/usr/bin/env bash
# Everything that must hold before a change lands: `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."

started=$SECONDS
stage() {
  local name=$1 from=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  "$@"
  printf -- '-- %s: %d s\n' "$name" $((SECONDS - from))
}

stage "set up" scripts/setup.sh test
stage "format" cargo fmt --all --check
stage "lints" cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
stage "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --all-features --no-deps
stage "build without default features" cargo build --locked --workspace --no-default-features
stage "tests" cargo nextest run --locked --workspace --all-features --no-fail-fast
stage "documentation tests" cargo test --locked --workspace --all-features --doc --quiet
stage "dependencies" cargo deny --log-level error check bans licenses sources
programs() {
  cargo build --locked --workspace --all-features --bins --example slow_hook --example text_agent --example resume_by_text --example gemini --example azure --example fallback
}
stage "programs" programs
# The same numbers for the strange voice each time, so that a change is judged and not the draw;
# `make soak` draws others.
peers() { .venv/bin/python tests/interop/run.py target/debug --seed "${SEED:-1}" | tee target/peers.log; }
stage "peers" peers
printf '\nall green in %d s\n' $((SECONDS - started))
grep -E '^peers [0-9]+, scenarios [0-9]+, skipped [0-9]+$' target/peers.log | tail -n 1
