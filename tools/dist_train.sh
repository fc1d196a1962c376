#!/usr/bin/env bash
# tools/dist_train.sh CONFIG N [train.py's options]: N processes, on N GPUs or, where there is none, on the CPU.
# MAX_RESTARTS=3 starts a run that lost a process again from its newest checkpoint. One that was told to stop leaves with 75.
# Several machines: set NNODES, NODE_RANK, MASTER_ADDR and PORT on each, as in OpenMMLab.
set -euo pipefail
[[ $# -ge 2 ]] || { echo "usage: tools/dist_train.sh CONFIG N [options]" >&2; exit 2; }
config=$1 processes=$2
[[ $processes =~ ^[1-9][0-9]*$ ]] || { echo "error: N=$processes is not a number of processes; give 1 or more" >&2; exit 2; }
shift 2
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$([[ -x $here/.venv/bin/python ]] && echo "$here/.venv/bin/python" || echo python)}
# One machine: the processes meet on the loopback, at PORT or a free port, so two runs beside each other do not collide.
# Several: whoever reaches the port can end the run; let a firewall keep others away.
where=()
if [[ ${NNODES:-1} != 1 ]]; then
    where=(--nnodes="$NNODES" --node_rank="${NODE_RANK:-0}"
        --master_addr="${MASTER_ADDR:?set it to the address of machine 0}" --master_port="${PORT:-29500}")
fi
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m mmairl.engine.launcher ${where[@]+"${where[@]}"} \
    --nproc_per_node="$processes" --max-restarts="${MAX_RESTARTS:-0}" "$here/tools/train.py" "$config" --launcher pytorch "$@"
