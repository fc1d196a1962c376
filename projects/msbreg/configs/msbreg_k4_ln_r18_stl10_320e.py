# MSBReg without batch norm in its MLPs, on STL-10's images in folders, at Table 4's batch: 0.5 x 256 / 256 x 4 = 2.
_base_ = 'msbreg_k4_r18_in100_320e.py'
model = dict(
    projector=dict(norm_cfg=dict(_delete_=True, type='LN')),
    predictor=dict(norm_cfg=dict(_delete_=True, type='LN')),
    # The supplement's text calls lambda_b = 5e-4 best with LayerNorm, its Table 4 shows 5e-3; this is the table's.
    head=dict(terms=[dict(type='BrownianTerm', weight=5e-3), dict(type='SingularValueTerm', weight=0.004)]),
)
train_dataloader = dict(
    dataset=dict(_delete_=True, type='UnlabelledFolder', root='data/stl10/unlabeled', views=[{{_base_.view}}] * 4)
)
evaluation = dict(train=dict(root='data/stl10/train'), test=dict(root='data/stl10/test'))
total_batch_size = 256
auto_scale_lr = dict(base_batch_size=256)
optim_wrapper = dict(optimizer=dict(lr=2.0))
