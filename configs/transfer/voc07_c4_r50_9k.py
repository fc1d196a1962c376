# VOC07 detection: like VOC07+12, but for 9 000 iterations on trainval2007.
_base_ = 'voc0712_c4_r50_24k.py'

train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='VOCDataset',
        data_root={{_base_.data_root}},
        ann_file='VOC2007/ImageSets/Main/trainval.txt',
        data_prefix=dict(sub_data_root='VOC2007/'),
        filter_cfg=dict(filter_empty_gt=True, min_size=32),
        pipeline={{_base_.train_pipeline}},
    )
)

train_cfg = dict(max_iters=9000, val_interval=9000)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=100),
    dict(type='MultiStepLR', by_epoch=False, begin=0, end=9000, milestones=[6750, 8250], gamma=0.1),
]
