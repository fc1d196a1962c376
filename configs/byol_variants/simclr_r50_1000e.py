# SimCLR as trained by BYOL's authors ('SimCLR (repro)' in BYOL's Tab. 3 and 4). The paper does not state their recipe, so
# this config uses BYOL's recipe of 1000 epochs.
_base_ = 'simclr_own_r50_300e.py'
optim_wrapper = dict(optimizer=dict(lr=3.2, weight_decay=1.5e-6))
# This value is BYOL's. It has no effect, because SimCLR has no teacher.
default_hooks = dict(momentum=dict(base=0.996))
train_cfg = dict(max_epochs=1000)
assumptions = dict(
    simclr_recipe="'SimCLR (repro)' is trained with BYOL's recipe of 1000 epochs; BYOL's paper does not state "
    'the recipe of this model'
)
