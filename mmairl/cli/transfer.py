"""The command `mmairl transfer`."""

from pathlib import Path

from mmairl.cli.command import Part, Positive
from mmairl.errors import UserError


def transfer(
    checkpoint: str,
    *,
    tasks: str | None = None,
    part: Part = 'student',
    gpus: Positive = 1,
    normrescale: str | None = None,
    work_dir: Path | None = None,
    data: Path = Path('.'),
) -> None:
    """Train detectors and segmenters from a checkpoint, on the tasks of the papers' tables

    Tasks whose data is missing are skipped, and the missing folders are listed. After an interruption, the same command
    resumes.

    Args:
        checkpoint: start from this checkpoint in any known format
        tasks: run this comma-separated list of tasks, such as knn,linear,voc07,coco_fpn (default: the tasks of Huang et al.
            2022)
        part: choose the network in the checkpoint
        gpus: use N GPUs, or N CPU processes if there is no GPU
        normrescale: first rescale the backbone to the weight norms of this checkpoint (default: keep the weights)
        work_dir: write the runs and the table here (default: work_dirs/transfer/RUN_CKPT_PART)
        data: read the data sets in the folder `data` of this folder (default: the current folder)
    """
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmairl.engine.run import register
    from mmairl.report.table import Table
    from mmairl.transfer.execute import Place, run_task, write_start
    from mmairl.transfer.tasks import TASKS, chosen, lacking, require_platform, task_config

    register()
    names = chosen(tasks, rescaled=normrescale is not None)
    present = []
    for name in names:
        if absent := lacking(TASKS[name], data):
            folders = ', '.join(str(path.absolute()) for path in absent)
            print(f'{name}: skipped, because {folders} is missing')
        else:
            present.append(name)
    if not present:
        raise UserError(
            '--tasks: the data of all tasks is missing (the lines above list the folders); set --data, or create the folders, '
            'for example as links to your data',
            code='no-task-data',
        )
    require_platform(present)
    source = Path(checkpoint).absolute()
    suffix = '_normrescale' if normrescale else ''
    default = f'work_dirs/transfer/{source.parent.name}_{source.stem}_{part}{suffix}'
    place = Place(data.absolute(), Path(work_dir or default), gpus)
    start, depth = write_start(checkpoint, part, normrescale, place)
    # Building all configs first raises errors before hours are spent on the first task.
    for name in present:
        task_config(name, depth)
    measured: dict[str, float] = {}
    for name in present:
        measured |= run_task(name, start, depth, place)
    columns = [column for name in names for column in TASKS[name].scores]
    table = Table(['score, %', 'measured'], [[column, measured.get(column)] for column in columns])
    print(table.text())
    print(table.save(place.work_dir / 'table'))
