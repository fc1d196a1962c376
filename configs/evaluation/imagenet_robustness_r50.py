# ImageNet. The classifier that is trained on it is also tested on ImageNet-V2, -A, -R, -Sketch and ReaL.
_base_ = 'imagenet_r50.py'
view = [{{_base_.test_view}}]
evaluation = dict(
    robustness=dict(
        imagenet_v2=dict(
            type='ImageFolder',
            root='data/imagenetv2-matched-frequency-format-val',
            views=view,
        ),
        imagenet_a=dict(type='ImageFolder', root='data/imagenet-a', views=view),
        imagenet_r=dict(type='ImageFolder', root='data/imagenet-r', views=view),
        imagenet_sketch=dict(type='ImageFolder', root='data/imagenet-sketch', views=view),
        imagenet_real=dict(
            type='ReaL',
            dataset=dict(type='ImageFolder', root='data/imagenet/val', views=view),
            file='data/imagenet/real.json',
        ),
    ),
)
