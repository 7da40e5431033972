# make run     make the environment and run the whole pipeline
# make test    make the environment and run the tests
# make env     make the environment alone
# make schema  write the JSON Schema of a campaign from its one description in narrowbench.config
# make lock    resolve the pins of pyproject.toml anew (needs uv)

VENV := .venv
# A machine with an NVIDIA GPU gets the CUDA build of JAX.
LOCK := $(if $(shell nvidia-smi -L 2>/dev/null),requirements-cuda13.lock,requirements.lock)
READY := $(VENV)/$(LOCK).installed
# Tried by running it: a version manager's shim can be on the path and still refuse.
PYTHON := $(shell for python in python3.13 python3.12 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo $$python && break; done)

.PHONY: env run test schema lock clean
env: $(READY)

run: $(READY)
	$(VENV)/bin/snakemake --cores 8

test: $(READY)
	$(VENV)/bin/pytest -n auto --maxprocesses 8

$(READY): $(LOCK)
	@if [ -z "$(PYTHON)" ]; then echo "narrowgemm needs Python 3.12 or newer, and none of python3.13, python3.12 and python3" \
		"is one: install it and run make again." >&2; exit 1; fi
	@echo "Installing $(LOCK) into $(VENV): pip fetches half a gigabyte and says nothing meanwhile; takes 2 to 3 minutes"
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install -qq --require-hashes -r $(LOCK)
	$(VENV)/bin/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

schema: $(READY)
	$(VENV)/bin/python -m narrowbench schema > workflow/schemas/campaign.schema.json

RESOLVE := uv pip compile --quiet --universal --python-version 3.12 --generate-hashes \
	--no-header --no-emit-index-url --no-emit-find-links
lock:
	$(RESOLVE) pyproject.toml --extra aot --extra dev --output-file requirements.lock
	$(RESOLVE) pyproject.toml --extra aot --extra dev --extra cuda13 --output-file requirements-cuda13.lock
	echo cffconvert==2.0.0 | $(RESOLVE) - --output-file .ci/citation.lock

clean:
	rm -rf $(VENV) build report .snakemake
