# Your own images in train/CLASS and val/CLASS folders; validation is a part of train. Set evaluation.train.root and
# evaluation.test.root, or link the folders to data/images.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/imagenet_view.py']
evaluation = dict(
    train=dict(type='ImageFolder', root='data/images/train', views=[{{_base_.test_view}}]),
    test=dict(type='ImageFolder', root='data/images/val', views=[{{_base_.test_view}}]),
)
