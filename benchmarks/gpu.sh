#!/bin/sh
# A day with a GPU (docs/speed.md): bash benchmarks/gpu.sh [--output FOLDER]
# Without Determined it installs the wheels of `make gpu-wheels` into a folder that it removes.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ]; then python=.venv/bin/python; fi

has() { "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }
need() {
    for package; do
        if ! has "$package"; then
            echo "gpu: error: $python has no $package; set PYTHON, or run make gpu-wheels where there is a network" >&2
            exit 2
        fi
    done
}

need torch transformers
if ! has determined && ls .gpu/wheels/*.whl >/dev/null 2>&1; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-index --no-deps \
        --no-compile --target "$site" .gpu/wheels/*.whl
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
need determined datasets torch_optimizer loky pytest
"$python" -m benchmarks.gpu_day "$@"
