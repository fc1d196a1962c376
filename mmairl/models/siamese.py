"""The model of all methods: a student, optionally a teacher that follows the student, and a head that computes the loss."""

import copy
from collections.abc import Sequence
from random import Random

import torch
from mmengine.model import BaseModel, ModuleDict
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import pooled
from mmairl.models.heads.base import unit
from mmairl.models.norm import each_view, shuffle, unshuffle
from mmairl.models.processes import gather, own_parts
from mmairl.registry import MODELS


def project(encoder: nn.Module, images: Tensor) -> Tensor:
    """Return the projections of a batch of images, which pass through backbone, pooling and projector."""
    return encoder.projector(pooled(encoder.backbone(images)))


def predict(encoder: nn.Module, projections: Tensor) -> Tensor:
    """Return the predictor's outputs for the projections, or the projections themselves if there is no predictor."""
    return projections if encoder.predictor is None else encoder.predictor(projections)


def encode(encoder: nn.Module, images: Tensor) -> Tensor:
    """Return the embeddings of a batch of images: their projections, passed through the predictor if there is one."""
    return predict(encoder, project(encoder, images))


@MODELS.register_module()
class Siamese(BaseModel):
    """A student, a teacher and a head. Every detail in which methods differ has its own config key.

    The queries are the student's embeddings of some views. The keys are the teacher's embeddings of some views. Without a
    teacher, the keys are the student's projections, which do not pass through the predictor. The head computes the loss from
    queries and keys; most heads compare each query with the keys of other views of the same image. The parts of the student are
    attributes of the model itself, so the names of its backbone's weights begin with `backbone.` in checkpoints.

    Args:
        backbone: Config of any registered backbone.
        projector: Config of the MLP after the pooled features.
        head: Config of the head, which computes the loss from embeddings that are not normalized.
        predictor: Config of the student's MLP after the projector. Default: no predictor.
        target: Source of the keys: `'teacher'` (the moving average), `'student'` (gradients flow through queries and keys, as
            in SimCLR) or `'stop_gradient'` (the student without gradient, as in SimSiam).
        teacher_predictor: Whether the teacher also has a predictor, which is a moving average like its other parts.
        copy_student: Whether the teacher starts as a copy of the student. With False, it has its own random initial
            weights, as in BYOL's released code.
        symmetric: Whether every view is a query. If False, only the first view is a query.
        key_views: Indices of the views that are keys, such as `[0, 1]` for the large crops of a multi-crop. Default: all
            views, or all but the first one if `symmetric` is False.
        shuffle_bn: Whether the teacher's batch is permuted across processes and across the parts of `SplitBN` (MoCo's
            ShuffleBN).
        queue: Config of the queue of keys from earlier steps. Default: no queue.

    Raises:
        UserError: If a setting is invalid, if settings contradict one another, or if the data set returns too few views of an
            image.
    """

    def __init__(
        self,
        backbone: dict,
        projector: dict,
        head: dict,
        predictor: dict | None = None,
        target: str = 'teacher',
        teacher_predictor: bool = False,
        copy_student: bool = True,
        symmetric: bool = True,
        key_views: Sequence[int] | None = None,
        shuffle_bn: bool = False,
        queue: dict | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        if target not in ('teacher', 'student', 'stop_gradient'):
            raise UserError(
                f"model.target: unknown value ('{target}'); set 'teacher', 'student' or 'stop_gradient'",
                code='unknown-target',
            )
        if teacher_predictor and (predictor is None or target != 'teacher'):
            raise UserError(
                "model.teacher_predictor: requires a teacher and a predictor; set model.predictor and model.target='teacher'",
                code='no-predictor',
            )
        self.backbone = MODELS.build(backbone)
        self.projector = MODELS.build(projector)
        self.predictor = None if predictor is None else MODELS.build(predictor)
        self.teacher = None
        if target == 'teacher':
            self.teacher = Teacher(
                self.backbone, self.projector, self.predictor if teacher_predictor else None
            )
        self.head = MODELS.build(head)
        self.queue = None
        if queue is not None:
            width = dict(dim=self.projector.out_channels)
            self.queue = MODELS.build(queue, default_args=width)
        self.teacher_parts = None
        if not copy_student:
            self.teacher_parts = dict(backbone=backbone, projector=projector, predictor=predictor)
        self.target = target
        self.symmetric = symmetric
        self.key_views = key_views
        self.shuffle_bn = shuffle_bn
        # If there is a queue, this dictionary maps the index of each view that serves as a key to the keys of this view
        # in the last batch, before normalization.
        self.keys: dict[int, Tensor] = {}

    def init_weights(self) -> None:
        super().init_weights()
        if self.teacher is not None:
            source = self
            if self.teacher_parts:
                parts = {name: MODELS.build(cfg) for name, cfg in self.teacher_parts.items() if cfg}
                source = ModuleDict(parts)
                source.init_weights()
            self.teacher.copy_from(source)

    def forward(
        self, inputs: list[Tensor] | Tensor, data_samples: dict | None = None, mode: str = 'tensor'
    ):
        if mode == 'loss':
            return self.loss(inputs)
        if mode == 'tensor':
            return pooled(self.backbone(inputs if isinstance(inputs, Tensor) else inputs[0]))
        raise UserError(
            f"Siamese: unknown mode ('{mode}'); call it with mode='loss' or mode='tensor'",
            code='unknown-mode',
        )

    def loss(self, views: list[Tensor]) -> dict[str, Tensor]:
        """Return the head's loss, and values to log, for a batch of views.

        If the model has a queue, `self.keys` stores the keys of the batch, and a hook enqueues them after the step.
        """
        queries, keys = self.roles(len(views))
        if self.teacher is not None:
            k = dict(zip(keys, self.teach([views[view] for view in keys])))
            q = dict(zip(queries, each_view(self, encode, [views[view] for view in queries])))
        else:
            z = each_view(self, project, views)
            k = {view: z[view] if self.target == 'student' else z[view].detach() for view in keys}
            q = dict(zip(queries, each_view(self, predict, [z[view] for view in queries])))
        if self.queue is None:
            return self.head(q, k, None)
        self.keys = {view: rows.detach() for view, rows in k.items()}
        return self.head(q, k, self.queue.negatives())

    def keys_of_one_view(self, draw: Random) -> Tensor:
        """Choose one view of the last batch at random, and return its keys as unit vectors."""
        view = draw.choice(sorted(self.keys))
        return unit(self.keys[view])

    def after_step(self, momentum: float | None, keys: Tensor | None) -> None:
        """Update the teacher, then enqueue the keys of all processes.

        Args:
            momentum: The teacher's momentum, or None to leave the teacher unchanged.
            keys: This process's keys as unit vectors, or None to leave the queue unchanged.
        """
        if momentum is not None:
            self.teacher.follow(self, momentum)
        if keys is not None:
            self.queue.enqueue(gather(keys))

    def roles(self, count: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the indices of the views that are queries, and the indices of the views that are keys.

        Args:
            count: Number of views in the batch.
        """
        if count < 2:
            raise UserError(
                f"Siamese: requires at least two views of an image ('{count}'); set more views in the data set",
                code='too-few-views',
            )
        every = range(count)
        keys = self.key_views or (every if self.symmetric else every[1:])
        if min(keys) < 0 or max(keys) >= count:
            raise UserError(
                f"model.key_views: the indices must be from 0 to {count - 1} ('{list(keys)}'), because the data set has "
                f'{count} views; correct the indices, or set more views in the data set',
                code='no-such-view',
            )
        if not self.symmetric and set(keys) == {0}:
            raise UserError(
                f"model.key_views: view 0 is the only query and cannot be compared with itself ('{list(keys)}'); add another "
                'index, or set symmetric=True',
                code='no-pair',
            )
        return every if self.symmetric else every[:1], keys

    @torch.no_grad()
    def teach(self, views: list[Tensor]) -> list[Tensor]:
        """Return the teacher's embeddings of each view, without gradient."""
        if self.shuffle_bn:
            return [
                unshuffle(encode(self.teacher, images), order)
                for images, order in map(shuffle, views)
            ]
        return each_view(self.teacher, encode, views)


class Teacher(nn.Module):
    """The teacher: copies of the student's parts, with moving averages of the student's parameters.

    The moving average is computed in float32, because 1 minus the momentum can fall below 1e-6 during training, and half
    precision loses such small changes. The teacher runs in training mode, so its batch norms use the statistics of its own
    batch. It has no stochastic depth.

    Args:
        backbone: The student's backbone.
        projector: The student's projector.
        predictor: The student's predictor, or None if the teacher has none.
    """

    def __init__(
        self, backbone: nn.Module, projector: nn.Module, predictor: nn.Module | None
    ) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone)
        self.projector = copy.deepcopy(projector)
        self.predictor = copy.deepcopy(predictor)
        self.requires_grad_(False)
        for part in self.modules():
            # Both mmcv's and timm's layers of stochastic depth have this attribute.
            if hasattr(part, 'drop_prob'):
                part.drop_prob = 0.0

    def init_weights(self) -> None:
        """Do nothing, because `Siamese` sets the teacher's weights after it has initialized the student."""

    @torch.no_grad()
    def copy_from(self, student: nn.Module) -> None:
        """Copy the student's weights and batch-norm statistics."""
        for name, part in self.named_children():
            part.load_state_dict(getattr(student, name).state_dict())

    @torch.no_grad()
    def follow(self, student: nn.Module, momentum: float) -> None:
        """Move the teacher's parameters T toward the student's S: ``T <- m T + (1 - m) S`` with momentum m."""
        torch._foreach_lerp_(*map(own_parts, self.pairs(student)), 1 - momentum)

    def pairs(self, student: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        """Return the teacher's parameters, and the student's parameters in the same order.

        Parameters are matched by their order, because matching by name in every step would be slow.
        """
        parts = nn.ModuleList(getattr(student, name) for name, _ in self.named_children())
        return list(self.parameters()), list(parts.parameters())
