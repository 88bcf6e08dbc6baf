#!/bin/sh
# A day with a GPU (docs/speed.md): bash benchmarks/gpu.sh [--output FOLDER]
# Without a network it installs the wheels of `make gpu-wheels` into a folder that it removes.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ]; then python=.venv/bin/python; fi

has() { "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }

if ! has torch; then
    echo "gpu: error: $python has no torch; set PYTHON to one that has" >&2
    exit 2
fi
if ! has determined && ls .gpu/wheels/*.whl >/dev/null 2>&1; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-index --no-deps \
        --no-compile --target "$site" .gpu/wheels/*.whl
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
"$python" -m benchmarks.gpu_day "$@"
