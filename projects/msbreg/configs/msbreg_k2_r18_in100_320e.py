# MSBReg's ablations with K = 2 views. Learning rate: base 0.4 x batch 512 / 256 x 2 views = 1.6.
_base_ = 'msbreg_k4_r18_in100_320e.py'
train_dataloader = dict(dataset=dict(views=[{{_base_.view}}] * 2))
optim_wrapper = dict(optimizer=dict(lr=1.6))
