# STL-10, scored by top-1 accuracy. Images are enlarged to the size of pre-training. The validation images are a part of the
# training set.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
images = dict(
    type='TorchvisionArrays', name='STL10', root='data/stl10', views=[{{_base_.test_view}}]
)
evaluation = dict(train=dict(images, split='train'), test=dict(images, split='test'))
