"""The command `mmairl study`."""

from pathlib import Path

from mmairl.cli.command import Positive, Seed


def study(
    study: Path | None = None,
    *,
    scale: str = 'in1k',
    seeds: list[Seed] | None = None,
    tasks: list[str] | None = None,
    out: Path | None = None,
    fresh: bool = False,
    remeasure: bool = False,
    per_run: Positive = 1,
    jobs: Positive | None = None,
    slurm: Path | None = None,
    dry_run: bool = False,
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
            by a YAML file. The scale in1k changes nothing.
        seeds: run these seeds (default: the study's seeds, or the scale's seeds if the scale has more)
        tasks: evaluate with these tasks (default: the study's or the scale's)
        out: write to this folder (default: work_dirs/studies/STUDY_SCALE)
        fresh: move runs aside whose settings or sources changed after they were started, and start them again (default: off)
        remeasure: evaluate finished runs again and replace their scores, but keep their weights (default: off)
        per_run: use N GPUs for each run, or N CPU processes if there is no GPU
        jobs: run N runs at a time (default: the number of GPUs, or of cores if there is no GPU, divided by --per-run)
        slurm: submit the runs as Slurm jobs with the #SBATCH lines of this script (default: run them here)
        dry_run: execute the configs, print the plan, check fairness and exit (default: off)
        status: print the state of each run and exit; can be used while the study runs (default: off)
        collect: write the page about the finished runs and exit (default: run missing runs first)
    """
    if study is None:
        from mmairl.config import home
        from mmairl.study.study import read_study

        for path in sorted((home() / 'configs' / 'studies').glob('[!_]*.yaml')):
            print(f'mmairl::studies/{path.name}: {read_study(path).title}')
        return
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmairl.engine.run import register
    from mmairl.study import commands

    register()
    prepared = commands.prepare_study(study, scale, seeds, tasks, out)
    if status:
        commands.show_status(prepared)
        return
    if not collect:
        commands.show_plan(prepared)
        if dry_run:
            return
        commands.run_study(prepared, jobs, per_run, fresh, remeasure, header=slurm)
        if slurm:
            return
    commands.report_study(prepared)
