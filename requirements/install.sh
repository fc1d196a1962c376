#!/usr/bin/env bash
# Create .venv if it is missing, and install one of these set-ups into it:
#   core  pre-training, k-NN and linear evaluation
#   full  core, plus mmdet, mmsegmentation and the test tools
#   ops   full, with mmcv's compiled ops instead of mmcv-lite, which takes 20 minutes on 2 cores. Detectors need compiled ops if
#         torchvision has no equivalent, such as for deformable convolutions. mmairl itself does not need them.
# If .venv already has compiled ops, core and full keep them.
# A stamp file in .venv holds the hash of the requirements, so a second call with the same requirements does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?usage: requirements/install.sh core|full|ops}
stack=${STACK:-openmmlab}
say() { printf '\033[1m[setup]\033[0m %s\n' "$*"; }

[[ $what == core || $what == full || $what == ops ]] || { echo "error: unknown set-up ('$what'); choose core, full or ops" >&2; exit 2; }
[[ -f requirements/$stack.txt ]] || { echo "error: STACK: unknown stack ('$stack'); choose openmmlab or onedl" >&2; exit 2; }
[[ $what != ops || $stack == openmmlab ]] || { echo 'error: ops builds the mmcv of OpenMMLab; omit STACK=onedl' >&2; exit 2; }
hash=$(cat requirements/*.txt pyproject.toml setup.py "$0" | sha256sum | cut -c1-16)
stamp=.venv/.installed
[[ -f $stamp ]] && read -r have_what have_stack have_hash <"$stamp" || have_what= have_stack= have_hash=
if [[ $have_stack == "$stack" && $have_hash == "$hash" && ( $have_what == "$what" || $have_what == ops || $what == core ) ]]; then
    exit 0
fi

if [[ ! -x .venv/bin/python ]]; then
    say "creating .venv with $(${PYTHON:-python3} --version)"
    ${PYTHON:-python3} -m venv .venv
fi
pip() { .venv/bin/python -m pip --disable-pip-version-check -q "$@"; }
install() { pip install -c requirements/constraints.txt "$@"; }

has_ops() { .venv/bin/python -c 'import torch, mmcv._ext' 2>/dev/null; }

# mmcv is released only as source, so it is built once for each user and version of Python, torch and mmcv. On a machine without
# a GPU, the build has no GPU ops. Machines with and without a GPU may share a home folder, so they cache separate wheels.
mmcv_wheel() {
    local version cache built
    version=$(sed -n 's/^mmcv==//p' requirements/constraints.txt)
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/mmairl/wheels/$(.venv/bin/python -c \
        "import sys, torch; print(f'py{sys.version_info[0]}{sys.version_info[1]}-torch{torch.__version__}-mmcv$version' + '-cuda' * torch.cuda.is_available())")
    if ! ls "$cache"/mmcv-*.whl >/dev/null 2>&1; then
        if grep -q 'C++20 or later' "$(.venv/bin/python -c 'import torch; print(torch.__path__[0])')/include/ATen/ATen.h"; then
            echo "error: this version of torch requires C++20, but mmcv $version is C++17; use an older torch: rm -rf .venv; PYTHON=python3.11 make ops" >&2
            return 2
        fi
        say "building mmcv $version with its ops, once for this user; this takes 20 minutes on 2 cores" >&2
        built=$(mktemp -d)
        # pip does not treat an installed mmcv-lite as mmcv, so --upgrade is not needed.
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
    say "replacing mmcv-lite by mmcv with compiled ops"
    install ninja
    wheel=$(mmcv_wheel)
    pip uninstall -y mmcv-lite
    install --no-deps "$wheel"
fi
has_ops && [[ $what == full ]] && what=ops
install --no-build-isolation --no-deps -e .
echo "$what $stack $hash" >"$stamp"
say "ready: .venv ($what)"
