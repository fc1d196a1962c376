# MoCo v2+ on custom images: all images in a folder and its subfolders, without labels. Set train_dataloader.dataset.root
# below, or add --cfg-options train_dataloader.dataset.root=/path/to/images
_base_ = 'mocov2plus_r50_200e.py'
model = dict(backbone=dict(depth=18), projector=dict(in_channels=512), queue=dict(length=16384))
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='UnlabelledFolder',
        root='data/images',
        views=[{{_base_.mocov2_view}}] * 2,
    )
)
total_batch_size = 256
optim_wrapper = dict(optimizer=dict(lr=0.03))
train_cfg = dict(max_epochs=100)
auto_scale_lr = dict(base_batch_size=256)
