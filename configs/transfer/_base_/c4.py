# A C4 detector on a pre-trained ResNet-50: layers 1 to 3 are the backbone, and layer 4 is the head that all regions share.
# Backbone and head load the same checkpoint, whose path tools/transfer.py sets. For other tools, add --cfg-options
# model.backbone.init_cfg.checkpoint=CKPT model.roi_head.shared_head.init_cfg.checkpoint=CKPT.
_base_ = 'detection.py'

c4 = dict(
    data_preprocessor={{_base_.rgb}},
    backbone={{_base_.trained_backbone}},
    roi_head=dict(
        shared_head=dict(
            _delete_=True,
            type='mmairl.Res5Head',
            depth=50,
            norm_cfg={{_base_.bn_over_processes}},
            init_cfg=dict(type='mmairl.PretrainedBackbone', checkpoint=None, prefix='layer4.'),
        )
    ),
    # With -1, anchors may cross the border of the image. mmdet's Faster R-CNN C4 has this value, too, but its Mask R-CNN C4
    # has 0, which drops these anchors.
    train_cfg=dict(rpn=dict(allowed_border=-1)),
)
