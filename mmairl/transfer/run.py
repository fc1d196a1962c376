"""One checkpoint through the tasks: written once as ours, each task run in its own folder, its scores read back."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mmengine.config import Config

from mmairl.analysis.normrescale import left_alone, normrescale
from mmairl.configs import load_config
from mmairl.errors import UserError
from mmairl.files import replacing
from mmairl.transfer.loaded import start_from
from mmairl.transfer.tasks import TASKS, config_of, for_processes
from mmairl.weights.architecture import resnet_of
from mmairl.weights.read import read_backbone
from mmairl.weights.write import write_backbone


@dataclass(frozen=True)
class Place:
    """Where configs and tools are, where data is looked for, and where this checkpoint's runs live."""

    repository: Path
    data: Path
    work_dir: Path
    gpus: int


def prepare(checkpoint: str, part: str, anchor: str | None, place: Place) -> tuple[Path, int]:
    """The backbone as a checkpoint of ours, rescaled where an anchor is given, and its depth."""
    backbone = read_backbone(checkpoint, part)
    depth = resnet_of(backbone.weights, checkpoint)['depth']
    start, record = place.work_dir / 'start.pth', {}
    if anchor is not None:
        weights, rows = normrescale(backbone.weights, read_backbone(anchor).weights)
        if skipped := left_alone([row for row in rows if row.norm and row.anchor != 0]):
            raise UserError(f'NormRescale by {anchor}: {skipped}; use an anchor of the same network')
        backbone.weights.update(weights)
        record['normrescale'] = anchor
    write_backbone(backbone, start, 'mmairl', **record)
    asked = place.work_dir / 'start.json'
    wanted = json.dumps(dict(checkpoint=str(Path(checkpoint).resolve()), part=part, anchor=anchor))
    if asked.is_file() and asked.read_text() != wanted:
        raise UserError(
            f'{place.work_dir} holds the runs of another start ({asked.read_text()}); give another --work-dir'
        )
    with replacing(asked) as beside:
        beside.write_text(wanted)
    return start, depth


def run_task(name: str, start: Path, depth: int, place: Place) -> dict[str, float]:
    """The task's scores in percent by the paper's columns; a finished task is read, an interrupted one goes on."""
    folder = place.work_dir / name
    done = folder / 'scores.json'
    if not done.is_file():
        (folder).mkdir(parents=True, exist_ok=True)
        path = config_of(name, depth, place.repository / 'configs')
        found = _evaluate(name, start, path, place) if TASKS[name].protocol else _train(name, start, path, place)
        with replacing(done) as beside:
            beside.write_text(json.dumps(found))
    return json.loads(done.read_text())


def _evaluate(name: str, start: Path, config: Path, place: Place) -> dict[str, float]:
    """A protocol of tools/evaluate.py, by as many processes as there are GPUs."""
    out, depth = place.work_dir / name / 'result.json', config.stem.split('_r')[-1]
    if not config.is_file():  # ImageNet's config is for ResNet-50; another depth is two keys
        config = config.with_name('imagenet_r50.py')
    width = 512 if int(depth) < 50 else 2048
    options = [f'model.backbone.depth={depth}', f'model.in_channels={width}']
    options += [
        f'evaluation.{part}.root={place.data / where}' for part, where in zip(('train', 'test'), TASKS[name].data)
    ]
    _call(place, 'evaluate.py', TASKS[name].protocol, config, start, '--out', out, '--cfg-options', *options)
    scores = json.loads(out.read_text())['scores']
    return {column: scores[key] for column, key in TASKS[name].scores.items()}


def _train(name: str, start: Path, path: Path, place: Place) -> dict[str, float]:
    """A detection or segmentation run with the real runner; its last scores are in the run's log of scalars."""
    folder = place.work_dir / name
    cfg = for_processes(start_from(load_config(str(path)), str(start.resolve())), place.gpus)
    _move_data(cfg, place.data)
    made = folder / 'task.py'
    with replacing(made) as beside:
        cfg.dump(str(beside.with_suffix('.py')))
        beside.with_suffix('.py').rename(beside)
    _call(place, 'train.py', made, '--work-dir', folder, '--resume')
    scores = last_scalars(folder)
    lacking = [key for key in TASKS[name].scores.values() if key not in scores]
    if lacking:
        raise UserError(f'{name} has ended without the score {lacking[0]}; its log is in {folder}')
    factor = 100 if TASKS[name].fraction else 1
    return {column: factor * scores[key] for column, key in TASKS[name].scores.items()}


def _move_data(cfg: Config, root: Path) -> None:
    """Every path of the config that begins with data/ looked for below `root`."""

    def move(node: object) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in list(items):
            if isinstance(value, str) and value.startswith('data/'):
                node[key] = str(root / value) if root != Path('.') else value
            else:
                move(value)

    move(cfg._cfg_dict)


def last_scalars(folder: Path) -> dict[str, float]:
    """The last value of everything that a run has logged, over its restarts."""
    found: dict[str, float] = {}
    for path in sorted(folder.glob('*/vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            found.update(json.loads(line))
    return found


def _call(place: Place, tool: str, *arguments: object) -> None:
    """One of our tools on the GPUs, or as that many CPU processes; its output is the user's to see."""
    several = place.gpus > 1
    command = [sys.executable]
    if several:
        command += ['-m', 'torch.distributed.run', '--standalone', f'--nproc_per_node={place.gpus}']
    command += [str(place.repository / 'tools' / tool), *map(str, arguments)]
    if several:
        position = command.index(str(place.repository / 'tools' / tool))
        command[position + 1 : position + 1] = ['--launcher', 'pytorch']
    path = os.pathsep.join(filter(None, [str(place.repository), os.environ.get('PYTHONPATH')]))
    if subprocess.run(command, env={**os.environ, 'PYTHONPATH': path}).returncode:
        raise UserError(
            f'{tool} has failed for {arguments[0]}; what it said is above, and it goes on when called again'
        )
