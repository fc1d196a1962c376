#!/usr/bin/env bash
# tools/dist_evaluate.sh N PROTOCOL CONFIG CKPT [evaluate.py's options]: N processes, on N GPUs or, without one, on the CPU.
set -euo pipefail
[[ $# -ge 3 ]] || { echo "usage: tools/dist_evaluate.sh N PROTOCOL CONFIG [CKPT] [options]" >&2; exit 2; }
processes=$1
shift
[[ $processes =~ ^[1-9][0-9]*$ ]] || { echo "error: N=$processes is not a number of processes; give 1 or more" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$([[ -x $here/.venv/bin/python ]] && echo "$here/.venv/bin/python" || echo python)}
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m mmairl.engine.launcher \
    --nproc_per_node="$processes" "$here/tools/evaluate.py" "$@" --launcher pytorch
