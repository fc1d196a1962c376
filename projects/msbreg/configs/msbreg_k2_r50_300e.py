# MSBReg with K = 2 views. Learning rate: base 0.15 x batch 512 / 256 x 2 views = 0.6.
_base_ = 'msbreg_k4_r50_300e.py'
train_dataloader = dict(dataset=dict(views=[{{_base_.view}}] * 2))
optim_wrapper = dict(optimizer=dict(lr=0.6))
