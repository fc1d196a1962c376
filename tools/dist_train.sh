#!/usr/bin/env bash
# tools/dist_train.sh CONFIG N [options of train.py]
# Train with N processes, on N GPUs or, without a GPU, on the CPU. With MAX_RESTARTS=3, a run that loses a process is restarted
# from its newest checkpoint up to three times. After a signal, the run saves and exits with code 75.
# To use several machines, set NNODES, NODE_RANK, MASTER_ADDR and PORT on each machine, as in OpenMMLab.
set -euo pipefail
[[ $# -ge 2 ]] || { echo "usage: tools/dist_train.sh CONFIG N [options]" >&2; exit 2; }
config=$1 processes=$2
[[ $processes =~ ^[1-9][0-9]*$ ]] || { echo "error: N: expected a number of processes ('$processes'); give 1 or more" >&2; exit 2; }
shift 2
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$([[ -x $here/.venv/bin/python ]] && echo "$here/.venv/bin/python" || echo python)}
# On one machine, the processes connect over the loopback, at PORT. By default, a free port is used, so that several runs do not
# collide.
# With several machines, anyone who can reach the port can disturb the run, so protect the port by a firewall.
where=()
if [[ ${NNODES:-1} != 1 ]]; then
    where=(--nnodes="$NNODES" --node-rank="${NODE_RANK:-0}"
        --master-addr="${MASTER_ADDR:?set it to the address of machine 0}" --master-port="${PORT:-29500}")
fi
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m mmairl.engine.launcher ${where[@]+"${where[@]}"} \
    --nproc-per-node="$processes" --max-restarts="${MAX_RESTARTS:-0}" "$here/tools/train.py" "$config" --launcher pytorch "$@"
