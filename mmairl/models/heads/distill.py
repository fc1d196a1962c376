"""Distillation: the student predicts the features of a frozen network. Gram anchoring: it keeps those of its own start."""

import hashlib
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import Features, features
from mmairl.models.heads.base import ByView, Head, full_precision, unit
from mmairl.registry import MODELS


@MODELS.register_module()
class FrozenTeacher(nn.Module):
    """A network that stays in evaluation mode and never learns.

    Its weights are in neither the optimizer nor the checkpoints of the student. Checkpoints hold their digest.

    Args:
        backbone: Config of any backbone with weights, such as ``dict(type='TimmBackbone', pretrained=True,
            name='vit_small_patch14_dinov2.lvd142m')``, or a backbone of a checkpoint, which its key ``init_cfg`` loads:
            ``dict(type='PretrainedBackbone', checkpoint=FILE)``.
        mean: Mean of each channel for which the teacher was trained. Default: as timm states for its networks, or the
            student's.
        std: Standard deviation of each channel. Default: like `mean`.
        size: Side to which the teacher's images are resized. Default: the size of the student's crops.
        patches: Weight of the distance between the student's patch features, after the projector, and the teacher's.

    Raises:
        UserError: If a run resumes with another teacher than before.
    """

    def __init__(
        self,
        backbone: dict,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        size: int | None = None,
        patches: float = 0.0,
    ) -> None:
        super().__init__()
        network = MODELS.build(backbone).requires_grad_(False)
        network.eval()
        # In a tuple, the network is not a submodule.
        self.hidden = (network,)
        own = getattr(network, 'pretrained_cfg', {})
        mean = mean or own.get('mean')
        std = std or own.get('std')
        self.normalizes = mean is not None
        if self.normalizes:
            for name, values in dict(mean=mean, std=std).items():
                statistic = torch.tensor(values).view(-1, 1, 1)
                self.register_buffer(name, statistic, persistent=False)
        self.size = size
        self.patches = patches

    def init_weights(self) -> None:
        """Load the weights that the config of the backbone names."""
        (network,) = self.hidden
        getattr(network, 'init_weights', lambda: None)()

    @torch.no_grad()
    def forward(self, images: Tensor, normal: nn.Module) -> Features:
        """Return the features of images that the student's preprocessor `normal` has normalized."""
        if self.normalizes and hasattr(normal, 'mean'):
            pixels = images * normal.std + normal.mean
            images = (pixels - self.mean) / self.std
        if self.size is not None:
            images = F.interpolate(images, (self.size,) * 2, mode='bicubic', antialias=True)
        return features(self.hidden[0].to(images.device), images)

    def follow(self, student: nn.Module, momentum: float) -> None:
        """Do nothing. `MomentumHook` calls this method of every teacher."""

    def get_extra_state(self) -> Tensor:
        """Return the digest of the weights."""
        digest = hashlib.sha256()
        for value in self.hidden[0].state_dict().values():
            flat = value.cpu().contiguous().view(-1)
            digest.update(flat.view(torch.uint8).numpy())
        return torch.tensor(list(digest.digest()))

    def set_extra_state(self, state: Tensor) -> None:
        if not torch.equal(state.cpu(), self.get_extra_state()):
            raise UserError(
                'model.teacher: its weights differ from those with which the run started; give the same weights',
                code='other-teacher',
            )


@MODELS.register_module()
class DistillationHead(Head):
    """Distance between the student's projection and the frozen teacher's feature of the same view.

    Without a queue, the loss is ``1 - cos(q, k)``, which is half the squared distance of the unit vectors. With a queue of the
    teacher's features, it is the cross entropy between the softmax of their similarities to ``k`` and to ``q``.

    Args:
        temperature: Softmax temperature of the similarities to the queue.

    Returns (forward):
        ``loss``; ``similarity``: mean cosine of a projection and its target.

    Raises:
        UserError: If projections and targets differ in width.
    """

    page_metrics = ('similarity',)
    queue_role = 'support'

    def __init__(self, temperature: float = 0.07) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, q: ByView, k: ByView, negatives: Tensor | None) -> dict[str, Tensor]:
        q = torch.cat([unit(q[view]) for view in k])
        k = torch.cat([unit(target) for target in k.values()])
        similarity = mean_cosine(q, k)
        loss = 1 - similarity
        if negatives is not None:
            logs, targets = (z @ negatives.T / self.temperature for z in (q, k))
            entropies = -(targets.softmax(dim=1) * logs.log_softmax(dim=1)).sum(dim=1)
            loss = entropies.mean()
        return {'loss': loss, 'similarity': similarity.detach()}


def mean_cosine(q: Tensor, k: Tensor) -> Tensor:
    """Return the mean cosine of two sets of unit vectors, row by row."""
    if q.shape != k.shape:
        raise UserError(
            f"DistillationHead: the projections have {q.shape[1]} dimensions, but the teacher has '{k.shape[1]}'; set "
            f'out_channels={k.shape[1]} of model.projector and, if there is one, of model.patch_projector',
            code='head-width',
        )
    return (q * k).sum(dim=1).mean()


def patch_distance(projector: nn.Module, student: Tensor, teacher: Tensor | None) -> Tensor:
    """Return the mean of ``1 - cos`` over all patches of the student.

    Args:
        projector: Maps the student's patch features to the teacher's width.
        student: The feature map of the student.
        teacher: The feature map of the teacher, which is resized to the student's grid.
    """
    if teacher is None:
        raise UserError(
            "model.teacher.patches: the teacher returns no patch tokens; set tokens=True of timm's ViTs, or patches=0",
            code='no-patch-tokens',
        )
    teacher = F.interpolate(teacher, student.shape[2:], mode='bilinear')
    queries = projector(patch_rows(student))
    return 1 - mean_cosine(unit(queries), unit(patch_rows(teacher)))


def patch_rows(maps: Tensor) -> Tensor:
    return maps.flatten(2).transpose(1, 2).flatten(0, 1)


def gram_distance(student: Tensor, anchor: Tensor) -> Tensor:
    """Return the mean squared difference between the cosines of all pairs of patches in an image (Gram anchoring).

    Args:
        student: The feature map of the student.
        anchor: The feature map of the anchor.
    """
    with full_precision(student):
        return F.mse_loss(cosines(student), cosines(anchor))


def cosines(maps: Tensor) -> Tensor:
    """Return the cosines of all pairs of patches in an image, of shape (B, patches, patches)."""
    patches = unit(maps.flatten(2))
    return patches.transpose(1, 2) @ patches
