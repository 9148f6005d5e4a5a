PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test bench bench-grpo check format install up down clean

demo: .venv/demo.stamp  ## the whole federation on this machine, in minutes
	$(BIN)/pubswap demo

test: .venv/dev.stamp  ## all tests, with coverage
	$(BIN)/coverage erase
	OMP_NUM_THREADS=1 $(BIN)/pytest --cov --cov-report=term

bench: bench-grpo  ## all benchmarks

bench-grpo: .venv/dev.stamp  ## a GRPO step against TRL's GRPOTrainer, in about an hour
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/grpo.py

check: .venv/dev.stamp  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

install: .venv/dev.stamp

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch goes first and by its exact version: asked for by a range, the registry's newest build
# with gigabytes of CUDA would come, where a CPU build of this one may be offered.
.venv/demo.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) "$$(grep '^torch==' constraints.txt)"
	$(INSTALL) -e '.[server,client]'
	touch $@

.venv/dev.stamp: .venv/demo.stamp
	$(INSTALL) -e '.[server,client,dev]'
	touch $@

up: .env  ## the same federation in containers
	docker compose up --build

down:
	docker compose down --volumes

.env:
	umask 077; printf 'POSTGRES_PASSWORD=%s\n' "$$($(PYTHON) -c 'import secrets; print(secrets.token_urlsafe(24))')" > $@

clean:
	rm -rf .venv demo-out
