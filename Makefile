# Every target works on a fresh Debian 12 as root: `scripts/setup` installs what is missing into .venv.
VENV ?= .venv
PY   := $(VENV)/bin/python
PYTEST := $(PY) -m pytest
# Much of the suite waits (for brokers, disks, deadlines): two workers keep two cores busy.
WORKERS ?= 2
# Files in their order: the long ones (bench, broker) come first, so that no worker is left with one at the end.
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: setup demo test test-fast test-floors soak lint manual bench bench-metadata bench-pipeline clean

setup: ## system packages, virtual environment, editable install
	@scripts/setup $(VENV)

demo: setup ## three disks, one mount, a real broker, 20,000 messages (README's first command)
	@$(PY) -m commitlogfs.bench.demo

test: setup ## the whole suite (README's second command)
	@$(PYTEST) $(PARALLEL) -m "not soak" --durations 30 --durations-min 10 --force-short-summary

test-fast: setup ## everyday work: no broker, no slow tests: five minutes on two cores
	@$(PYTEST) $(PARALLEL) -m "not soak and not slow and not broker"

test-floors: setup ## everyday tests with the oldest versions that pyproject.toml allows
	@scripts/test-floors

soak: setup ## longer proofs, not in CI
	@$(PYTEST) -m soak --timeout 7200

lint: setup ## spelling, words, complexity, ruff and mypy strict
	@scripts/lint $(VENV)

manual: setup ## man pages and shell completion, in build/man/share
	@$(PY) scripts/manual.py build/man

bench-metadata: setup ## 60,000 segments: mount, list, memory; create latency on ext4 and xfs
	@$(PY) -m commitlogfs.bench.metadata

bench-pipeline: setup ## decoding, counting and rebuilding 5,000,000 messages beside RocketMQ (some 5 minutes)
	@$(PY) -m commitlogfs.bench.pipeline

bench: ## data path and broker beside the bare disks and mergerfs: figures, table, plot (some 20 minutes)
	@scripts/setup $(VENV) bench
	@$(VENV)/bin/commitlogfs bench --output build/bench $(BENCH)

clean:
	rm -rf build dist $(VENV) *.egg-info
