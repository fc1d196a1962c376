"""Compute the results of probes (short computations) for the source tree in the current folder: golden_probes.py PART

goldens.py runs a copy of this file in the source trees of two commits. Therefore, this file must work with both commits, even
if files have moved. It relies on commands, registered names, config file names and a few functions. PLACES lists all modules
in which these functions may be.
"""

import contextlib
import hashlib
import importlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TREE = Path.cwd()
OUT = Path(os.environ.get('GOLDENS_OUT', 'goldens'))  # this folder has one JSON file per probe
# The scratch folder must have the same path for both trees, because fixtures contain paths.
SCRATCH = Path(os.environ.get('GOLDENS_SCRATCH', 'goldens_scratch'))
STEPS = int(os.environ.get('GOLDENS_STEPS', '50'))
# For each function that has moved: all modules in which it has been, the newest first.
PLACES = {
    'load_config': ('mmairl.config', 'mmairl.configs'),
    'train': ('mmairl.engine.run', 'mmairl.engine.launch'),
    'stop_processes': ('mmairl.signals', 'mmairl.stopping'),
    'read_backbone': ('mmairl.checkpoints.read', 'mmairl.weights.read'),
    'write_backbone': ('mmairl.checkpoints.write', 'mmairl.weights.write'),
    'WRITERS': ('mmairl.checkpoints.write', 'mmairl.weights.write'),
}
CONFIGS = (
    'mocov1_r50_200e',
    'mocov2_r50_200e',
    'mocov2_syncbn_r50_200e',
    'mocov2_syncbn_predictor_r50_200e',
    'mocov2_syncbn_predictor_momentum_r50_200e',
    'mocov2plus_r50_200e',
    'mocov2plus_complexaug_r50_200e',
    'mocov2plus_lars_r50_200e',
    'smocov2plus_r50_200e',
    'byol_r50_200e',
    'byol_lars_r50_200e',
    'supervised_r50_100e',
)
METHODS = tuple(
    f'{name}_shapes'
    for name in ('simclr', 'simsiam', 'barlow', 'vicreg', 'swav', 'dino', 'mocov3', 'lejepa')
)
SIZE = 32  # side of a view in pixels
SMALL_SIZE = 16  # side of the small crops of methods with multi-crop
WIDTH = 8  # base channels of the ResNet-18
BATCH = 16


def lookup(name: str) -> Any:
    """Return a function of the package, from the module in which this tree defines it."""
    tried = []
    for place in PLACES[name]:
        if not TREE.joinpath(*place.split('.')).with_suffix('.py').is_file():
            continue  # without this check, an editable install would import the module of another tree
        try:
            return getattr(importlib.import_module(place), name)  # noqa: TID251  the names are those of PLACES
        except (ImportError, AttributeError) as error:
            tried.append(str(error))
    raise LookupError(f'{name} is in none of {PLACES[name]}; add its module to PLACES ({tried})')


def find_file(name: str) -> Path:
    """Return the file of this name in any `configs` folder of the tree."""
    for root in (TREE / 'configs', TREE / 'projects'):
        for path in sorted(root.rglob(name)):
            if 'configs' in path.parts:
                return path
    raise LookupError(f'{TREE} has no configs/**/{name}')


def save(part: str, name: str, compute: Callable[[], Any], rank: int = 0) -> None:
    """Store the result of a probe as JSON. A probe with a stored result does not run again."""
    path = OUT / part / f'{name}.json'
    if path.is_file():
        return
    began = time.perf_counter()
    try:
        outcome = dict(value=compute())
    except Exception:
        outcome = dict(error=traceback.format_exc()[-3000:])
    outcome['seconds'] = round(time.perf_counter() - began, 1)
    if rank:
        return
    path = path.with_suffix('.failed') if 'error' in outcome else path
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(outcome, indent=1, sort_keys=True, default=str)
    text = text.replace(str(TREE), 'TREE').replace(str(SCRATCH), 'SCRATCH')
    path.write_text(text)
    print(
        f'  {part}/{name}: {outcome["seconds"]} s{", FAILED" if "error" in outcome else ""}',
        flush=True,
    )


def fresh_folder(name: str) -> Path:
    folder = SCRATCH / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


# Hashes


def digest(tensors: Mapping[str, Any]) -> str:
    """Hash names, shapes and values. Values are hashed as float64."""
    import torch

    hasher = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        value = torch.as_tensor(value).detach().cpu().double().contiguous()
        hasher.update(f'{name} {tuple(value.shape)}\n'.encode())
        hasher.update(value.numpy().tobytes())
    return hasher.hexdigest()[:16]


