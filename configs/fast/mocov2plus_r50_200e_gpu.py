# MoCo v2+ with speed settings for GPUs. Method and schedule are unchanged. Data workers decode and crop images, and the
# GPU applies all other operations of a view.
_base_ = ['../mocov2plus_r50_200e.py', '../_base_/fast_gpu.py', '../_base_/views/on_device.py']
train_dataloader = dict(dataset=dict(views=[{{_base_.mocov2_crop}}, {{_base_.mocov2_crop}}]))
model = dict(
    data_preprocessor=dict(views=[{{_base_.mocov2_on_device}}, {{_base_.mocov2_on_device}}])
)
