# MSBReg with K = 8 views. Learning rate: base 0.15 x batch 512 / 256 x 8 views = 2.4.
_base_ = 'msbreg_k4_r50_300e.py'
train_dataloader = dict(dataset=dict(views=[{{_base_.view}}] * 8))
optim_wrapper = dict(optimizer=dict(lr=2.4))
