# Supervised training on 100 % of ImageNet's classes (Fig. 8 of Huang et al. 2022), for 100 x 1251 iterations, which are
# 100 epochs. The paper trains on all subsets for the same number of iterations but does not state this number, so it is
# an assumption.
_base_ = '../supervised/supervised_r50_100e.py'
model = dict(classes=1000)
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
train_cfg = dict(_delete_=True, by_epoch=False, max_iters=125100)
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=12510))
assumptions = dict(
    iterations='for Fig. 8, supervised models on all subsets are trained for as many iterations as there are in 100 '
    'epochs of ImageNet; the paper does not state the number'
)
