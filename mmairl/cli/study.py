"""The command `mmairl study`."""

from pathlib import Path

from mmairl.cli.command import Count, Positive, Seed
from mmairl.errors import UserError


def study(
    study: Path | None = None,
    *,
    scale: str = 'in1k',
    seeds: list[Seed] | None = None,
    tasks: list[str] | None = None,
    out: Path | None = None,
    remeasure: bool = False,
    gpus: Count | None = None,
    per_run: Positive = 1,
    jobs: Positive | None = None,
    slurm: str | None = None,
    cluster: Path | None = None,
    dry_run: bool = False,
    rate: float | None = None,
    status: bool = False,
    collect: bool = False,
) -> None:
    """Compare configs over several seeds, and write a page of effects and verdicts

    mmairl study configs/studies/ladder.yaml --scale demo

    The command trains and evaluates the runs that are missing, and writes study.json, page.html, table.md and table.tex.
    After an interruption, the same command resumes. Finished runs are not repeated.

    Args:
        study: run this study, such as configs/studies/ladder.yaml (default: list the built-in studies)
        scale: choose data, network and length of runs by a scale of configs/studies/_scales, such as demo, cifar or in100, or
            by a YAML file
        seeds: run these seeds (default: the study's seeds, or the scale's seeds if the scale has more)
        tasks: evaluate with these tasks (default: the study's or the scale's)
        out: write to this folder (default: work_dirs/studies/STUDY_SCALE)
        remeasure: evaluate finished runs again and replace their scores, but keep their weights (default: off)
        gpus: use N GPUs; with --slurm, 0 requests nodes without GPUs (default: all GPUs of this machine)
        per_run: use N GPUs for each run, or N CPU processes if there is no GPU
        jobs: run N runs at a time (default: the number of GPUs, or of cores if there is no GPU, divided by --per-run)
        slurm: submit the runs as jobs to this partition (default: run them here)
        cluster: submit the runs to a cluster that this profile describes, see docs/how-to/studies.md (default: run them here)
        dry_run: execute the configs, print the plan, check fairness and exit (default: off)
        rate: assume this number of images per second and device in the plan (default: the rate of the scale)
        status: print the state of each run and exit; can be used while the study runs (default: off)
        collect: write the page about the finished runs and exit (default: run missing runs first)
    """
    if study is None:
        from mmairl.config import home
        from mmairl.study.spec import catalogue

        print(catalogue(home() / 'configs' / 'studies'), end='')
        return
    if remeasure and (dry_run or status or collect):
        raise UserError(
            '--remeasure: cannot be combined with --dry-run, --status or --collect; leave one of them out',
            code='remeasure-conflict',
        )
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmairl.engine.run import register
    from mmairl.study import commands

    register()
    prepared = commands.prepare_study(study, scale, seeds, tasks, out, rate)
    if collect and not prepared.out.is_dir():
        raise UserError(
            f'--collect: no such folder ({prepared.out}); set --out to the folder of the study',
            code='no-study-folder',
        )
    for line in prepared.rows_left_out:
        commands.say(line)
    if status:
        commands.show_status(prepared.planned_runs())
        return
    at_once = jobs or number_of_jobs(gpus, per_run)
    commands.show_plan(prepared, at_once * per_run)
    if dry_run:
        commands.show_forms(prepared)
        return
    if collect:
        runs = prepared.planned_runs()
    else:
        commands.require_platforms(prepared)
        runs = prepared.laid_out_runs(remeasure)
        if slurm or cluster:
            commands.submit_jobs(prepared, runs, per_run, slurm, cluster, gpus)
            return
        commands.run_locally(runs, at_once, per_run)
    commands.write_results(prepared, runs)


def number_of_jobs(gpus: int | None, per_run: int) -> int:
    """Return how many runs to run at the same time."""
    import torch

    from mmairl.hardware import cores

    devices = torch.cuda.device_count() if gpus is None else gpus
    return max(1, (devices or cores()) // per_run)
