# VOC 2012 segmentation for the protocol `segment`: windows of 512 pixels, and features of the last stage.
_base_ = '../_base_/models/backbone_r50.py'
voc = dict(
    type='PascalVOCDataset',
    data_root='data/VOCdevkit/VOC2012',
    data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'),
)
evaluation = dict(
    train=dict(
        type='MMSegImages',
        source=dict(voc, ann_file='ImageSets/Segmentation/train.txt'),
    ),
    test=dict(
        type='MMSegImages',
        source=dict(voc, ann_file='ImageSets/Segmentation/val.txt'),
    ),
    settings=dict(segment=dict(size=512, epochs=50)),
)
