# MSBReg's ablations with K = 8 views. Learning rate: base 0.4 x batch 512 / 256 x 8 views = 6.4.
_base_ = 'msbreg_k4_r18_in100_320e.py'
train_dataloader = dict(dataset=dict(views=[{{_base_.view}}] * 8))
optim_wrapper = dict(optimizer=dict(lr=6.4))
