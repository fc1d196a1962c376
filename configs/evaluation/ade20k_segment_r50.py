# ADE20K for the protocol `segment`. Windows, learning rate, batch size and weight decay are those of DINOv2's linear
# probe. The 32 epochs are about 40 000 steps, as in DINOv2.
_base_ = '../_base_/models/backbone_r50.py'
root = 'data/ade/ADEChallengeData2016'
evaluation = dict(
    train=dict(
        type='MMSegImages',
        source=dict(
            type='ADE20KDataset',
            data_root=root,
            data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        ),
    ),
    test=dict(
        type='MMSegImages',
        source=dict(
            type='ADE20KDataset',
            data_root=root,
            data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        ),
    ),
    settings=dict(segment=dict(size=512, epochs=32)),
)
