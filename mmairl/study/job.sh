#!/usr/bin/env bash
# Complete one run of a study as a Slurm job. The arguments are the folders of all runs in the job array. The file job.sh in
# the folder of a run has the commands of this run.
#SBATCH --nodes={{ nodes }} --ntasks-per-node={{ tasks }} --cpus-per-task={{ cpus }}
{% if gres %}
#SBATCH --gres={{ gres }}
{% endif %}
#SBATCH --output="{{ log }}" --open-mode=append
#SBATCH --requeue --signal=B:USR1@120
{% for option in options %}
#SBATCH {{ option }}
{% endfor %}

run_folder=${@:SLURM_ARRAY_TASK_ID + 1:1}
fail() { # MESSAGE EXIT_CODE
    echo "$1" >"$run_folder/failed.txt"
    exit "$2"
}
cd {{ folder }} && source {{ stopping }} ||
    fail "error: $(hostname) cannot read mmairl, or the folder in which the study was started; use folders that all nodes share" 2
exec >>"$run_folder/log.txt" 2>&1
job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
echo "job $job begins on $(hostname)"
echo "$job" >"$run_folder/begun.txt"
[[ ! -f $run_folder/failed.txt ]] || mv -f "$run_folder/failed.txt" "$run_folder/failed_before.txt"
{% if not gres %}
export OMP_NUM_THREADS=$((${SLURM_CPUS_PER_TASK:-{{ cpus }}} / {{ processes }}))
{% endif %}
{% for line in environment %}
{{ line }}
{% endfor %}

run() {
    start_again "$@"
    [[ $code != 75 ]] || go_back "$run_folder"
    [[ $code != 0 ]] || return 0
    words=$(tail -c 20000 "$run_folder/log.txt" | grep -E '{{ last_words }}' | tail -n 1)
    fail "${words:-exit code $code}" "$code"
}

source "$run_folder/job.sh"
