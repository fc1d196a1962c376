#!/usr/bin/env bash
# Create .venv if it is missing, and install into it:
#   core  pre-training, k-NN and linear evaluation
#   full  core, mmdet, mmsegmentation and the test tools
# A stamp file in .venv holds the hash of the requirements, so a second call with the same requirements does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?usage: requirements/install.sh core|full}
files=(requirements/runtime.txt requirements/openmmlab.txt)
[[ $what == core ]] || files+=(requirements/transfer.txt requirements/tests.txt)
hash=$(cat requirements/*.txt pyproject.toml setup.py "$0" | sha256sum | cut -c1-16)
grep -qsE "^(full|$what) $hash" .venv/.installed && exit 0

[[ -x .venv/bin/python ]] || "${PYTHON:-python3}" -m venv .venv
install() { .venv/bin/python -m pip --disable-pip-version-check install -q -c requirements/constraints.txt "$@"; }
echo "installing into .venv ($what); this takes minutes"
install setuptools wheel
install "${files[@]/#/-r}"
install --no-build-isolation --no-deps -e .
echo "$what $hash" >.venv/.installed
