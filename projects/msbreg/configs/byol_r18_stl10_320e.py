# BYOL, the baseline in Table 4: two views and no regularizers. Learning rate: base 0.5 x batch 256 / 256 x 2 views = 1.
_base_ = 'msbreg_k4_r18_stl10_320e.py'
model = dict(head=dict(terms=[]))
train_dataloader = dict(dataset=dict(views=[{{_base_.view}}] * 2))
optim_wrapper = dict(optimizer=dict(lr=1.0))
