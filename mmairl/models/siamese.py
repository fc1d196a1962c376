"""The model of all methods: a student, optionally a teacher that follows the student, and a head that computes the loss."""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from random import Random
from typing import NamedTuple

import torch
from mmengine.model import BaseModel, ModuleDict
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import features, patch_size
from mmairl.models.heads.base import ByView, unit
from mmairl.models.heads.dino import koleo
from mmairl.models.heads.distill import gram_distance, patch_distance
from mmairl.models.masking import patch_weights
from mmairl.models.norm import passes, shuffle, unshuffle
from mmairl.models.processes import own_parts
from mmairl.registry import MODELS


class Encoded(NamedTuple):
    """What a network computes from a batch of images.

    Attributes:
        features: Pooled features of the backbone.
        embeddings: Outputs of the projector, and of the predictor if there is one.
        patches: Projections of the masked patches of all images, or None without masks.
        map: The patch features of the backbone, as a feature map, or None if it returns only pooled features.
    """

    features: Tensor | None
    embeddings: Tensor
    patches: Tensor | None = None
    map: Tensor | None = None


def predict(encoder: nn.Module, projections: Tensor) -> Tensor:
    """Return the predictor's outputs for the projections, or the projections themselves if there is no predictor."""
    return projections if encoder.predictor is None else encoder.predictor(projections)


def encode(
    encoder: nn.Module, images: Tensor, masks: Tensor | None = None, predicted: bool = True
) -> Encoded:
    """Encode images and their masked patches. A network with the attribute `masking` does not see these patches.

    Without a projector of their own, the patches share a call of the projector with the images.

    Args:
        encoder: The student or the teacher.
        images: The images.
        masks: The masks of the images, on the CPU, or None.
        predicted: Whether to apply the predictor.
    """
    masking = getattr(encoder, 'masking', None)
    with nullcontext() if masking is None else masking.hide(masks):
        pooled, patches = features(encoder.backbone, images)
    masked = None
    if masks is None:
        projections = encoder.projector(pooled)
    else:
        masked = chosen_patches(require_patches(patches, encoder.backbone), masks)
        projections, masked = project_both(encoder, pooled, masked)
    embeddings = predict(encoder, projections) if predicted else projections
    return Encoded(pooled, embeddings, masked, patches)


def project_both(encoder: nn.Module, pooled: Tensor, patches: Tensor) -> Sequence[Tensor]:
    """Return the projections of images and of patches, by one call if they have the same projector."""
    if encoder.patch_projector is not None:
        return encoder.projector(pooled), encoder.patch_projector(patches)
    both = encoder.projector(torch.cat([pooled, patches]))
    return both.split([len(pooled), len(patches)])


def require_patches(patches: Tensor | None, backbone: nn.Module) -> Tensor:
    """Return the patch tokens of a backbone, after checking that it returns them."""
    if patches is None:
        raise UserError(
            f"model.backbone: returns no patch tokens ('{type(backbone).__name__}'), which masking, gram and teacher.patches "
            "require; set model.backbone.tokens=True for timm's ViTs, or out_type='raw' for mmpretrain's",
            code='no-patch-tokens',
        )
    return patches


def chosen_patches(patches: Tensor, masks: Tensor) -> Tensor:
    """Return the masked patches as rows. The masks are on the CPU, so the host does not wait for the device."""
    image, patch = (
        rows.to(patches.device, non_blocking=True)
        for rows in masks.flatten(1).nonzero(as_tuple=True)
    )
    return patches.flatten(2)[image, :, patch]


