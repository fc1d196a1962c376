# Functions for scripts that start a run under Slurm. When a signal reaches the shell, the run saves, and the job is requeued or
# ends.
#
# Slurm sends USR1 before the time limit: the run saves, and the job is requeued. Slurm sends TERM after scancel, at a preemption,
# when a node is drained, and at the time limit: the run saves, and the job ends unless it has reached its time limit. Slurm itself
# requeues preempted jobs.
received= term= child= passed=
trap 'received=1; pass_on' USR1 USR2
trap 'received=1 term=1; pass_on' TERM INT HUP

# Pass the first signal on to the child, which is the process of the command. Each trap and each call of `start` calls this
# function, because the signal may arrive before the child exists. The child receives USR1, because srun would kill its tasks
# immediately on TERM.
pass_on() {
    [[ -n $received && -n $child && -z $passed ]] || return 0
    passed=1
    kill -USR1 "$child" 2>/dev/null || true
}

# start COMMAND...: run a command and set `code` to its exit code. `code` is 75 if the command must run again: if it exited with
# 75, if USR1 (138) or USR2 (140) killed it before it handled signals, or if a signal stopped it.
start() {
    code=75
    [[ -z $received ]] || return 0
    "$@" &
    child=$!
    pass_on
    while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done # a trap ends `wait` early
    wait "$child" && code=0 || code=$?
    child=
    [[ $code != 138 && $code != 140 && (-z $received || $code == 0) ]] || code=75
}

# start_again COMMAND...: call `start`. If a signal kills the command, such as SIGKILL when memory runs out, start the command
# again, up to three more times. The command must therefore resume by itself.
start_again() {
    local try
    for try in 1 2 3 4; do
        start "$@"
        [[ $code -gt 128 ]] || return 0
        export MMAIRL_STARTED_AGAIN=$try
    done
}

# go_back FOLDER: requeue the job (or this task of an array), or end it if it was canceled. A launcher may die before its workers.
# The workers of a study hold locks in the folder of the run until they have saved, so wait for these locks first.
go_back() {
    local lock id="${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
    for lock in "$1"/.lock_*; do [[ ! -e $lock ]] || flock -w 120 "$lock" true; done
    if [[ -n $term && $(squeue -h -j "$SLURM_JOB_ID" -o %r) != TimeLimit ]]; then
        echo "job $id was canceled and ends"
        exit 143
    fi
    echo "job $id is requeued"
    scontrol requeue "$id"
    exit 75
}
