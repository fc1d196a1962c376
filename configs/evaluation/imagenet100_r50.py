# ImageNet-100: the file imagenet100.txt lists the classes, one per line. Several lists are in use, so choose the list
# of the published results with which you compare your results. The validation images are a part of the training set.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/imagenet_view.py']
evaluation = dict(
    train=dict(
        type='Subset',
        classes='data/imagenet/imagenet100.txt',
        dataset=dict(type='ImageFolder', root='data/imagenet/train'),
    ),
    test=dict(
        type='Subset',
        classes='data/imagenet/imagenet100.txt',
        dataset=dict(type='ImageFolder', root='data/imagenet/val'),
    ),
)
