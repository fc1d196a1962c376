#!/usr/bin/env bash
# Makes .venv when it is missing and installs into it:
#   core  pre-training, k-NN and linear evaluation
#   full  core, plus mmdet, mmsegmentation and the test tools
#   ops   full, with mmcv's compiled ops in place of mmcv-lite: 20 minutes on 2 cores. Needed for detectors with ops that
#         torchvision has not, such as deformable convolutions; nothing of ours needs them
# Compiled ops that are already in .venv are kept by core and full.
# Idempotent: a stamp in .venv holds the hash of the requirements, and a second call returns at once.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?usage: requirements/install.sh core|full|ops}
stack=${STACK:-openmmlab}
say() { printf '\033[1m[setup]\033[0m %s\n' "$*"; }

[[ $what == core || $what == full || $what == ops ]] || { echo "error: '$what' is not a set-up; say core, full or ops" >&2; exit 2; }
[[ -f requirements/$stack.txt ]] || { echo "error: STACK=$stack is not known; say openmmlab or onedl" >&2; exit 2; }
[[ $what != ops || $stack == openmmlab ]] || { echo 'error: ops builds upstream mmcv; leave out STACK=onedl' >&2; exit 2; }
hash=$(cat requirements/*.txt pyproject.toml setup.py "$0" | sha256sum | cut -c1-16)
stamp=.venv/.installed
[[ -f $stamp ]] && read -r have_what have_stack have_hash <"$stamp" || have_what= have_stack= have_hash=
if [[ $have_stack == "$stack" && $have_hash == "$hash" && ( $have_what == "$what" || $have_what == ops || $what == core ) ]]; then
    exit 0
fi

if [[ ! -x .venv/bin/python ]]; then
    say "making .venv with $(${PYTHON:-python3} --version)"
    ${PYTHON:-python3} -m venv .venv
fi
pip() { .venv/bin/python -m pip --disable-pip-version-check -q "$@"; }
install() { pip install -c requirements/constraints.txt "$@"; }

has_ops() { .venv/bin/python -c 'import torch, mmcv._ext' 2>/dev/null; }

# mmcv ships as source only: it is built once per user, python, torch and mmcv version. Where there is no GPU its ops for GPUs
# are left out, so a home that several machines share has a wheel for each kind.
mmcv_wheel() {
    local version cache built
    version=$(sed -n 's/^mmcv==//p' requirements/constraints.txt)
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/mmairl/wheels/$(.venv/bin/python -c \
        "import sys, torch; print(f'py{sys.version_info[0]}{sys.version_info[1]}-torch{torch.__version__}-mmcv$version' + '-cuda' * torch.cuda.is_available())")
    if ! ls "$cache"/mmcv-*.whl >/dev/null 2>&1; then
        if grep -q 'C++20 or later' "$(.venv/bin/python -c 'import torch; print(torch.__path__[0])')/include/ATen/ATen.h"; then
            echo "error: this torch wants C++20 and mmcv $version is C++17; take an older one: rm -rf .venv; PYTHON=python3.11 make ops" >&2
            return 2
        fi
        say "building mmcv $version with its ops, once for this user: 20 minutes on 2 cores" >&2
        built=$(mktemp -d)
        # Beside a mmcv-lite already installed, pip would call mmcv satisfied only by name, so no --upgrade is needed.
        MMCV_WITH_OPS=1 pip wheel --no-deps --no-build-isolation --no-binary mmcv -w "$built" "mmcv==$version" >&2
        mkdir -p "$cache" && mv "$built"/mmcv-*.whl "$cache"/ && rm -rf "$built"
    fi
    ls "$cache"/mmcv-*.whl
}

say "installing core ($stack stack): torch, torchvision, mmengine, mmcv, mmpretrain"
install setuptools wheel
install -r requirements/runtime.txt
platform=requirements/$stack.txt
if has_ops; then
    install -r <(grep -v '^mmcv-lite' "$platform")
else
    install -r "$platform"
fi
if [[ $what != core || $have_what == full || $have_what == ops ]]; then
    say 'installing mmdet, mmsegmentation and the test tools'
    [[ $stack == openmmlab ]] && install -r requirements/transfer.txt || install onedl-mmdetection onedl-mmsegmentation
    install -r requirements/tests.txt
    [[ $what == ops ]] || what=full
fi
if [[ $what == ops ]] && ! has_ops; then
    say "mmcv's ops in place of mmcv-lite"
    install ninja
    wheel=$(mmcv_wheel)
    pip uninstall -y mmcv-lite
    install --no-deps "$wheel"
fi
has_ops && [[ $what == full ]] && what=ops
install --no-build-isolation --no-deps -e .
echo "$what $stack $hash" >"$stamp"
say "ready: .venv ($what)"
