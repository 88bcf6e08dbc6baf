# make train: an ALBERT learns to answer and to abstain, here, in minutes.
# make quick: linter, types, and the tests that start no process and are not slow.
# make test:  all tests but the soak; make tests TESTS=tests/squad: some of them, without the linter.
# make soak:  all tests, property tests at ten times the examples, exports in transformers 4, 100
#             planted faults.
# make gpu:   steps beside the baseline and the tests that need a GPU; make gpu-wheels: what that
#             needs without a network, in .gpu (docs/speed.md).
PYTEST = .venv/bin/python -m pytest --numprocesses 2 --dist worksteal
TRANSFORMERS_4 = transformers==4.57.6 tokenizers==0.22.2 huggingface-hub==0.36.2
export PYTHON
# Modules are compiled once, whatever the environment says, and not at each of a thousand starts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train check quick test tests soak gpu gpu-wheels packages

train:
	@.ci/install train --no-dev --extra cluster
	.venv/bin/python train.py

packages:
	@.ci/install all

check: packages
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports --no-logo
	.venv/bin/mypy

quick: check
	$(PYTEST) -m "quick and not slow"

tests: packages
	$(PYTEST) $(TESTS)

test: check tests

soak: check .venv/transformers-4
	SOAK=1 OLDER_TRANSFORMERS=$(CURDIR)/.venv/transformers-4 \
	    .venv/bin/coverage run --rcfile tests/coverage.ini -m pytest \
	    -p tests.contexts --numprocesses 2 --dist worksteal --timeout 7200 -m "not gpu"
	.venv/bin/coverage combine --quiet --rcfile tests/coverage.ini
	.venv/bin/python -m tests.faults --seed "$$(date +%s)"

# Without dependencies: torch and the others are those of the environment.
.venv/transformers-4: packages
	test -d $@ || .venv/bin/python -m pip install --quiet --no-deps --target $@ $(TRANSFORMERS_4)

# After `uv lock`: the exact versions for pip, without what torch brings for its GPU.
constraints.txt: uv.lock
	(echo "# The exact versions that the tests passed with: pip install -c constraints.txt"; \
	 echo "# Written by make constraints.txt, from uv.lock, which has their hashes."; \
	 uv export --quiet --frozen --no-hashes --no-annotate --no-header --no-emit-project | \
	 sed -E '/^(cuda-|nvidia-[^m]|setuptools=|triton=)/d; s/ ;.*//') >$@

gpu gpu-wheels:
	@sh benchmarks/$@.sh
