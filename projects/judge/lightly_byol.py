"""Train BYOL with lightly's code, at the size of mmairl's studies: python -m projects.judge.lightly_byol

docs/how-to/external_checkpoints.md explains how to compare the checkpoints with mmairl's.

From lightly (1.6.0, benchmarks/imagenet/resnet50/byol.py): the views by Pillow, the heads, the loss, LARS and its parameter
groups, a learning rate of 0.45 per 256 images (mmairl: 0.3), and the schedules. As in lightly, the teacher is updated before
each step, and the projector of the teacher starts with other weights than the projector of the student.

From mmairl's BYOL with LARS at the scale (size of data, networks and schedules) that --scale names: network, widths of the
heads, images, crops, grayscale, mean and deviation of the pixels, batch, epochs, warm-up, and the factors by which the scale
changes the learning rate and 1 - momentum. As in the study explain_lightly.yaml, there is neither 16-bit precision nor an
online classifier (its gradients would not reach the network).
"""

import copy

import numpy as np
import torch
from lightly.loss import NegativeCosineSimilarity
from lightly.models.utils import get_weight_decay_parameters, update_momentum
from lightly.transforms.byol_transform import BYOLView1Transform, BYOLView2Transform
from lightly.utils.lars import LARS
from lightly.utils.scheduler import CosineWarmupScheduler, cosine_schedule
from torch import Tensor
from torchvision.transforms.v2 import Compose

from projects.benchmark.of_lightly import LightlyBYOL
from projects.judge.sizes import Sizes, lightning, main

FASTER = 0.45 / 0.3
PARTS = ('backbone', 'projection_head')


def views(sizes: Sizes) -> list[Compose]:
    """Return both default views of lightly, which return Pillow images, with the crops and grayscale of `sizes`."""
    crop, grey = sizes.view_step('RandomResizedCrop'), sizes.view_step('RandomGrayscale')
    pipelines = [
        kind(crop['size'], random_gray_scale=grey['p']).transform
        for kind in (BYOLView1Transform, BYOLView2Transform)
    ]
    for view in pipelines:
        # lightly's constructor accepts only the lower end of the range of crop areas.
        view.transforms[0].scale = tuple(crop['scale'])
    return [Compose(view.transforms[:-2]) for view in pipelines]


def network(sizes: Sizes) -> LightlyBYOL:
    return (
        LightlyBYOL(sizes.backbone(), *sizes.widths).train().to(memory_format=torch.channels_last)
    )


def train(seed: int, sizes: Sizes, images: Tensor, epochs: int) -> dict:
    """Train with this seed, and return a checkpoint whose weights are named as in lightly's benchmark."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # lightly's blur and solarization use NumPy's generator
    student, teacher = network(sizes), network(sizes)
    teacher.backbone = copy.deepcopy(student.backbone)
    teacher.requires_grad_(False)
    decay_weights, other_weights = get_weight_decay_parameters(
        [student.backbone, student.projection_head, student.prediction_head]
    )
    groups = [dict(params=decay_weights), dict(params=other_weights, weight_decay=0.0)]
    optimizer = LARS(groups, lr=FASTER * sizes.rate, momentum=0.9, weight_decay=1e-6)
    epoch_steps, criterion = sizes.per_epoch(images), NegativeCosineSimilarity()
    steps = epochs * epoch_steps
    schedule = CosineWarmupScheduler(
        optimizer, warmup_epochs=epoch_steps * sizes.warm_up, max_epochs=steps
    )
    for step, batch in enumerate(sizes.batches(images, views(sizes), epochs)):
        momentum = cosine_schedule(step, steps, start_value=sizes.tau, end_value=1.0)
        for part in PARTS:
            update_momentum(getattr(student, part), getattr(teacher, part), m=momentum)
        with torch.no_grad():
            keys = [teacher.project(side) for side in batch]
        queries = [student.prediction_head(student.project(side)) for side in batch]
        loss = 2 * criterion(keys[0], queries[1]) + 2 * criterion(keys[1], queries[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    state = student.state_dict()
    for part in PARTS:
        state |= {
            f'teacher_{part}.{key}': value
            for key, value in getattr(teacher, part).state_dict().items()
        }
    return lightning(
        state, optimizer, epochs, steps, dict(batch_size_per_device=sizes.batch, tau=sizes.tau)
    )


if __name__ == '__main__':
    main(train, __doc__, 'work_dirs/lightly')
