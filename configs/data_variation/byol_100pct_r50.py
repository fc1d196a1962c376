# BYOL on 100 % of ImageNet's classes (Fig. 8 of Huang et al. 2022), for 200 x 1251 iterations, which are 200 epochs.
# The paper trains on all subsets for the same number of iterations but does not state this number, so it is an
# assumption.
_base_ = '../byol_r50_200e.py'
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='Subset',
        dataset={{_base_.train_dataloader.dataset}},
        classes=1.0,
        seed=0,
    ),
)
param_scheduler = [
    dict(type='WarmUpLR', start=1e-6, by_epoch=False, end=12510),
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=False, begin=12510),
]
train_cfg = dict(_delete_=True, by_epoch=False, max_iters=250200)
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=12510))
assumptions = dict(
    iterations='for Fig. 8, models on all subsets are trained for as many iterations as there are in 200 epochs of '
    'ImageNet; the paper does not state the number'
)
