# make train: an ALBERT learns to answer and to abstain, here, in minutes.
# make test:  the checks that the package stands on.
PYTHON ?= python3
PIP_INSTALL = .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: train test

train: .venv/runtime
	.venv/bin/python train.py

test: .venv/testing
	.venv/bin/ruff check .
	.venv/bin/python -m pytest --numprocesses 2 --dist worksteal

.venv/runtime: requirements.txt constraints.txt
	@$(PYTHON) -c 'import ensurepip' || { echo 'make: this Python has no venv; on Debian: apt install python3-venv' >&2; exit 2; }
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo 'installing requirements.txt into .venv (some minutes the first time)'
	$(PIP_INSTALL) -r requirements.txt
	touch $@

.venv/testing: .venv/runtime tests/requirements.txt reports/requirements.txt requirements-serve.txt
	$(PIP_INSTALL) -r tests/requirements.txt
	touch $@
