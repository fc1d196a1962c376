# S-MoCo v2+ in the augmentation ablation (Fig. 5 of Huang et al. 2022): all operations of Tab. 5.
_base_ = ['../smocov2plus_r50_200e.py', '../_base_/views/byol.py']
train_dataloader = dict(dataset=dict(views=[{{_base_.symmetric_view}}, {{_base_.symmetric_view}}]))
