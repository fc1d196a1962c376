"""Train one run of a study, measure it and write its results: python -m mmairl.study.worker FOLDER"""

if __name__ == '__main__':
    from mmairl.signals import prepare

    # The imports below take seconds. `prepare` is called first, so that signals are also handled during the imports.
    prepare()

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.dist import barrier, get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor
from torch.utils.data import Subset

from mmairl.checkpoints.architecture import tensors_of
from mmairl.checkpoints.normrescale import normrescale
from mmairl.checkpoints.read import Backbone, read_backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.config import load_config
from mmairl.engine.distributed import start_processes
from mmairl.engine.hooks.after_step import accumulated
from mmairl.engine.run import register, train
from mmairl.errors import UserError, one_sentence_errors
from mmairl.evaluation.backbone import load_backbone, refresh_statistics
from mmairl.evaluation.features import extract, extraction
from mmairl.evaluation.identity import key_of, versions, weights_identity
from mmairl.evaluation.protocol import default_device, default_workers, evaluate, settings_for
from mmairl.evaluation.sources import source_of
from mmairl.io import read_json, read_text, write_json
from mmairl.models.processes import network_of
from mmairl.models.spectrum import rankme, spread
from mmairl.registry import DATASETS
from mmairl.signals import AGAIN, stop_processes
from mmairl.study.fairness import differing_keys
from mmairl.study.runs import (
    COLLAPSE,
    CONFIG,
    REQUEST,
    SOURCE,
    STATED,
    TRAINED,
    Health,
    Measured,
    Request,
    Start,
    Trained,
    sources_of,
)
from mmairl.study.tasks import config_of, is_local, protocol_of

# the approximate number of batches on which batch norm's statistics are measured, as in PreciseBN
STATISTICS = 200
PATIENCE = 60  # how many seconds to wait until an earlier start of the same run has saved its state and exited
IMAGES = 256  # the number of test images whose features are compared to detect a collapse
PACKAGES = [
    'torch',
    'torchvision',
    'mmengine',
    'mmcv',
    'mmpretrain',
    'mmdet',
    'mmsegmentation',
    'numpy',
]
# The order of this many images at the start of the first epoch identifies the order of all images.
FIRST = 2**21
FEATURES = 'features'  # the folder of extracted features, which the tasks of a run share


