# Every target works on a fresh Debian 12 as root: `scripts/setup` installs what is missing into .venv.
VENV ?= .venv
PY   := $(VENV)/bin/python
export PYTHON := $(PY)
ROOM ?=
.PHONY: setup demo test test-full test-timing test-floors soak lint manual bench bench-metadata bench-pipeline clean

setup: ## system packages, virtual environment, editable install
	@scripts/setup $(VENV)

demo: setup ## three disks, one mount, a real broker, 20,000 messages (README's first command); KEEP=1: stay until Ctrl-C
	@$(PY) -m commitlogfs.bench.demo $(if $(KEEP),--keep)

test: setup ## the gate: what must pass before a change lands (README's second command)
	@scripts/test-lane gate $(ROOM)

test-full: setup ## every test that does not measure time; ROOM=takeover: those of one room
	@scripts/test-lane full $(ROOM)

test-timing: setup ## what measures time, makes storms or boots machines: one process, alone on the machine
	@scripts/test-lane timing $(ROOM)

test-floors: setup ## most of the gate with the oldest versions that pyproject.toml allows
	@scripts/test-floors

soak: setup ## longer proofs: hours
	@scripts/test-lane soak $(ROOM)

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
