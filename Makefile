# The two commands that matter are `make talk` and `make test`; each sets up what it lacks.

.PHONY: talk test interop-providers interop-telephony setup soak mutants bench models help

help:
	@echo "make talk    hold a spoken conversation with the offline agent (ARGS=... are passed on)"
	@echo "make test    everything that must hold before a change lands"
	@echo "make interop-providers  the clients and servers of voice providers that are not ours, alone"
	@echo "make interop-telephony  whole calls through the bridge: lines of five carriers, and peers that are not ours"
	@echo "make soak    the long runs: property tests with many cases, more kills, the peers with new numbers"
	@echo "make mutants changes the engine and the tool runtime at random, and says what no test notices (SHARD=0/9 for a part)"
	@echo "make bench   measurements"
	@echo "make models  rebuild the speech models from their published packages"

talk:
	@scripts/setup.sh talk
	cargo build --release --locked --features cli,devices
	target/release/antiphon talk $(ARGS)

test:
	@scripts/test.sh

interop-providers:
	@scripts/setup.sh test
	cargo build --locked --workspace --all-features --bins --example gemini --example azure --example fallback
	.venv/bin/python tests/interop/run.py target/debug --providers

interop-telephony:
	@scripts/setup.sh test
	cargo build --locked --features cli --bin antiphon
	.venv/bin/python -m pip install -q -r tests/interop/telephony/requirements.txt
	.venv/bin/python tests/interop/telephony/run.py target/debug/antiphon
	.venv/bin/python tests/interop/telephony/peers.py target/debug/antiphon

setup:
	@scripts/setup.sh test

soak:
	@scripts/setup.sh test
	PROPTEST_CASES=$${CASES:-20000} KILLS=$${KILLS:-200} SEED=$${SEED:-$$(date +%s)} cargo nextest run --locked --workspace --all-features --no-fail-fast
	cargo build --release --locked --workspace --all-features --bins --example slow_hook --example text_agent --example resume_by_text --example gemini --example azure --example fallback
	.venv/bin/python tests/interop/run.py target/release

# Needs cargo-mutants. Random lives are short here: a change is noticed early or not at all.
mutants:
	PROPTEST_CASES=$${CASES:-80} cargo mutants -p antiphon --features cascade --sharding round-robin --shard $${SHARD:-0/1} -o target
	PROPTEST_CASES=$${CASES:-80} cargo mutants -p antiphon-agent --sharding round-robin --shard $${SHARD:-0/1} -o target/agent-mutants

bench:
	cargo bench --locked --features full --bench hot_path
	cargo bench --locked --features full --bench engine
	cargo bench --locked --features full --bench offline
	cargo bench --locked --features full --bench session
	cargo bench --locked --features full --bench snapshots
	cargo bench --locked --features full --bench link
	cargo bench --locked --features full --bench lifetime
	benches/peers/run.py

models:
	models/build/build.sh
