# BYOL as its paper trains it (Tab. 1a): 1000 epochs at batch 4096, learning rate 0.2 per 256 images, weight decay 1.5e-6,
# teacher momentum from 0.996, and the asymmetric pair of views. Crops are resized bilinearly, as in all configs of mmairl,
# while the paper resizes them bicubically.
_base_ = '../byol_asymmetric_r50_200e.py'
total_batch_size = 4096
optim_wrapper = dict(
    type='LARSOptimWrapper',
    optimizer=dict(
        _delete_=True, type='LARS', lr=3.2, momentum=0.9, weight_decay=1.5e-6, eta=0.001
    ),
)
default_hooks = dict(momentum=dict(base=0.996))
auto_scale_lr = dict(base_batch_size=4096)
train_cfg = dict(max_epochs=1000)
# BYOL selects the learning rate of the linear classifier from five rates.
evaluation = dict(sweep=True)
assumptions = dict(
    crop="crops are resized bilinearly; BYOL's crops were resized bicubically",
    release="BYOL's release differs in eight settings that its paper does not state; `byol_release_r50_1000e.py` has "
    'seven of them, and the study `explain_byol_release.yaml` measures the effects of these seven',
)
