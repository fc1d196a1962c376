"""Whose checkpoint it is, told from the names in it: where the student is, where the teacher is."""

from collections.abc import Collection
from dataclasses import dataclass

# The stem of a ResNet or a ViT under each of the names that layouts give it.
STEMS = ('conv1.weight', 'stem.', 'patch_embed.', 'cls_token')


@dataclass(frozen=True)
class Format:
    """One project's way to lay out a checkpoint: the prefixes of its student's backbone and of its teacher's, if any."""

    name: str
    student: str
    teacher: str | None = None

    @property
    def pure(self) -> bool:
        """Whether nothing but the backbone lies below the prefix; then it may be of any kind, not a ResNet or ViT alone."""
        return self.student.endswith(('backbone.', '.0.', '_feature_blocks.', 'bottom_up.'))

    def fits(self, keys: Collection[str]) -> bool:
        begins = self.student if self.pure else tuple(self.student + stem for stem in STEMS)
        return any(key.startswith(begins) for key in keys)


# The most particular first: a format's names may hold another's.
FORMATS = (
    Format('mmselfsup (MoCo)', 'encoder_q.0.', 'encoder_k.0.'),
    Format('mmselfsup (BYOL)', 'online_net.0.', 'target_net.module.0.'),
    Format('mmselfsup (BYOL)', 'online_net.0.', 'target_net.0.'),
    Format('MoCo v1 or v2', 'encoder_q.', 'encoder_k.'),
    Format('MoCo v3', 'base_encoder.', 'momentum_encoder.'),
    Format("the paper's release", 'online_encoder.', 'target_encoder.'),
    Format("the paper's release", 'student_encoder.', 'teacher_encoder.'),
    Format('mmairl', 'backbone.', 'teacher.backbone.'),
    Format('mmpretrain (MoCo)', 'backbone.', 'encoder_k.module.0.'),
    Format('mmpretrain (BYOL)', 'backbone.', 'target_net.module.0.'),
    Format('mmpretrain (MoCo v3)', 'backbone.', 'momentum_encoder.module.0.'),
    Format('detectron2 (FPN)', 'backbone.bottom_up.'),
    Format('mmairl or OpenMMLab', 'backbone.'),
    Format('VISSL', 'trunk._feature_blocks.'),
    Format('VISSL', 'trunk.base_model._feature_blocks.'),
    Format('VISSL', '_feature_blocks.'),
    Format('SimSiam', 'encoder.'),
    Format('plain (torchvision, timm, detectron2)', ''),
)


def recognise(keys: Collection[str]) -> Format | None:
    """The format of a checkpoint with these keys: one whose teacher is there too goes before one without."""
    fitting = [form for form in FORMATS if form.fits(keys)]
    with_teacher = [
        form for form in fitting if form.teacher is not None and any(key.startswith(form.teacher) for key in keys)
    ]
    # A student whose teacher was cut away is still a student.
    alone = [form for form in fitting if form.teacher is None] or fitting
    found = with_teacher or alone
    return found[0] if found else None
