
# mmairl study appends the lines below to the cluster's header. The arguments are the folder in which the study was started, a file
# with the folder of each run, the Python interpreter, mmairl's folder, and the pattern of error lines.
cd "$1" && source "$4/signals.sh" || exit 2
run_folder=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" "$2")
worker=("$3" -m mmairl.study.worker "$run_folder")
exec >>"$run_folder/log.txt" 2>&1
echo "job ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID begins on $(hostname)"
rm -f "$run_folder/failed.txt"
# If srun received the job's signals, it would kill its tasks before they save. `setsid` starts srun in a session of its own.
if [[ ${SLURM_NTASKS:-1} -gt 1 ]]; then
    start_again setsid srun --kill-on-bad-exit=0 --wait=120 "${worker[@]}" --launcher slurm
else
    start_again "${worker[@]}"
fi
[[ $code != 0 ]] || start_again "${worker[@]}" --transfer "${SLURM_GPUS_ON_NODE:-1}"
[[ $code != 75 ]] || go_back "$run_folder"
if [[ $code != 0 ]]; then
    words=$(tail -c 20000 "$run_folder/log.txt" | grep -E "$5" | tail -n 1)
    echo "${words:-exit code $code}" >"$run_folder/failed.txt"
fi
exit "$code"
