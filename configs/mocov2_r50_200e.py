# MoCo v2 (Fig. 2 of Huang et al. 2022, first point). Unlike MoCo v1, it has an MLP as projector, temperature 0.2, and
# views with blur and weaker color jitter. It uses ShuffleBN, and no batch norm in the projector.
__method__ = 'mocov2'
_base_ = ['mocov1_r50_200e.py', '_base_/views/mocov2.py']
model = dict(projector=dict(hidden_channels=2048), head=dict(temperature=0.2))
train_dataloader = dict(dataset=dict(views=[{{_base_.mocov2_view}}, {{_base_.mocov2_view}}]))
