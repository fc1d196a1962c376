# NYUv2 for the protocol `depth_probe`: images of 480 x 640 pixels, the Eigen crop, depths up to 10 m.
_base_ = '../_base_/models/backbone_r50.py'
root = 'data/nyu'
evaluation = dict(
    train=dict(
        type='MMSegImages',
        source=dict(
            type='NYUDataset',
            data_root=root,
            data_prefix=dict(img_path='images/train', depth_map_path='annotations/train'),
        ),
        depth=True,
    ),
    test=dict(
        type='MMSegImages',
        source=dict(
            type='NYUDataset',
            data_root=root,
            data_prefix=dict(img_path='images/test', depth_map_path='annotations/test'),
        ),
        depth=True,
    ),
    settings=dict(depth_probe=dict(size=480, epochs=25, scored=(45, 471, 41, 601))),
)