def digest_groups(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Hash each top-level part of a state dict separately: backbone, projector, teacher, queue."""
    groups: dict[str, dict] = {}
    for name, value in tensors.items():
        groups.setdefault(name.partition('.')[0], {})[name] = value
    return {name: digest(group) for name, group in groups.items()}


def describe_run(runner: Any) -> dict[str, Any]:
    """Return hashes of the final model and optimizer state of a run, the learning rates, and the number of steps."""
    model = getattr(runner.model, 'module', runner.model)
    optimizer = runner.optim_wrapper.optimizer
    state = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                state[f'{name} {key}'] = value
    return dict(
        state=digest_groups(model.state_dict()),
        optimizer=digest(state),
        optimizer_entries=len(state),
        rates=[float(group['lr']).hex() for group in optimizer.param_groups],
        step=runner.iter,
    )


# Training


class LeftInTheMiddle(Exception):
    """The exception that ends a run early, to simulate an interruption."""


def register_toys() -> None:
    import torch
    from mmengine.config import config as config_file
    from mmengine.hooks import Hook
    from torch.utils.data import Dataset

    from mmairl.registry import DATASETS, HOOKS

    # mmengine formats the text of each config, which would take longer than a toy run. This lambda leaves the text unchanged.
    config_file.FormatCode = lambda text, **_: (
        text,
        True,
    )

    @DATASETS.register_module(force=True)
    class GoldenViews(Dataset):
        """A data set of `count` images. Each image has one random view of each of the given `sizes`, in pixels."""

        def __init__(self, count: int, sizes: list[int], dtype: str = 'float64') -> None:
            generator = torch.Generator().manual_seed(7)
            kind = getattr(torch, dtype)
            self.views = [
                torch.randn(count, 3, size, size, generator=generator, dtype=kind) for size in sizes
            ]

        def __len__(self) -> int:
            return len(self.views[0])

        def __getitem__(self, index: int) -> dict:
            return dict(
                inputs=[view[index] for view in self.views],
                data_samples=dict(label=index % 4, index=index),
            )

    @HOOKS.register_module(force=True)
    class RecordLosses(Hook):
        """Record the loss of every step as a hexadecimal float."""

        losses: list[str] = []

        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
            RecordLosses.losses.append(float(outputs['loss']).hex())

    @HOOKS.register_module(force=True)
    class LeaveAfter(Hook):
        """Raise LeftInTheMiddle after this many iterations, to interrupt the run."""

        priority = 'LOWEST'

        def __init__(self, iteration: int) -> None:
            self.iteration = iteration

        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
            if runner.iter + 1 == self.iteration:
                raise LeftInTheMiddle


def narrow(cfg: Any) -> None:
    """Make the network of a config small: a ResNet-18 with an eighth of its width and narrow necks."""
    model = cfg.model
    features = 8 * WIDTH
    model.backbone.update(depth=18, stem_channels=WIDTH, base_channels=WIDTH)
    if model.type == 'Classifier':
        model.update(in_channels=features, classes=4)
        return
    model.projector.in_channels = features
    if model.projector.get('hidden_channels'):
        model.projector.hidden_channels = 64
    if 'channels' not in model.head and 'prototypes' not in model.head:
        model.projector.out_channels = 16
        if model.get('predictor'):
            model.predictor.update(in_channels=16, hidden_channels=64, out_channels=16)
    if model.get('queue'):
        model.queue.length = 64


def view_sizes(cfg: Any) -> list[int]:
    """Return the side in pixels of each view of a config. Methods with multi-crop have large and small views."""
    views = cfg.train_dataloader.dataset.get('views') or cfg.model.get('data_preprocessor', {}).get(
        'views'
    )
    if cfg.model.type == 'Classifier':
        return [SIZE]
    if not isinstance(views, list | tuple):
        return [SIZE, SIZE]
    crops = [next((step['size'] for step in view if 'size' in step), SIZE) for view in views]
    return [SIZE if crop == max(crops) else SMALL_SIZE for crop in crops]


def common_settings(cfg: Any, folder: Path, name: str) -> None:
    cfg.default_hooks.pop('progress', None)
    cfg.visualizer.vis_backends = [dict(type='LocalVisBackend')]
    cfg.work_dir = str(folder)
    # Each run needs its own name, because mmengine reuses the logger of an earlier run with the same name.
    cfg.experiment_name = f'goldens_{name}_{time.time_ns()}'
    cfg.randomness.seed = 3
    cfg.env_cfg.mp_cfg.mp_start_method = 'fork'
    cfg.log_level = 'WARNING'


def toy_config(name: str, folder: Path, steps: int) -> Any:
    """Return a config of the package at toy size, on fixed float64 views."""
    cfg = lookup('load_config')(str(find_file(f'{name}.py')))
    sizes = view_sizes(cfg)
    narrow(cfg)
    cfg.model.data_preprocessor = dict(type='BaseDataPreprocessor')
    cfg.train_dataloader = dict(
        num_workers=0,
        drop_last=True,
        sampler=dict(type='ResumableSampler', shuffle=True),
        collate_fn=dict(type='default_collate'),
        dataset=dict(type='GoldenViews', count=8 * BATCH, sizes=sizes),
    )
    rate_batch = cfg.get('auto_scale_lr', {}).get('base_batch_size') or cfg.total_batch_size
    cfg.optim_wrapper.optimizer.lr *= BATCH / rate_batch
    cfg.total_batch_size = BATCH
    cfg.train_cfg = dict(by_epoch=False, max_iters=steps)
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=5),
        dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=False, begin=5, end=max(steps, 6)),
    ]
    cfg.default_hooks.checkpoint = dict(
        type='ExactCheckpointHook', by_epoch=False, interval=10**6, save_last=False
    )
    cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), dict(type='RecordLosses')]
    common_settings(cfg, folder, name)
    return cfg


def run_training(cfg: Any, launcher: str = 'none') -> dict[str, Any]:
    from mmairl.registry import HOOKS

    recorder = HOOKS.get('RecordLosses')
    recorder.losses = []
    try:
        runner = lookup('train')(cfg, launcher)
    except LeftInTheMiddle:
        return dict(losses=list(recorder.losses))
    finally:
        end_workers()
    return dict(losses=list(recorder.losses), **describe_run(runner))


def end_workers() -> None:
    import multiprocessing

    for worker in multiprocessing.active_children():
        with contextlib.suppress(RuntimeError):
            worker.terminate()
            worker.join()


def train_all(part: str, launcher: str) -> None:
    import torch

    register_toys()
    torch.set_default_dtype(torch.float64)
    rank = int(os.environ.get('RANK', '0'))
    for name in CONFIGS + METHODS:
        folder = SCRATCH / f'{part}_{name}'
        if not rank:
            shutil.rmtree(folder, ignore_errors=True)
        save(
            part,
            name,
            lambda name=name, at=folder: run_training(toy_config(name, at, STEPS), launcher),
            rank,
        )
        if not rank:
            shutil.rmtree(folder, ignore_errors=True)


def probe_train_one() -> None:
    train_all('train_one', 'none')


def probe_train_two() -> None:
    """Train with two processes on this machine. Each process runs this file with the environment variables of torchrun."""
    if 'RANK' in os.environ:
        train_all('train_two', 'pytorch')
        lookup('stop_processes')()
        return
    port = free_port()
    ranks = []
    for rank in range(2):
        names = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2, MASTER_PORT=port)
        env = {
            **os.environ,
            'MASTER_ADDR': '127.0.0.1',
            **{name: str(value) for name, value in names.items()},
        }
        ranks.append(subprocess.Popen([sys.executable, __file__, 'train_two'], env=env))
    while None in (codes := [process.poll() for process in ranks]) and not any(codes):
        time.sleep(0.2)
    for process in ranks:
        if any(process.poll() or 0 for process in ranks):
            process.kill()
        process.wait()


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return one.getsockname()[1]


# Real data: views made by workers and on the device, and exact resume


CROP = [
    dict(type='RandomResizedCrop', size=24, scale=(0.2, 1.0)),
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0)),
]
# Recipes that together use every random generator whose state a resume must restore.
REAL_RUNS = {
    'workers': dict(name='mocov2plus_r50_200e', workers=2),
    'no_workers': dict(name='mocov2plus_r50_200e', workers=0),
    'on_device': dict(name='mocov2plus_lars_r50_200e', workers=0, on_device=True),
    'shuffle_bn': dict(name='mocov2_r50_200e', workers=0, replicas=4),
    'lars_accumulated': dict(name='byol_lars_r50_200e', workers=0, accumulate=2),
    'swav': dict(name='swav_shapes', workers=0),
    'dino': dict(name='dino_shapes', workers=0),
}
EPOCHS = 3
EPOCH_STEPS = 5
LEAVE_AT = (1, 7, EPOCHS * EPOCH_STEPS - 1)


def real_config(
    folder: Path,
    name: str,
    workers: int,
    on_device: bool = False,
    replicas: int | None = None,
    accumulate: int = 1,
    leave_after: int | None = None,
    resume: bool = False,
) -> Any:
    """Return a small config on drawn shapes with random views. The run saves a checkpoint after each step."""
    batch = 8
    cfg = lookup('load_config')(str(find_file(f'{name}.py')))
    narrow(cfg)
    shapes = dict(
        type='Shapes', split='train', count=EPOCH_STEPS * accumulate * batch + 3, size=SIZE
    )
    if name.endswith('_shapes'):
        cfg.train_dataloader.dataset = shapes
    else:
        views = None if on_device else [CROP, CROP]
        cfg.model.data_preprocessor = dict(
            type='ViewPreprocessor',
            mean=(0.5,) * 3,
            std=(0.25,) * 3,
            views=[CROP, CROP] if on_device else None,
        )
        cfg.train_dataloader = dict(
            drop_last=True,
            collate_fn=dict(type='default_collate'),
            sampler=dict(type='ResumableSampler', shuffle=True),
            dataset=dict(shapes, views=views),
        )
    cfg.train_dataloader.update(num_workers=workers, persistent_workers=workers > 0)
    if replicas:
        cfg.model.backbone.norm_cfg.replicas = replicas
    cfg.optim_wrapper.optimizer.lr *= batch / cfg.total_batch_size
    cfg.optim_wrapper.accumulative_counts = accumulate
    cfg.total_batch_size = batch * accumulate
    cfg.train_cfg = dict(by_epoch=True, max_epochs=EPOCHS)
    cosine = dict(
        type='CosineAnnealingLR', by_epoch=True, begin=0, end=EPOCHS, convert_to_iter_based=True
    )
    cfg.param_scheduler = [cosine]
    cfg.default_hooks.checkpoint = dict(
        type='ExactCheckpointHook', by_epoch=False, interval=1, max_keep_ckpts=2
    )
    cfg.default_hooks.logger.interval = 1
    hooks = [*(cfg.get('custom_hooks') or []), dict(type='RecordLosses')]
    if leave_after is not None:
        hooks.append(dict(type='LeaveAfter', iteration=leave_after))
    cfg.custom_hooks = hooks
    cfg.resume = resume
    common_settings(cfg, folder, name)
    return cfg


def probe_resume() -> None:
    """Train once without interruption, and again with an interruption after each step of LEAVE_AT.

    The final states must be equal. Like the results of other probes, they must also be equal between the two trees.
    """
    register_toys()
    for case, how in REAL_RUNS.items():

        def compute(case: str = case, how: Mapping[str, Any] = how) -> dict[str, Any]:
            reference = run_training(real_config(fresh_folder(f'resume_{case}'), **how))
            ends = {}
            for k in LEAVE_AT:
                folder = fresh_folder(f'resume_{case}')
                run_training(real_config(folder, **how, leave_after=k))
                resumed = run_training(real_config(folder, **how, resume=True))
                resumed.pop('losses')
                if {**reference, **resumed} != reference:
                    raise AssertionError(
                        f'resumed from step {k}, the end differs: {resumed} instead of {reference}'
                    )
                ends[f'resumed from {k}'] = 'equals the uninterrupted run'
            fresh_folder(f'resume_{case}')
            return {**reference, **ends}

        save('resume', case, compute)


# Checkpoint formats


def seeded_resnets(count: int = 2) -> list[dict]:
    """Return the state dicts of narrow ResNet-18s, each with different batch-norm statistics and torchvision's names."""
    import torch
    from mmengine.registry import init_default_scope

    import mmairl.models  # noqa: F401  registers the backbones
    from mmairl.registry import MODELS

    init_default_scope('mmairl')
    states = []
    for seed in range(count):
        torch.manual_seed(seed)
        network = MODELS.build(
            dict(type='mmpretrain.ResNet', depth=18, stem_channels=4, base_channels=4)
        )
        network.init_weights()
        network.train()
        network(torch.randn(4, 3, 64, 64))
        states.append(network.state_dict())
    return states


def with_prefix(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    return {prefix + key: value for key, value in state.items()}


# For each layout of a checkpoint with student and teacher: a function that creates the checkpoint from a state dict, and the
# prefixes of the student's and the teacher's weights.
PAIRS = {
    'mmairl': (lambda s: dict(meta={}, state_dict=s), 'backbone.', 'teacher.backbone.'),
    'paper_release': (
        lambda s: dict(start_epoch=200, model=s),
        'module.online_encoder.',
        'module.target_encoder.',
    ),
    'moco_v1_v2': (
        lambda s: dict(epoch=200, state_dict=s),
        'module.encoder_q.',
        'module.encoder_k.',
    ),
    'moco_v3': (lambda s: dict(state_dict=s), 'module.base_encoder.', 'module.momentum_encoder.'),
    'mmselfsup_moco': (lambda s: dict(state_dict=s), 'encoder_q.0.', 'encoder_k.0.'),
    'mmselfsup_byol': (lambda s: dict(state_dict=s), 'online_net.0.', 'target_net.0.'),
    'mmpretrain_moco': (lambda s: dict(state_dict=s), 'backbone.', 'encoder_k.module.0.'),
    'mmpretrain_byol': (lambda s: dict(state_dict=s), 'backbone.', 'target_net.module.0.'),
    'lightly_benchmark': (lambda s: dict(state_dict=s), 'backbone.', 'teacher_backbone.'),
    'lightly_example': (lambda s: dict(state_dict=s), 'backbone.', 'backbone_momentum.'),
    'solo_learn': (lambda s: dict(state_dict=s), 'encoder.', 'momentum_encoder.'),
    'solo_learn_main': (lambda s: dict(state_dict=s), 'backbone.', 'momentum_backbone.'),
    'stable_pretraining': (lambda s: dict(state_dict=s), 'backbone.student.', 'backbone.teacher.'),
}
# For each layout of a checkpoint with one network: a function that creates the checkpoint from a state dict.
SINGLES = {
    'torchvision': lambda s: s,
    'vissl': lambda s: dict(
        classy_state_dict=dict(
            base_model=dict(model=dict(trunk=with_prefix('_feature_blocks.', s), heads={}))
        )
    ),
    'simsiam': lambda s: dict(state_dict=with_prefix('module.encoder.', s)),
    'mmpretrain': lambda s: dict(state_dict=with_prefix('backbone.', s)),
    'compiled': lambda s: dict(model=with_prefix('_orig_mod.', s)),
}
# For each checkpoint of a ViT: the name of the model in timm, and the prefix of its keys.
VITS = {
    'timm_vit': ('vit_small_patch16_224', ''),
    'timm_dinov2': ('vit_small_patch14_dinov2', ''),
    'timm_dinov2_registers': ('vit_small_patch14_reg4_dinov2', ''),
    'moco_v3_vit': ('vit_small_patch16_224', 'base_encoder.'),
}


def describe_backbone(path: Path, part: str, size: int) -> dict[str, Any]:
    """Read a backbone, and hash its weights and the features that a network with these weights computes."""
    import torch

    from mmairl.registry import MODELS

    backbone = lookup('read_backbone')(path, part)
    network = MODELS.build(backbone.network)
    network.load_state_dict(backbone.weights)
    network.eval()
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        features = network(images)
    last = features[-1] if isinstance(features, tuple | list) else features
    return dict(
        weights=digest(backbone.weights),
        names=len(backbone.weights),
        features=digest(dict(features=last)),
        source=backbone.source,
        dropped=sorted(backbone.dropped),
    )


def probe_formats() -> None:
    """Read checkpoints in 22 layouts, and convert one checkpoint to each format of WRITERS."""
    import torch

    folder = fresh_folder('formats')
    states = seeded_resnets()

    def pair(name: str) -> dict[str, Any]:
        envelope, student, teacher = PAIRS[name]
        both = {
            **with_prefix(student, states[0]),
            **with_prefix(teacher, states[1]),
            'queue': torch.ones(4, 8),
        }
        torch.save(envelope(both), path := folder / f'{name}.pth')
        return {part: describe_backbone(path, part, 64) for part in ('student', 'teacher')}

    def single(name: str) -> dict[str, Any]:
        torch.save(SINGLES[name](states[0]), path := folder / f'{name}.pth')
        return describe_backbone(path, 'student', 64)

    def vit(name: str) -> dict[str, Any]:
        import timm

        kind, prefix = VITS[name]
        torch.manual_seed(5)
        network = timm.create_model(
            kind, img_size=56, patch_size=14, embed_dim=128, depth=2, num_heads=2
        )
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(torch.randn(weight.shape) * 0.1)
        torch.save(with_prefix(prefix, network.state_dict()), path := folder / f'{name}.pth')
        return describe_backbone(path, 'student', 56)

    def written(to: str) -> dict[str, Any]:
        torch.save(
            dict(state_dict=with_prefix('encoder_q.', states[0])), source := folder / 'source.pth'
        )
        ending = dict(detectron2='.pkl', safetensors='.safetensors').get(to, '.pth')
        path = folder / f'written_{to}{ending}'
        lookup('write_backbone')(lookup('read_backbone')(source), path, to)
        return dict(describe_backbone(path, 'student', 64), keys=keys_of(path))

    for name in PAIRS:
        save('formats', name, lambda name=name: pair(name))
    for name in SINGLES:
        save('formats', name, lambda name=name: single(name))
    for name in VITS:
        save('formats', name, lambda name=name: vit(name))
    for to in sorted(lookup('WRITERS')):
        save('formats', f'written_{to}', lambda to=to: written(to))


def keys_of(path: Path) -> list[str]:
    """Return the names of the tensors in a file that was converted to another project's format."""
    import torch

    if path.suffix == '.safetensors':
        from safetensors.torch import load_file

        return sorted(load_file(path))
    if path.suffix == '.pkl':
        with path.open('rb') as file:
            return sorted(pickle.load(file)['model'])  # noqa: S301  written by this program
    loaded = torch.load(path, weights_only=True)  # noqa: TID251
    return sorted(loaded.get('state_dict', loaded))


# Commands


def command(*arguments: object, timeout: int = 900, **options: Any) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=TREE,
        capture_output=True,
        text=True,
        timeout=timeout,
        **options,
    )


def succeed(*arguments: object) -> str:
    done = command(*arguments)
    if done.returncode:
        raise RuntimeError(
            f'{arguments} ended with {done.returncode}: {done.stdout[-500:]} {done.stderr[-2000:]}'
        )
    return done.stdout


# For each command: all places where it has been. The first place that exists is used.
TOOLS = {
    'analyze': (['tools/analyze.py'],),
    'benchmark': (['tools/benchmark.py'], ['-m', 'projects.benchmark']),
    'consolidate': (['tools/consolidate.py'],),
    'convert': (['tools/convert.py'],),
    'demo': (['tools/demo.py'], ['-m', 'mmairl.cli.demo']),
    'evaluate': (['tools/evaluate.py'],),
    'factors': (['tools/factors.py'],),
    'gpu_check': (
        ['tools/gpu_check.py'],
        ['-m', 'projects.benchmark.gpu_check'],
        ['-m', 'projects.benchmark.gpu_visit'],
    ),
    'normrescale': (['tools/normrescale.py'],),
    'pack': (['tools/pack.py'],),
    'report': (['tools/report.py'],),
    'study': (['tools/study.py'],),
    'train': (['tools/train.py'],),
    'transfer': (['tools/transfer.py'],),
    'worth': (['tools/worth.py'], ['-m', 'projects.worth']),
}
# Calls with a documented exit code. {config}, {demo} and {study} are paths in the tree.
CALLS = {
    'train_nothing': 'train',
    'train_missing_config': 'train nowhere.py',
    'train_unknown_flag': 'train {config} --nonsense',
    'train_bad_option': 'train {config} --cfg-options model.head.temperature',
    'train_unknown_class': 'train {demo} --cfg-options model.head.type=NoHead --work-dir {scratch}/a',
    'train_plan': 'train {config} --plan 4',
    'evaluate_nothing': 'evaluate',
    'evaluate_unknown_protocol': 'evaluate kn {demo} a.pth',
    'evaluate_no_subject': 'evaluate knn {demo}',
    'evaluate_missing_checkpoint': 'evaluate knn {demo} nowhere.pth',
    'convert_missing': 'convert nowhere.pth {scratch}/out.pth',
    'convert_unknown_format': 'convert nowhere.pth {scratch}/out.pth --to nothing',
    'normrescale_missing': 'normrescale nowhere.pth {scratch}/out.pth --constant 0.1',
    'normrescale_two_ways': 'normrescale a.pth b.pth --constant 0.1 --anchor c.pth',
    'study_list': 'study --list',
    'study_missing': 'study nowhere.yaml',
    'study_dry_run': 'study {study} --scale demo --gpus 0 --dry-run',
    'study_unknown_scale': 'study {study} --scale dem',
    'report_health_missing': 'report health {scratch}/nowhere',
    'report_nothing': 'report',
    'analyze_missing': 'analyze norms nowhere.pth',
    'analyze_unknown': 'analyze nothing nowhere.pth',
    'factors_nothing': 'factors',
    'pack_missing': 'pack {scratch}/nowhere {scratch}/out.tar',
    'transfer_missing': 'transfer nowhere.pth',
}


def tool(name: str) -> list[str]:
    for start in TOOLS[name]:
        place = start[-1] if len(start) == 1 else start[-1].replace('.', '/')
        if any((TREE / path).exists() for path in (place, f'{place}.py')):
            return start
    raise LookupError(f'the tool {name} is in none of {TOOLS[name]}; add its place to TOOLS')


def probe_tools() -> None:
    """Record the help and the exit codes of every command, including code 75 of a run that a signal stops."""
    paths = dict(
        config=find_file('mocov2plus_r50_200e.py').relative_to(TREE),
        demo=find_file('mocov2plus_shapes.py').relative_to(TREE),
        study=find_file('ladder.yaml').relative_to(TREE),
        scratch=SCRATCH,
    )

    def help_of(name: str) -> dict[str, Any]:
        done = command(*tool(name), '--help')
        return dict(code=done.returncode, help=done.stdout)

    def code_of(line: str) -> dict[str, Any]:
        name, *arguments = line.format(**paths).split()
        done = command(*tool(name), *arguments)
        return dict(
            code=done.returncode, traceback='Traceback' in done.stderr, said=last_line(done.stderr)
        )

    for name in TOOLS:
        save('tools', f'help_{name}', lambda name=name: help_of(name))
    for name, line in CALLS.items():
        save('tools', name, lambda line=line: code_of(line))
    save('tools', 'train_stopped', lambda: stop_a_run(paths['demo']))


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [''])[-1]


