# Custom images in folders train/CLASS and val/CLASS. The validation images are a part of the training set. Set
# evaluation.train.root and evaluation.test.root, or link the folders to data/images.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/imagenet_view.py']
evaluation = dict(
    train=dict(type='ImageFolder', root='data/images/train'),
    test=dict(type='ImageFolder', root='data/images/val'),
)
