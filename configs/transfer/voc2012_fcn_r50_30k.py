# VOC2012 segmentation as in BYOL's Tab. 4a: features of conv5 with dilation 2 and stride 1, two 3x3 convolutions of 256
# channels with dilation 6, BN and ReLU, then a 1x1 classifier. Crops have 513 pixels. BYOL reports the best of five
# learning rates from 1e-3 to 1e-1, and this config uses the middle one. The scales of 0.5 to 2 refer to a short side of
# 513 pixels, as is usual, instead of the image's own short side, which has 375 pixels in most images.
_base_ = ['mmseg::fcn/fcn_r50-d8_4xb4-20k_voc12aug-512x512.py', '_base_/segmentation.py']

crop_size = (513, 513)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(2048, 513), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size),
    dict(type='RandomFlip', prob=0.5),
    dict(type='Pad', size=crop_size),
    dict(type='PackSegInputs'),
]
model = dict(
    pretrained=None,
    data_preprocessor=dict(size=crop_size),
    backbone={{_base_.resnet_os16}},
    decode_head=dict(
        num_convs=2,
        channels=256,
        dilation=6,
        concat_input=False,
        dropout_ratio=0.0,
        norm_cfg={{_base_.bn_over_processes}},
    ),
    auxiliary_head=None,
)
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        datasets=[
            dict(
                type='PascalVOCDataset',
                data_root={{_base_.data_root}},
                data_prefix=dict(img_path='JPEGImages', seg_map_path=f'SegmentationClass{extra}'),
                ann_file=f'ImageSets/Segmentation/{names}.txt',
                pipeline=train_pipeline,
            )
            for extra, names in (('', 'train'), ('Aug', 'aug'))
        ]
    ),
)
optim_wrapper = dict(optimizer=dict(lr=0.01, weight_decay=1e-4))
param_scheduler = [
    dict(
        type='MultiStepLR', by_epoch=False, begin=0, end=30000, milestones=[21000, 27000], gamma=0.1
    )
]
train_cfg = dict(max_iters=30000, val_interval=30000)
default_hooks = {{_base_.saved}}
visualizer = {{_base_.scalars_and_images}}
assumptions = dict(
    rate="VOC2012 is fine-tuned with the middle one of BYOL's five learning rates; BYOL reports the score with the "
    'best of the five',
    size='scales of 0.5 to 2 on VOC2012 refer to a short side of 513; BYOL does not state the reference size',
)
