# ImageNet-C: a classifier of ImageNet is tested on corrupted images, which have 224 pixels. For another corruption or
# severity, set evaluation.test.root. Other folders with the same 1000 class folders, such as ImageNet-Sketch, work, too.
_base_ = 'imagenet_r50.py'
evaluation = dict(
    test=dict(root='data/imagenet-c/gaussian_noise/3', views=[[dict(type='CenterCrop', size=224)]])
)