class RecordStart(Hook):
    """Writes digests of the backbone's initial weights, of their shapes, and of the order of images in the first epoch.

    The weights of heads are not included, because rows that differ in their heads can start from the same backbone. Each
    checkpoint stores the seconds of training until then, so the time of a resumed run is that of all its parts.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.began = time.perf_counter()
        self.earlier = 0.0

    @property
    def seconds(self) -> float:
        return self.earlier + time.perf_counter() - self.began

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['seconds'] = self.seconds

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.earlier = checkpoint.get('seconds', 0.0)

    def before_train(self, runner: Runner) -> None:
        if runner.iter or not is_main_process():
            return
        state = network_of(runner).backbone.state_dict()
        weights = {name: tensor.cpu() for name, tensor in state.items()}
        shapes = {name: list(tensor.shape) for name, tensor in weights.items()}
        sampler = runner.train_dataloader.sampler
        order = None
        # Only the sampler of this package can compute the order in advance.
        if hasattr(sampler, 'order'):
            order = key_of({'images': sampler.order()[:FIRST].tolist()})
        write_json(self.path, Start(weights_identity(weights), key_of(shapes), order))


@one_sentence_errors
def run_worker() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('folder', type=Path, help='read config.yaml and run.json in this folder')
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm'], default='none')
    parser.add_argument(
        '--transfer',
        type=int,
        metavar='GPUS',
        help='run only the tasks of tools/transfer.py, each on GPUS GPUs (default: all other tasks)',
    )
    args = parser.parse_args()
    warnings.filterwarnings('ignore')
    register()
    lock = FileLock(args.folder / f'.lock_{launch_rank(args.launcher)}', timeout=PATIENCE)
    try:
        # Each rank locks a file of its own, so that a second start of the same run is detected with every launcher.
        with lock:
            if args.transfer is None:
                complete_run(args.folder, args.launcher)
            else:
                transfer_run(args.folder, args.transfer)
    # The wait for the lock times out, for example, if Slurm has requeued a job because it could not reach the job's node,
    # and that node is still executing the job.
    except Timeout:
        message = (
            f'error: {args.folder} is in use by another process of this run; start it again later'
        )
        print(message, file=sys.stderr)
        sys.exit(AGAIN)
    stop_processes()


def launch_rank(launcher: str) -> str:
    """Return the rank of this process. As the process group may not exist yet, it comes from the variables of the launcher."""
    if launcher == 'none':  # independent runs may be tasks of one srun
        return '0'
    return os.environ.get('RANK') or os.environ['SLURM_PROCID']


def complete_run(folder: Path, launcher: str = 'none') -> None:
    """Complete a run: train or create its weights, and measure them by its tasks. Finished steps are skipped."""
    request = read_json(folder / REQUEST, Request)
    cfg = load_config(str(folder / CONFIG))
    # Without the file name, mmengine does not overwrite config.yaml by the completed config.
    cfg = Config(cfg.to_dict())
    if not request.untrained and not (folder / TRAINED).is_file():
        require_same_sources(cfg, request, folder)
        if request.trains:
            train_row(cfg, request, folder, launcher)
        elif launch_rank(launcher) == '0':
            create_weights(cfg, request, folder)
    start_processes(launcher)
    barrier()  # The other ranks wait here until the main process has written trained.json.
    for task in request.tasks:
        if is_local(task) and not (folder / f'{task}.json').is_file():
            measure(task, folder, request, launcher)
    if is_main_process():
        if not request.untrained and not (folder / COLLAPSE).is_file():
            write_json(folder / COLLAPSE, measure_collapse(cfg, checkpoint_of(folder)))
        shutil.rmtree(folder / FEATURES, ignore_errors=True)


def checkpoint_of(folder: Path) -> str:
    return str(folder / read_json(folder / TRAINED, Trained).checkpoint)


def require_same_sources(cfg: Config, request: Request, folder: Path) -> None:
    """Raise an error if a module that training imports from outside the package has changed since the study was started."""
    before = {key: value for key, value in request.fingerprint.items() if key.startswith(SOURCE)}
    if changed := differing_keys(before, sources_of(cfg)):
        raise UserError(
            f'{folder}: {", ".join(changed)} has changed since the study was started; start the study again',
            code='source-changed',
        )


def train_row(cfg: Config, request: Request, folder: Path, launcher: str) -> None:
    """Train a run from its seed, and write trained.json."""
    cfg.work_dir = str(folder)
    cfg.setdefault('randomness', {})['seed'] = request.fingerprint['seed']
    cfg.resume = 'auto'
    recorder = RecordStart(folder / 'start.json')
    runner = train(cfg, launcher, hooks=[recorder])
    if not is_main_process():
        return
    batch = runner.train_dataloader.batch_size * get_world_size()
    write_trained(
        folder,
        request,
        Path(read_text(folder / 'last_checkpoint').strip()).name,
        seconds=recorder.seconds,
        steps=runner.max_iters // accumulated(runner),
        images_seen=runner.max_iters * batch,
        start=read_json(folder / 'start.json', Start),
    )


def create_weights(cfg: Config, request: Request, folder: Path) -> None:
    """Create the weights of a run that is not trained, and write trained.json.

    Raises:
        UserError: If the other run is not finished, if it has not kept the requested checkpoint, or if the weights do not fit
            the network.
    """
    settings = request.fingerprint
    facts = {}
    if request.file:
        backbone = read_backbone(request.file, network=tensors_of(cfg.model.backbone))
        backbone.weights.update(load_backbone(cfg, backbone).state_dict())
    else:
        other = Path(request.folders['row'])
        source = read_json(other / TRAINED, Trained)
        part = Fraction(settings.get('at', 1))
        name = re.sub(r'\d+', lambda number: str(round(int(number[0]) * part)), source.checkpoint)
        backbone = read_backbone(str(other / name), network=tensors_of(cfg.model.backbone))
        if settings.keys() & {'constant', 'anchor'}:
            rescale(cfg, backbone, request)
        facts['start'] = source.start
        # A checkpoint from before the end of the other run has seen an unknown number of images.
        if 'at' not in settings:
            facts |= dict(steps=source.steps, images_seen=source.images_seen)
    write_backbone(backbone, folder / 'derived.pth', 'mmairl')
    write_trained(folder, request, 'derived.pth', **facts)


def rescale(cfg: Config, backbone: Backbone, request: Request) -> None:
    """Rescale weights by NormRescale, and measure batch norm's statistics again.

    Rescaling changes the activations of the network. With the old statistics, the accuracy of k-NN would be at chance.
    """
    anchor = None
    if 'anchor' in request.folders:
        anchor = read_backbone(checkpoint_of(Path(request.folders['anchor']))).weights
    rescaled, _ = normrescale(backbone.weights, anchor, request.fingerprint.get('constant'))
    backbone.weights.update(rescaled)
    network = load_backbone(cfg, backbone)
    how = extraction(cfg, default_device(), default_workers())
    data = DATASETS.build(cfg.evaluation.train)
    step = max(1, len(data) // (STATISTICS * how.batch_size))
    batches = how.images(Subset(data, range(0, len(data), step)))
    refresh_statistics(network.to(how.device), (images for images, *_ in batches))
    backbone.weights.update(network.cpu().state_dict())


def write_trained(folder: Path, request: Request, checkpoint: str, **facts: Any) -> None:
    """Write trained.json with the facts about the weights, the code, the packages and the hardware."""
    trained = Trained(
        fingerprint=request.fingerprint,
        checkpoint=checkpoint,
        commit=commit(),
        source=source_of('.'),
        versions=versions(PACKAGES),
        hardware=torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        **facts,
    )
    write_json(folder / TRAINED, trained)


def commit() -> str:
    """Return the commit of the checkout, or '' without a checkout or git."""
    command = ['git', 'describe', '--always', '--exclude=*', '--dirty= with changes']
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return ''
    return done.stdout.strip()


def measure(task: str, folder: Path, request: Request, launcher: str) -> None:
    """Measure a run by a task of `tools/evaluate.py`, and write TASK.json."""
    cfg = config_of(task, load_config(str(folder / CONFIG)))
    subject = request.untrained or checkpoint_of(folder)
    name = protocol_of(task)
    settings = settings_for(
        name,
        cfg,
        device=default_device(),
        workers=default_workers(),
        launcher=launcher,
        cache=folder / FEATURES,
        work_dir=folder / f'{task}_run',
    )
    result = evaluate(cfg, name, subject, settings=settings)
    if is_main_process():
        stated = {key: result.details[key] for key in STATED if key in result.details}
        right = result.details.get('right')
        measured = Measured(result.scores, result.left_out, right, stated)
        write_json(folder / f'{task}.json', measured)


def measure_collapse(cfg: Config, checkpoint: str) -> Health:
    """Return the spread and the effective rank of the features of some test images.

    A run that is not better than a random network has not necessarily collapsed. Only the features decide.
    """
    data = DATASETS.build(cfg.evaluation.test)
    rows = range(0, len(data), max(1, len(data) // IMAGES))[:IMAGES]
    how = extraction(cfg, default_device())
    return health_of(extract(load_backbone(cfg, checkpoint), Subset(data, rows), how).x)


def health_of(features: Tensor) -> Health:
    """Return the spread and the effective rank of features.

    Both are those of normalized features. Otherwise, a few images with very long features would determine the rank.
    """
    unit = F.normalize(features.double())
    return Health(spread(features), rankme(unit - unit.mean(dim=0)))


def transfer_run(folder: Path, gpus: int) -> None:
    """Measure a run by its tasks that train with mmdet or mmseg, and write TASK.json. An interrupted task resumes."""
    missing = [
        task
        for task in read_json(folder / REQUEST, Request).tasks
        if not is_local(task) and not (folder / f'{task}.json').is_file()
    ]
    # Rows without such tasks may have no weights, or none from which these tasks can start.
    if not missing:
        return
    # Only the tasks of tools/transfer.py need this module.
    from mmairl.transfer.execute import Place, run_task, write_start

    place = Place(Path('.').absolute(), folder / 'transfer', gpus)
    start, depth = write_start(checkpoint_of(folder), 'student', None, place)
    for task in missing:
        write_json(folder / f'{task}.json', Measured(run_task(task, start, depth, place)))


if __name__ == '__main__':
    run_worker()
