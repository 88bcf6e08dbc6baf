#!/bin/sh
# The gpu tests, and the step of each workload beside the baseline: make gpu (docs/speed.md)
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
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "gpu: error: $python sees no GPU; run it on a machine with one" >&2
    exit 2
fi
if ! has determined && ls .gpu/wheels/*.whl >/dev/null 2>&1; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-index --no-deps \
        --no-compile --target "$site" .gpu/wheels/*.whl
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
need determined datasets pydantic torch_optimizer loky pytest
# The tests hide all GPUs from themselves unless the variable is there.
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}" HF_HUB_OFFLINE=1
status=0
output=runs/gpu
mkdir -p "$output"

step() {
    echo "step $*"
    "$python" -m benchmarks step --json --workload "$@" >"$output/part" || { status=1; return; }
    mv "$output/part" "$output/$1.json"
}
questions=
if [ -d .gpu/squad ]; then questions="--data .gpu/squad --tokenizer .gpu/albert-tokenizer"; fi
step finetuning --shape xxlarge $questions
step pretraining --shape base --windows 64
step lm --shape 125m --windows 32
"$python" -m pytest -q -n 0 -p no:cacheprovider -m gpu tests/engine/test_on_a_gpu.py || status=1
exit "$status"
