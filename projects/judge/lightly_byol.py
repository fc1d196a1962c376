"""BYOL by lightly's own code at the size of the demo, for docs/judge.md: python -m projects.judge.lightly_byol

lightly's are (1.6.0, benchmarks/imagenet/resnet50/byol.py): the views by Pillow, the heads, the loss, LARS and its groups, 0.45
per 256 images, the schedules, a teacher that moves before each step, and whose projector starts with weights of its own.
The scale's are, as for our rows of explain_lightly.yaml: network, widths, images, crops, grey, mean and deviation, batch,
epochs, warm-up, and what it multiplies the rate and the teacher's memory by. Left out, as from the rows that it is judged
beside: 16 bits, and the classifier on top, from which the network learns nothing.
"""

import copy

import numpy as np
import torch
from lightly.loss import NegativeCosineSimilarity
from lightly.models.utils import get_weight_decay_parameters, update_momentum
from lightly.transforms.byol_transform import BYOLTransform, BYOLView1Transform, BYOLView2Transform
from lightly.utils.lars import LARS
from lightly.utils.scheduler import CosineWarmupScheduler, cosine_schedule
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from mmairl.models.resnet import ResNet
from mmairl.study.scale import USUAL_BATCH, read_scale
from projects.benchmark.of_lightly import LightlyBYOL
from projects.benchmark.step import quiet
from projects.judge.elsewhere import lightning, main

SCALE = read_scale('demo')
RATE = 0.45 * USUAL_BATCH / 256 * SCALE.lr['LARS']  # the scale's factor belongs to the rate of the usual batch
TAU = 1 - (1 - 0.99) * SCALE.teacher
PARTS = ('backbone', 'projection_head')


def views() -> BYOLTransform:
    """Both views as by default, in the scale's crops and grey."""
    crop = SCALE.views['RandomResizedCrop']
    normalize = {name: SCALE.merge[f'model.data_preprocessor.{name}'] for name in ('mean', 'std')}
    both = [
        kind(crop['size'], random_gray_scale=SCALE.views['RandomGrayscale']['p'], normalize=normalize)
        for kind in (BYOLView1Transform, BYOLView2Transform)
    ]
    for view in both:
        view.transform.transforms[0].scale = crop['scale']  # its constructor sets the smaller end alone
    return BYOLTransform(*both)


def network() -> LightlyBYOL:
    backbone = ResNet(**{key: value for key, value in SCALE.backbones['ResNet'].items() if key != 'type'})
    with quiet():
        backbone.init_weights()  # as torchvision's
    parts = LightlyBYOL(backbone, SCALE.widths.features, SCALE.widths.hidden, SCALE.widths.out)
    return parts.train().to(memory_format=torch.channels_last)


def train(seed: int, images: Tensor, epochs: int) -> dict:
    """Train from a seed, and return a checkpoint with the names of lightly's benchmark."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # which blur and solarization draw from
    student, teacher = network(), network()
    teacher.backbone = copy.deepcopy(student.backbone)
    teacher.requires_grad_(False)
    decayed, others = get_weight_decay_parameters([student.backbone, student.projection_head, student.prediction_head])
    groups = [dict(params=decayed), dict(params=others, weight_decay=0.0)]
    optimizer = LARS(groups, lr=RATE, momentum=0.9, weight_decay=1e-6)
    per_epoch, view, criterion = len(images) // SCALE.batch, views(), NegativeCosineSimilarity()
    steps = epochs * per_epoch
    schedule = CosineWarmupScheduler(optimizer, warmup_epochs=per_epoch * SCALE.warm_up, max_epochs=steps)
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(images)).split(SCALE.batch)
        momentum = cosine_schedule(step, steps, start_value=TAU, end_value=1.0)
        for part in PARTS:
            update_momentum(getattr(student, part), getattr(teacher, part), m=momentum)
        pairs = [view(to_pil_image(images[index])) for index in order[step % per_epoch]]
        batch = [torch.stack(side).contiguous(memory_format=torch.channels_last) for side in zip(*pairs)]
        with torch.no_grad():
            keys = [teacher.project(side) for side in batch]
        queries = [student.prediction_head(student.project(side)) for side in batch]
        loss = 2 * criterion(keys[0], queries[1]) + 2 * criterion(keys[1], queries[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    saved = lightning(student, optimizer, epochs, steps, dict(batch_size_per_device=SCALE.batch, tau=TAU))
    for part in PARTS:
        saved['state_dict'] |= {
            f'teacher_{part}.{key}': value for key, value in getattr(teacher, part).state_dict().items()
        }
    return saved


if __name__ == '__main__':
    main(train, __doc__, epochs=12, out='work_dirs/lightly')