def stop_a_run(config: Path) -> dict[str, Any]:
    """Start the demo's training, send SIGTERM after its first logged step, and resume it to the end."""
    folder = fresh_folder('stopped')
    options = [
        'train_dataloader.dataset.count=640',
        'total_batch_size=16',
        'model.backbone.base_channels=8',
        'model.backbone.stem_channels=8',
        'model.projector.in_channels=64',
        'train_cfg.max_epochs=3',
        'default_hooks.logger.interval=1',
    ]
    arguments = [
        *tool('train'),
        config,
        '--work-dir',
        folder,
        '--seed',
        1,
        '--cfg-options',
        *options,
    ]
    line = [sys.executable, *map(str, arguments)]
    process = subprocess.Popen(line, cwd=TREE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.time() + 300
    while (
        not list(folder.glob('*/vis_data/scalars.json'))
        and process.poll() is None
        and time.time() < deadline
    ):
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    code = process.wait(300)
    resumed = command(*arguments[: -len(options) - 1], '--resume', '--cfg-options', *options)
    return dict(code=code, resumed=resumed.returncode)


def probe_wheel() -> None:
    """Record the names of the files in the wheel."""

    def names() -> list[str]:
        folder = fresh_folder('wheel')
        copy = shutil.copytree(
            TREE, folder / 'source', ignore=shutil.ignore_patterns('__pycache__', '.git', 'build')
        )
        flags = (
            '--no-deps',
            '--no-build-isolation',
            '--no-index',
            '--disable-pip-version-check',
            '-q',
        )
        succeed('-m', 'pip', 'wheel', *flags, '-w', folder, copy)
        found = zipfile.ZipFile(next(folder.glob('mmairl-*.whl'))).namelist()
        fresh_folder('wheel')
        return sorted(found)

    save('wheel', 'names', names)


# Evaluation


SMALL_NETWORK = ['model.backbone.stem_channels=8', 'model.backbone.base_channels=8']
SMALL_SHAPES = [
    *SMALL_NETWORK,
    'evaluation.train.count=480',
    'evaluation.train.size=32',
    'evaluation.test.count=240',
    'evaluation.test.size=32',
    'evaluation.batch_size=60',
]
SMALL_DIGITS = [*SMALL_NETWORK, 'model.in_channels=64']
# For each probe: the config, its overrides, and the arguments of the command.
EVALUATIONS = {
    'shapes_knn': ('mocov2plus_shapes.py', SMALL_SHAPES, 'knn --k 5 20'),
    'shapes_random': ('mocov2plus_shapes.py', SMALL_SHAPES, 'knn --k 5 --init random'),
    'shapes_pixels': ('mocov2plus_shapes.py', SMALL_SHAPES, 'knn --k 5 --init pixels'),
    'knn': ('digits_r18.py', SMALL_DIGITS, 'knn --k 5 20'),
    'knn_teacher': ('digits_r18.py', SMALL_DIGITS, 'knn --k 5 --part teacher'),
    'logreg': ('digits_r18.py', SMALL_DIGITS, 'logreg --seed 1'),
    'svm': ('digits_r18.py', SMALL_DIGITS, 'svm --seed 1 --low-shot'),
    'linear': ('digits_r18.py', SMALL_DIGITS, 'linear --seed 1 --recipe {linear}'),
    'linear_sweep': ('digits_r18.py', SMALL_DIGITS, 'linear --seed 1 --recipe {linear} --sweep'),
    'finetune': ('digits_r18.py', SMALL_DIGITS, 'finetune --seed 1 --recipe {finetune}'),
}


def evaluation_checkpoint(folder: Path) -> Path:
    """Write a checkpoint of two seeded ResNet-18s of base width 8, with batch-norm statistics of the digits data set."""
    import torch
    from mmengine.registry import init_default_scope

    import mmairl.models  # noqa: F401  registers the backbones
    from mmairl.registry import DATASETS, MODELS

    init_default_scope('mmairl')
    digits = DATASETS.build(dict(type='Digits', split='train', size=32))
    images = (torch.stack([digits.raw(index) for index in range(64)]).float() / 255 - 0.5) / 0.25
    state = {}
    for seed, prefix in enumerate(('backbone.', 'teacher.backbone.')):
        torch.manual_seed(seed)
        network = MODELS.build(
            dict(type='mmpretrain.ResNet', depth=18, stem_channels=8, base_channels=8)
        )
        network.init_weights()
        network.train()
        for _ in range(30):
            network(images)
        state |= with_prefix(prefix, network.state_dict())
    torch.save(dict(meta={}, state_dict=state), path := folder / 'small.pth')
    return path


def short_recipe(folder: Path, name: str, epochs: int) -> Path:
    """Write a recipe that inherits from a recipe of the package and trains for fewer epochs."""
    path = folder / f'{name}_short.py'
    cosine = f"dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, end={epochs}, convert_to_iter_based=True)"
    path.write_text(
        f'_base_ = {str(find_file(f"{name}.py"))!r}\n'
        f'total_batch_size = 40\n'
        f'param_scheduler = [{cosine}]\n'
        f'train_cfg = dict(max_epochs={epochs})\n'
    )
    return path


def measure(
    name: str, folder: Path, checkpoint: Path, recipes: Mapping[str, Path]
) -> dict[str, Any]:
    config, options, line = EVALUATIONS[name]
    protocol, *arguments = line.format(**recipes).split()
    subject = [] if '--init' in arguments else [checkpoint]
    out = folder / 'result.json'
    out.unlink(missing_ok=True)
    shutil.rmtree(folder / 'run', ignore_errors=True)
    rest = [
        '--no-cache',
        '--device',
        'cpu',
        '--workers',
        0,
        '--work-dir',
        folder / 'run',
        '--out',
        out,
    ]
    start = [*tool('evaluate'), protocol, find_file(config).relative_to(TREE)]
    succeed(*start, *subject, *arguments, *rest, '--cfg-options', *options)
    record = json.loads(out.read_text())
    return dict(
        scores={name: float(score).hex() for name, score in record['scores'].items()},
        left_out=record['left_out'],
        identity=record['identity'],
        keys=sorted(record),
    )


def probe_evaluation() -> None:
    """Record the scores of each protocol on digits and drawn shapes, from one checkpoint."""
    folder = fresh_folder('evaluation')
    checkpoint = evaluation_checkpoint(folder)
    recipes = dict(
        linear=short_recipe(folder, 'linear_shapes_20e', 3),
        finetune=short_recipe(folder, 'finetune_shapes', 2),
    )
    for name in EVALUATIONS:
        save('evaluation', name, lambda name=name: measure(name, folder, checkpoint, recipes))


# Studies


STUDIES = ('ladder', 'attribution', 'crossover_tuned', 'augmentation')
SCALE_CHANGES = dict(images=64, batch=16, queue=64, epochs=0.015, tasks=['knn'])


def write_scale(folder: Path, **changes: Any) -> Path:
    """Write a YAML file with a scale (sizes of a study) like the demo's, but with a narrow network and few images."""
    import yaml

    scale = yaml.safe_load(find_file('demo.yaml').read_text())
    scale.pop('seeds', None)  # without this key, the seeds of the study apply
    for kind in ('mmpretrain.ResNet', 'ResNet'):
        scale['parts'][kind].update(stem_channels=8, base_channels=8)
    scale['views']['RandomResizedCrop']['size'] = 16
    data = dict(type='Shapes', split='train', count=64, size=24)
    scale['data'] = data
    scale['replace'] = dict(evaluation=dict(train=data, test={**data, 'split': 'val'}))
    scale['widths'] = dict(features=64, hidden=32, out=16)
    scale.update(SCALE_CHANGES)
    scale.update(changes)
    path = folder / 'toy.yaml'
    path.write_text(yaml.safe_dump(scale))
    return path


def planted_result(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return invented results of a run, such as scores. They depend only on the names of its folders and on its tasks."""
    row = folder.parent.name
    draw = (
        int(
            hashlib.sha256(f'{folder.parents[1].name} {row} {folder.name}'.encode()).hexdigest()[
                :8
            ],
            16,
        )
        / 2**32
    )
    row_draw = int(hashlib.sha256(row.encode()).hexdigest()[:8], 16) / 2**32
    scores = {
        task: round(40 + 20 * row_draw + 4 * draw + number, 3)
        for number, task in enumerate(asked['tasks'])
    }
    return dict(
        checkpoint='epoch_1.pth',  # this file does not exist, so the result cannot be stale
        scores=scores,
        labels={task: f'{task} label' for task in scores},
        seconds=100.0 + 10 * row_draw,
        device_seconds=100.0 + 10 * row_draw,
        steps=12,
        images_seen=192,
        start=dict(weights=folder.name, shapes='b', order=folder.name),
        git='planted',
        versions=dict(torch='planted'),
        hardware='planted',
        evaluation='planted',
        sha256='0' * 64,
    )


def run_study(study: Path, scale: Path, out: Path, *flags: object) -> str:
    return succeed(*tool('study'), study, '--scale', scale, '--out', out, '--gpus', 0, *flags)


# These values depend on the machine or the time, so they are not compared.
VOLATILE = (
    'seconds',
    'device_seconds',
    'git',
    'versions',
    'hardware',
    'sha256',
    'file',
    'seconds_of_tasks',
    'curves',
)


def without(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: without(inner, names) for key, inner in value.items() if key not in names}
    if isinstance(value, list):
        return [without(inner, names) for inner in value]
    return value


def canned_study(name: str) -> dict[str, Any]:
    """Create the folders of a study of the package, write invented results for all of its runs, and collect the record."""
    folder = fresh_folder(f'study_{name}')
    scale, out = write_scale(folder, floor=[]), folder / 'out'
    study = find_file(f'{name}.yaml')
    run_study(study, scale, out, '--tasks', 'knn', '--print-commands')
    planned = sorted(out.rglob('asked.json'))
    for path in planned:
        asked = json.loads(path.read_text())
        (path.parent / 'result.json').write_text(json.dumps(planted_result(path.parent, asked)))
    run_study(study, scale, out, '--tasks', 'knn', '--collect')
    record = json.loads((out / 'study.json').read_text())
    states = sorted({run['state'] for row in record['rows'] for run in row['runs']})
    status = run_study(study, scale, out, '--tasks', 'knn', '--status')
    files = sorted(
        str(path.relative_to(out))
        for path in out.rglob('*')
        if path.is_file() and 'runs' not in path.parts
    )
    return dict(
        record=record, runs=len(planned), states=states, status=last_line(status), files=files[:50]
    )


def probe_study() -> None:
    for name in STUDIES:
        save('study', name, lambda name=name: canned_study(name))


# Files that the base commit writes and both trees read


def fixture_config(folder: Path, kind: str, resume: bool, leave_after: int | None = None) -> Any:
    how = dict(SGD=REAL_RUNS['workers'], LARS=REAL_RUNS['lars_accumulated'])[kind]
    return real_config(folder, **how, resume=resume, leave_after=leave_after)


FIXTURE_STUDY = dict(
    title='A toy',
    seeds=[0],
    rows=[
        dict(name='SGD', config='mocov2plus_r50_200e.py'),
        dict(
            name='LARS',
            config='mocov2plus_lars_r50_200e.py',
            declares=['optim_wrapper'],
            factor='LARS',
        ),
        dict(
            name='rescaled',
            config='mocov2plus_lars_r50_200e.py',
            rescaled=dict(of='LARS', anchor='SGD'),
        ),
    ],
)


def write_fixtures() -> None:
    """Write interrupted runs, a config, a result, and the folder of a study. goldens.py calls this in the base commit only."""
    import yaml

    register_toys()
    folder = fresh_folder('fixtures')
    for kind in ('SGD', 'LARS'):
        run_training(fixture_config(folder / kind, kind, resume=False, leave_after=7))
    (folder / 'evaluation').mkdir()
    checkpoint = evaluation_checkpoint(folder / 'evaluation')
    measure('knn', folder / 'evaluation', checkpoint, {})
    (folder / 'study.yaml').write_text(yaml.safe_dump(FIXTURE_STUDY))
    scale = write_scale(folder)
    demo = lookup('load_config')(str(find_file('mocov2plus_shapes.py')))
    demo.dump(folder / 'dumped_config.py')
    run_study(folder / 'study.yaml', scale, folder / 'out', '--jobs', 1)
    (folder / 'complete').touch()


def probe_fixtures() -> None:
    """Read the files that the base commit wrote. goldens.py has copied them into the scratch folder."""
    import torch

    register_toys()
    folder = SCRATCH / 'fixtures'

    def resumed(kind: str) -> dict[str, Any]:
        return run_training(fixture_config(folder / kind, kind, resume=True))

    def loaded(kind: str) -> dict[str, Any]:
        """Read student and teacher of the newest checkpoint, and hash their weights and features."""
        newest = sorted((folder / kind).glob('*.pth'))[-1]
        return {part: describe_backbone(newest, part, 64) for part in ('student', 'teacher')}

    def dumped() -> dict[str, Any]:
        cfg = lookup('load_config')(str(folder / 'dumped_config.py'))
        narrow(cfg)
        cfg.train_dataloader.dataset.count = 48
        cfg.total_batch_size = 16
        cfg.train_cfg = dict(by_epoch=True, max_epochs=1)
        cfg.param_scheduler = [
            dict(type='CosineAnnealingLR', eta_min=0.0, convert_to_iter_based=True)
        ]
        cfg.default_hooks.checkpoint.update(interval=100, save_last=False)
        cfg.custom_hooks = [dict(type='RecordLosses')]
        common_settings(cfg, fresh_folder('dumped'), 'dumped')
        return run_training(cfg)

    def evaluated() -> dict[str, Any]:
        before = json.loads((folder / 'evaluation/result.json').read_text())
        again = measure('knn', folder / 'evaluation', folder / 'evaluation/small.pth', {})
        return dict(
            scores_equal={name: float(score).hex() for name, score in before['scores'].items()},
            again=again,
        )

    def study() -> dict[str, Any]:
        out = folder / 'out'
        status = run_study(folder / 'study.yaml', folder / 'toy.yaml', out, '--status')
        run_study(folder / 'study.yaml', folder / 'toy.yaml', out, '--collect')
        record = json.loads((out / 'study.json').read_text())
        states = {
            f'{row["name"]} {run["seed"]}': run['state']
            for row in record['rows']
            for run in row['runs']
        }
        scores = {
            f'{row["name"]} {run["seed"]}': run['scores']
            for row in record['rows']
            for run in row['runs']
        }
        page_files = {
            name: (out / name).is_file() for name in ('page.html', 'table.md', 'table.tex')
        }
        return dict(
            status=re.sub(r'\s+', ' ', last_line(status)),
            states=states,
            scores=scores,
            files=page_files,
            record=without(record, VOLATILE),
        )

    def continued() -> dict[str, Any]:
        """Run the study command on a finished study. It must train and measure nothing."""
        out = folder / 'out'
        results = sorted((out / 'runs').rglob('result.json'))
        before = [path.stat().st_mtime_ns for path in results]
        run_study(folder / 'study.yaml', folder / 'toy.yaml', out, '--jobs', 1)
        return dict(
            runs=len(results), untouched=before == [path.stat().st_mtime_ns for path in results]
        )

    for kind in ('SGD', 'LARS'):
        save('fixtures', f'loaded_{kind}', lambda kind=kind: loaded(kind))
        save('fixtures', f'resumed_{kind}', lambda kind=kind: resumed(kind))
    save('fixtures', 'dumped_config', dumped)
    save('fixtures', 'evaluation', evaluated)
    save('fixtures', 'study', study)
    save('fixtures', 'study_continued', continued)
    torch.manual_seed(0)


PARTS = {
    'train_one': probe_train_one,
    'train_two': probe_train_two,
    'resume': probe_resume,
    'formats': probe_formats,
    'evaluation': probe_evaluation,
    'study': probe_study,
    'tools': probe_tools,
    'wheel': probe_wheel,
    'fixtures': probe_fixtures,
}


if __name__ == '__main__':
    if sys.argv[1] == 'write_fixtures':
        write_fixtures()
    else:
        PARTS[sys.argv[1]]()
