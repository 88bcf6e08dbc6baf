# make train: an ALBERT learns to answer and to abstain, here, in minutes.
# make quick: linter, types, and the tests that start no process and no server.
# make test:  all tests but the soak.
# make soak:  all tests, property tests at ten times the examples, exports in transformers 4, 100
#             planted faults.
PYTHON ?= python3
PIP_INSTALL = .venv/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: train check quick test soak

train: .venv/runtime
	.venv/bin/python train.py

check quick test: .venv/testing
	@.venv/bin/python -m tests.parts $@

soak: check .venv/soaking .venv/transformers-4
	SOAK=1 OLDER_TRANSFORMERS=$(CURDIR)/.venv/transformers-4 \
	    .venv/bin/coverage run --rcfile tests/coverage.ini -m pytest \
	    -p tests.contexts --numprocesses 2 --dist worksteal -m "not gpu"
	.venv/bin/coverage combine --quiet --rcfile tests/coverage.ini
	.venv/bin/python -m tests.faults --seed "$$(date +%s)"

# Hashes are in a file of their own: with any in constraints.txt pip (23.0 to 25.3) refuses each
# requirement that has no hash itself.
.venv/runtime: requirements.lock constraints.txt
	@$(PYTHON) -c 'import ensurepip' || { echo 'make: this Python has no venv; on Debian: apt install python3-venv' >&2; exit 2; }
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo 'installing requirements.lock into .venv (some minutes the first time)'
	$(PIP_INSTALL) --require-hashes -r requirements.lock
	touch $@

.venv/testing: .venv/runtime tests/requirements.txt reports/requirements.txt requirements-serve.txt
	$(PIP_INSTALL) -c constraints.txt -r tests/requirements.txt
	touch $@

.venv/soaking: .venv/testing tests/requirements-soak.txt
	$(PIP_INSTALL) -c constraints.txt -r tests/requirements-soak.txt
	touch $@

# Without dependencies: torch and the others are those of the environment.
.venv/transformers-4: .venv/runtime tests/requirements-older.txt
	rm -rf $@
	$(PIP_INSTALL) --no-deps --target $@ -r tests/requirements-older.txt
	touch $@