def encode_views(
    encoder: nn.Module, views: ByView, masks: ByView, predicted: bool = True
) -> dict[int, Encoded]:
    """Encode each view, and the masked patches of views that have masks."""
    encoded = {}
    for numbers, images in passes(encoder, views, masks):
        own = [masks[view] for view in numbers if view in masks]
        result = encode(encoder, images, torch.cat(own) if own else None, predicted)
        count = len(numbers)
        pooled = result.features.chunk(count)
        embeddings = result.embeddings.chunk(count)
        patches = maps = [None] * count
        if own:
            patches = result.patches.split([int(mask.sum()) for mask in own])
        if result.map is not None:
            maps = result.map.chunk(count)
        by_view = map(Encoded, pooled, embeddings, patches, maps)
        encoded.update(zip(numbers, by_view))
    return encoded


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
            in SimCLR), `'stop_gradient'` (the student without gradient, as in SimSiam) or `'frozen'` (the network `teacher`).
        teacher: Config of a frozen teacher, such as `dict(type='FrozenTeacher', backbone=...)`.
        teacher_predictor: Whether the teacher also has a predictor, which is a moving average like its other parts.
        copy_student: Whether the teacher starts as a copy of the student. With False, it has its own random initial
            weights, as in BYOL's released code.
        symmetric: Whether every view is a query. If False, only the first view is a query.
        key_views: Indices of the views that are keys, such as `[0, 1]` for the large crops of a multi-crop. Default: all
            views, or all but the first one if `symmetric` is False.
        shuffle_bn: Whether the teacher's batch is permuted across processes and across the parts of `SplitBN` (MoCo's
            ShuffleBN).
        queue: Config of the queue of keys from earlier steps. Default: no queue.
        masking: Config of the masks that hide patches of the key views from the student, such as `dict(type='BlockMasking')`.
            The head then also compares the student's and the teacher's outputs for these patches (iBOT).
        patch_projector: Config of a projector for masked patches. Default: patches use `projector`.
        koleo: Weight of KoLeo, which spreads the student's features of the key views evenly (DINOv2).
        gram: Weight of Gram anchoring, which keeps the similarities of the patches in a key view close to those at the start
            of the run (DINOv3). The frozen copy of the initial backbone is part of checkpoints as `anchor.`.

    Raises:
        UserError: If settings are invalid or contradict one another, or if the data set returns too few views of an image.
    """

    def __init__(
        self,
        backbone: dict,
        projector: dict,
        head: dict,
        predictor: dict | None = None,
        target: str = 'teacher',
        teacher: dict | None = None,
        teacher_predictor: bool = False,
        copy_student: bool = True,
        symmetric: bool = True,
        key_views: Sequence[int] | None = None,
        shuffle_bn: bool = False,
        queue: dict | None = None,
        masking: dict | None = None,
        patch_projector: dict | None = None,
        koleo: float = 0.0,
        gram: float = 0.0,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        parts = dict(backbone=backbone, projector=projector, predictor=predictor)
        parts['patch_projector'] = patch_projector
        for name, part in parts.items():
            setattr(self, name, None if part is None else MODELS.build(part))
        self.head = MODELS.build(head)
        self.target = target
        self._check(teacher, masking)
        self.teacher = None if teacher is None else MODELS.build(teacher)
        if target == 'teacher':
            own = self.predictor if teacher_predictor else None
            self.teacher = Teacher(self.backbone, self.projector, own, self.patch_projector)
        self.queue = None
        if queue is not None:
            width = dict(dim=self.projector.out_channels)
            self.queue = MODELS.build(queue, default_args=width)
        self.anchor = copy.deepcopy(self.backbone).requires_grad_(False) if gram else None
        self.masking = None
        if masking is not None:
            self.masking = MODELS.build(masking, default_args=dict(backbone=self.backbone))
        self.teacher_parts = None if copy_student else parts
        self.symmetric = symmetric
        self.key_views = key_views
        self.shuffle_bn = shuffle_bn
        self.koleo = koleo
        self.gram = gram
        # If there is a queue, this dictionary maps the index of each view that serves as a key to the keys of this view
        # in the last batch, before normalization.
        self.keys: ByView = {}

    def _check(self, teacher: dict | None, masking: dict | None) -> None:
        if self.target not in ('teacher', 'student', 'stop_gradient', 'frozen'):
            raise UserError(
                f"model.target: unknown value ('{self.target}'); set 'teacher', 'student', 'stop_gradient' or 'frozen'",
                code='unknown-target',
            )
        if (self.target == 'frozen') != (teacher is not None):
            raise UserError(
                f"model.teacher: goes with model.target='frozen' ('{self.target}'); set both or neither",
                code='no-frozen-teacher',
            )
        if masking is not None and (
            self.target != 'teacher' or not hasattr(self.head, 'patch_loss')
        ):
            raise UserError(
                "model.masking: requires model.target='teacher' and a head with a loss on patches "
                f"('{self.target}', '{type(self.head).__name__}'); set model.head.type='DINOHead'",
                code='no-patch-loss',
            )

    def init_weights(self) -> None:
        super().init_weights()
        if self.target == 'teacher':
            source = self
            if self.teacher_parts:
                given = {name: cfg for name, cfg in self.teacher_parts.items() if cfg}
                source = ModuleDict({name: MODELS.build(cfg) for name, cfg in given.items()})
                source.init_weights()
            self.teacher.copy_from(source)
        if self.anchor is not None:
            self.anchor.load_state_dict(self.backbone.state_dict())

    def train(self, mode: bool = True) -> 'Siamese':
        super().train(mode)
        if self.anchor is not None:
            self.anchor.eval()
        return self

    def forward(
        self, inputs: list[Tensor] | Tensor, data_samples: dict | None = None, mode: str = 'tensor'
    ):
        if mode == 'loss':
            return self.loss(inputs)
        images = inputs if isinstance(inputs, Tensor) else inputs[0]
        return features(self.backbone, images).pooled

    def loss(self, views: list[Tensor]) -> dict[str, Tensor]:
        """Return the head's loss, and values to log, for a batch of views.

        If the model has a queue, `self.keys` stores the keys of the batch, and a hook enqueues them after the step.
        """
        queries, keys = self.roles(len(views))
        every = dict(enumerate(views))
        masks = self.draw_masks(views, keys)
        targets: dict[int, Encoded] = {}
        if self.teacher is not None:
            targets = self.teach({view: every[view] for view in keys}, masks)
            outputs = encode_views(self, {view: every[view] for view in queries}, masks)
            k = {view: target.embeddings for view, target in targets.items()}
            q = {view: output.embeddings for view, output in outputs.items()}
        else:
            outputs = encode_views(self, every, masks, predicted=False)
            z = {view: output.embeddings for view, output in outputs.items()}
            k = {view: z[view] for view in keys}
            if self.target == 'stop_gradient':
                k = {view: rows.detach() for view, rows in k.items()}
            q = {view: predict(self, z[view]) for view in queries}
        negatives = None
        if self.queue is not None:
            self.keys = {view: rows.detach() for view, rows in k.items()}
            negatives = self.queue.negatives()
        results = self.head(q, k, negatives)
        terms = self.terms(every, outputs, targets, masks)
        for name, (value, weight) in terms.items():
            results['loss'] = results['loss'] + weight * value
            results[name] = value.detach()
        return results

    def terms(
        self, views: ByView, outputs: dict[int, Encoded], targets: dict[int, Encoded], masks: ByView
    ) -> dict[str, tuple[Tensor, float]]:
        """Return the losses that are added to the head's, each with its weight.

        Args:
            views: The images of each view.
            outputs: What the student computes from its views.
            targets: What the teacher computes from its views.
            masks: The masks of some views.
        """
        terms = {}
        both = [view for view in masks if view in outputs]
        if both and self.masking.weight:
            q = torch.cat([outputs[view].patches for view in both])
            k = torch.cat([targets[view].patches for view in both])
            weights = patch_weights(torch.stack([masks[view] for view in both]))
            terms['patch_loss'] = self.head.patch_loss(q, k, weights), self.masking.weight
        key_views = [view for view in self.key_views or outputs if view in outputs]
        if self.koleo:
            spread = sum(koleo(outputs[view].features) for view in key_views)
            terms['koleo'] = spread, self.koleo
        if self.gram:
            distances = []
            for view in key_views:
                with torch.no_grad():
                    start = features(self.anchor, views[view]).patches
                patches = require_patches(outputs[view].map, self.backbone)
                distances.append(gram_distance(patches, start))
            terms['gram'] = torch.stack(distances).mean(), self.gram
        if weight := getattr(self.teacher, 'patches', 0):
            projector = self.patch_projector or self.projector
            distances = []
            for view, target in targets.items():
                patches = require_patches(outputs[view].map, self.backbone)
                distances.append(patch_distance(projector, patches, target.map))
            terms['patch_distance'] = torch.stack(distances).mean(), weight
        return terms

    def draw_masks(self, views: list[Tensor], keys: Sequence[int]) -> ByView:
        """Return the masks of the key views, on the CPU. Without masking, there are none."""
        if self.masking is None:
            return {}
        patch = patch_size(self.backbone)
        for view in views:
            if any(side % patch for side in view.shape[2:]):
                raise UserError(
                    f"model.masking: patches of {patch} pixels do not divide the views ('{tuple(view.shape[2:])}'); change "
                    'the size of the crops',
                    code='indivisible-crop',
                )
        rows, columns = (side // patch for side in views[keys[0]].shape[2:])
        masks = self.masking.draw(len(keys), len(views[0]), rows, columns)
        return dict(zip(keys, masks))

    def keys_of_one_view(self, draw: Random) -> Tensor:
        """Choose one view of the last batch at random, and return its keys as unit vectors."""
        view = draw.choice(sorted(self.keys))
        return unit(self.keys[view])

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
        return every if self.symmetric else every[:1], keys

    @torch.no_grad()
    def teach(self, views: ByView, masks: ByView) -> dict[int, Encoded]:
        """Return what the teacher computes from each view, without gradient."""
        if self.target == 'frozen':
            normal = self.data_preprocessor
            encoded = {}
            for view, images in views.items():
                pooled, maps = self.teacher(images, normal)
                encoded[view] = Encoded(None, pooled, None, maps)
            return encoded
        if not self.shuffle_bn:
            return encode_views(self.teacher, views, masks)
        encoded = {}
        for view, images in views.items():
            own, order = shuffle(images)
            keys = encode(self.teacher, own).embeddings
            encoded[view] = Encoded(None, unshuffle(keys, order))
        return encoded


class Teacher(nn.Module):
    """The teacher: copies of the student's parts, with moving averages of the student's parameters.

    The moving average is computed in float32, because 1 minus the momentum can fall below 1e-6 during training, and half
    precision loses such small changes. The teacher runs in training mode, so its batch norms use the statistics of its own
    batch. It has no stochastic depth.

    Args:
        backbone: The student's backbone.
        projector: The student's projector.
        predictor: The student's predictor, or None if the teacher has none.
        patch_projector: The student's projector of masked patches, if there is one.
    """

    def __init__(
        self,
        backbone: nn.Module,
        projector: nn.Module,
        predictor: nn.Module | None,
        patch_projector: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone)
        self.projector = copy.deepcopy(projector)
        self.predictor = copy.deepcopy(predictor)
        self.patch_projector = copy.deepcopy(patch_projector)
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
