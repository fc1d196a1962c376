# Cityscapes: DeepLab-v3 on a ResNet-50 with stride 8, all layers trained, 40 000 iterations at batch 16, tested on whole
# images.
_base_ = [
    'mmseg::deeplabv3/deeplabv3_r50-d8_4xb2-40k_cityscapes-512x1024.py',
    '_base_/segmentation.py',
]

model = dict(
    pretrained=None,
    backbone={{_base_.plain_resnet}},
    decode_head=dict(norm_cfg={{_base_.bn_over_processes}}),
    auxiliary_head=dict(norm_cfg={{_base_.bn_over_processes}}),
)
train_cfg = dict(val_interval=40000)
default_hooks = {{_base_.saved}}
visualizer = {{_base_.scalars_and_images}}
assumptions = dict(
    cityscapes="Cityscapes is trained with mmseg's recipe: batch 16, learning rate 0.01, weight decay 5e-4, "
    'photometric distortion; in the release, the weight decay is 1e-4'
)
