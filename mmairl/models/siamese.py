"""The one network of all frameworks: a student, a teacher that follows it, and a head that compares them."""

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.shuffle_bn import shuffle, unshuffle
from mmairl.models.teacher import Teacher
from mmairl.registry import MODELS


def pooled(features: Tensor | tuple) -> Tensor:
    """One vector an image from what a backbone returns: its last stage, averaged over space where there is space."""
    last = features[-1] if isinstance(features, tuple | list) else features
    return last.mean(dim=(2, 3)) if last.ndim == 4 else last


def project(encoder: nn.Module, images: Tensor) -> Tensor:
    """Projections of a batch: backbone -> projector."""
    return encoder.projector(pooled(encoder.backbone(images)))


def unit(embeddings: Tensor, predictor: nn.Module | None = None) -> Tensor:
    """Unit embeddings, after the predictor where there is one, normalised in float32 or better."""
    z = embeddings if predictor is None else predictor(embeddings)
    return F.normalize(z.to(torch.promote_types(z.dtype, torch.float32)), dim=1)


@MODELS.register_module()
class Siamese(BaseModel):
    """Student and teacher, one factor a key; the student's parts are top-level, so that its backbone is `backbone.`.

    Args:
        backbone: any mmpretrain (or registered) backbone.
        projector: the MLP after the pooled features.
        head: turns unit embeddings of the views into the loss.
        predictor: the student's MLP after the projector, or None.
        target: where keys come from: the averaged 'teacher', the 'student' itself (gradients flow through both
            sides, as in SimCLR), or 'stop_gradient' of the student (as in SimSiam).
        teacher_predictor: whether the teacher has a predictor too (averaged like the rest of it).
        symmetric: every view is a query, or the first view only (then the others are its keys).
        shuffle_bn: whether the teacher's batch is permuted across processes and virtual replicas (MoCo's ShuffleBN).
        queue: the negatives of earlier steps, or None.
    """

    def __init__(
        self,
        backbone: dict,
        projector: dict,
        head: dict,
        predictor: dict | None = None,
        target: str = 'teacher',
        teacher_predictor: bool = False,
        symmetric: bool = True,
        shuffle_bn: bool = False,
        queue: dict | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        if target not in ('teacher', 'student', 'stop_gradient'):
            raise UserError(f"model.target='{target}' is not known; say teacher, student or stop_gradient")
        if teacher_predictor and (predictor is None or target != 'teacher'):
            raise UserError('teacher_predictor=True wants a teacher and a predictor to average; set model.predictor')
        self.backbone = MODELS.build(backbone)
        self.projector = MODELS.build(projector)
        self.predictor = None if predictor is None else MODELS.build(predictor)
        self.teacher = None
        if target == 'teacher':
            self.teacher = Teacher(self.backbone, self.projector, self.predictor if teacher_predictor else None)
        self.head = MODELS.build(head)
        self.queue = None if queue is None else MODELS.build(queue, default_args=dict(dim=self.projector.out_channels))
        self.target, self.symmetric, self.shuffle_bn = target, symmetric, shuffle_bn
        self.keys: dict[int, Tensor] = {}

    def init_weights(self) -> None:
        super().init_weights()
        if self.teacher is not None:
            self.teacher.copy_from(self)

    def forward(self, inputs: list[Tensor] | Tensor, data_samples: dict | None = None, mode: str = 'tensor'):
        if mode == 'loss':
            return self.loss(inputs)
        if mode == 'tensor':
            return pooled(self.backbone(inputs if isinstance(inputs, Tensor) else inputs[0]))
        raise UserError(f"mode '{mode}' is not one of Siamese's; say loss or tensor")

    def loss(self, views: list[Tensor]) -> dict[str, Tensor]:
        """Teach, encode, compare: each query with the keys of the *other* views, against the queue as it stands.

        Each view goes through each network on its own, so that batch statistics are a view's own. The keys are
        kept for the queue hook, which enqueues them after the optimizer step.
        """
        if len(views) < 2:
            raise UserError(f'the network compares views of an image and got {len(views)}; give the data two or more')
        queries = range(len(views)) if self.symmetric else [0]
        keys = range(len(views)) if self.symmetric else range(1, len(views))
        k = {} if self.teacher is None else {view: self.teach(views[view]) for view in keys}
        z = {view: project(self, views[view]) for view in (queries if k else range(len(views)))}
        q = {view: unit(z[view], self.predictor) for view in queries}
        if not k:
            k = {view: unit(z[view] if self.target == 'student' else z[view].detach()) for view in keys}
        self.keys = k
        return self.head(q, k, None if self.queue is None else self.queue.negatives())

    @torch.no_grad()
    def teach(self, images: Tensor) -> Tensor:
        """The teacher's unit embeddings, without gradient."""
        if not self.shuffle_bn:
            return unit(project(self.teacher, images), self.teacher.predictor)
        shuffled, order = shuffle(images)
        return unshuffle(unit(project(self.teacher, shuffled), self.teacher.predictor), order)
