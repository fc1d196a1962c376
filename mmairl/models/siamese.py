"""The one network of all frameworks: a student, a teacher that follows it, and a head that compares them."""

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.teacher import Teacher
from mmairl.registry import MODELS


def pooled(features: Tensor | tuple) -> Tensor:
    """One vector an image from what a backbone returns: its last stage, averaged over space where there is space."""
    last = features[-1] if isinstance(features, tuple | list) else features
    return last.mean(dim=(2, 3)) if last.ndim == 4 else last


def embed(encoder: nn.Module, images: Tensor) -> Tensor:
    """Unit embeddings of a batch: backbone -> projector [-> predictor], normalised in float32 or better."""
    z = encoder.projector(pooled(encoder.backbone(images)))
    if encoder.predictor is not None:
        z = encoder.predictor(z)
    return F.normalize(z.to(torch.promote_types(z.dtype, torch.float32)), dim=1)


@MODELS.register_module()
class Siamese(BaseModel):
    """Student and teacher, one factor a key; the student's parts are top-level, so that its backbone is `backbone.`.

    Args:
        backbone: any mmpretrain (or registered) backbone.
        projector: the MLP after the pooled features.
        head: turns unit embeddings of the views into the loss.
        predictor: the student's MLP after the projector, or None.
        teacher_predictor: whether the teacher has a predictor too (averaged like the rest of it).
        symmetric: every view is a query, or the first view only (then the others are its keys).
        queue: the negatives of earlier steps, or None.
    """

    def __init__(
        self,
        backbone: dict,
        projector: dict,
        head: dict,
        predictor: dict | None = None,
        teacher_predictor: bool = False,
        symmetric: bool = True,
        queue: dict | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        if teacher_predictor and predictor is None:
            raise UserError('teacher_predictor=True wants a predictor to average; set model.predictor as well')
        self.backbone = MODELS.build(backbone)
        self.projector = MODELS.build(projector)
        self.predictor = None if predictor is None else MODELS.build(predictor)
        self.teacher = Teacher(self.backbone, self.projector, self.predictor if teacher_predictor else None)
        self.head = MODELS.build(head)
        self.queue = None if queue is None else MODELS.build(queue, default_args=dict(dim=self.projector.out_channels))
        self.symmetric = symmetric
        self.keys: dict[int, Tensor] = {}

    def init_weights(self) -> None:
        super().init_weights()
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
        with torch.no_grad():
            k = {view: embed(self.teacher, views[view]) for view in keys}
        q = {view: embed(self, views[view]) for view in queries}
        self.keys = k
        return self.head(q, k, None if self.queue is None else self.queue.negatives())
