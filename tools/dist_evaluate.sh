#!/usr/bin/env bash
# tools/dist_evaluate.sh N PROTOCOL CONFIG [CKPT] [options of evaluate.py]
# Evaluate with N processes, on N GPUs or, without a GPU, on the CPU.
set -euo pipefail
[[ $# -ge 3 ]] || { echo "usage: tools/dist_evaluate.sh N PROTOCOL CONFIG [CKPT] [options]" >&2; exit 2; }
processes=$1
shift
[[ $processes =~ ^[1-9][0-9]*$ ]] || { echo "error: N: expected a number of processes ('$processes'); give 1 or more" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$([[ -x $here/.venv/bin/python ]] && echo "$here/.venv/bin/python" || echo python)}
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m mmairl.engine.launcher \
    --nproc-per-node="$processes" "$here/tools/evaluate.py" "$@" --launcher pytorch
