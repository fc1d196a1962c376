# Cityscapes for the protocol `segment`, with images at half their size.
_base_ = '../_base_/models/backbone_r50.py'
root = 'data/cityscapes'
evaluation = dict(
    train=dict(
        type='MMSegImages',
        source=dict(
            type='CityscapesDataset',
            data_root=root,
            data_prefix=dict(img_path='leftImg8bit/train', seg_map_path='gtFine/train'),
        ),
    ),
    test=dict(
        type='MMSegImages',
        source=dict(
            type='CityscapesDataset',
            data_root=root,
            data_prefix=dict(img_path='leftImg8bit/val', seg_map_path='gtFine/val'),
        ),
    ),
    settings=dict(segment=dict(size=512, epochs=50)),
)
