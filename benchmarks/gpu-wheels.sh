#!/bin/sh
# Download what a machine with torch and transformers lacks for `make gpu`: make gpu-wheels
# Into .gpu: wheels for Python 3.12 on Linux, in the versions of constraints.txt.
set -eu
cd "$(dirname "$0")/.."
platforms=
# pip takes a manylinux version by its exact number.
for name in manylinux_2_34 manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1; do
    platforms="$platforms --platform ${name}_x86_64"
done
rm -rf .gpu
mkdir .gpu
# shellcheck disable=SC2086  # words
"${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps \
    --only-binary=:all: --python-version 3.12 --implementation cp $platforms \
    -c constraints.txt -r benchmarks/gpu-wheels.txt --dest .gpu/wheels
mkdir .gpu/squad .gpu/albert-tokenizer
for name in train dev; do xz -dc "tests/golden/$name.json.xz" >".gpu/squad/$name.json"; done
cp tests/golden/albert-tokenizer/tokenizer_config.json .gpu/albert-tokenizer
xz -dc tests/golden/albert-tokenizer/tokenizer.json.xz >.gpu/albert-tokenizer/tokenizer.json
echo ".gpu: $(ls .gpu/wheels | wc -l) wheels, $(du -sm .gpu | cut -f1) MiB (64 at most, with the repository)"
