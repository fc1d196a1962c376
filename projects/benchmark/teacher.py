"""Compare one update of the teacher, the moving average of a ResNet-50, with the averages of mmengine and mmpretrain."""

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torchvision
from mmengine.logging import MessageHub
from mmengine.model import BaseAveragedModel, ExponentialMovingAverage
from torch import Tensor, nn

from mmairl.models.siamese import Teacher
from projects.benchmark.timing import Case

STEP = 0.01  # 1 - momentum
NOTE = (
    "Limit: teacher and student are read once, and the teacher is written once. mmengine's and mmpretrain's averages also "
    "overwrite the batch-norm statistics, by the student's (`update_buffers=False`) or by an average, although the teacher's "
    'statistics should be kept. Both read a step counter on the device. CosineEMA passes over the memory twice, and computes '
    'its cosine from that counter for each tensor, so on a GPU the host waits for each tensor.'
)


def teacher(device: str, quick: bool) -> Iterator[Case]:
    """Compare mmairl with mmengine's ExponentialMovingAverage and mmpretrain's CosineEMA, at the same momentum."""
    from mmpretrain.models.utils import CosineEMA

    MessageHub.get_current_instance().update_info('max_iters', 1000)
    make = torchvision.models.resnet18 if quick else torchvision.models.resnet50
    yield _case(
        make, device, "mmengine's EMA", '>= 1.5', lambda net: ExponentialMovingAverage(net, STEP)
    )
    yield _case(
        make,
        device,
        "mmpretrain's CosineEMA",
        '',
        lambda net: CosineEMA(net, STEP, end_momentum=STEP),
    )


def _case(
    make: Callable,
    device: str,
    peer_name: str,
    aim: str,
    average: Callable[[nn.Module], BaseAveragedModel],
) -> Case:
    torch.manual_seed(0)
    student = nn.ModuleDict(dict(backbone=make(), projector=nn.Linear(8, 8))).to(device)
    our_teacher, peer = (
        Teacher(student['backbone'], student['projector'], None),
        average(copy.deepcopy(student)),
    )
    peer.update_parameters(student)  # the first call only copies the weights
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)

    def ours() -> list[Tensor]:
        our_teacher.follow(student, 1 - STEP)
        return list(our_teacher.parameters())

    def theirs() -> list[Tensor]:
        peer.update_parameters(student)
        return list(peer.module.parameters())

    size = sum(parameter.nbytes for parameter in our_teacher.parameters())
    check = partial(torch.testing.assert_close, atol=1e-6, rtol=1e-6)
    return Case(
        f'teacher update, {make.__name__}',
        peer_name,
        ours,
        theirs,
        check,
        aim=aim,
        moved=3 * size,
        note=NOTE,
    )
