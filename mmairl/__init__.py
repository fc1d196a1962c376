"""mmairl: the fair benchmark of augmentation-invariant representation learning, as an OpenMMLab plugin."""

__version__ = '0.1.0'
