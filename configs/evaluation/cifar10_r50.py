# CIFAR-10, scored by top-1 accuracy. Images are enlarged to the size of pre-training, as in BYOL's transfer table.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
images = dict(
    type='TorchvisionArrays', name='CIFAR10', root='data/cifar10', views=[{{_base_.test_view}}]
)
evaluation = dict(
    train=dict(images, split='train'), test=dict(images, split='test'), held_out=5_000 / 50_000
)
