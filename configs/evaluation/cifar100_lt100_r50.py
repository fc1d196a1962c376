# CIFAR-100-LT: the largest class has 100 times the images of the smallest (Cao et al.); the test set stays balanced.
_base_ = 'cifar100_r50.py'
evaluation = dict(
    _delete_=True,
    train=dict(
        type='LongTailed',
        imbalance=100,
        dataset=dict(type='CIFAR100', root='data/cifar100', split='train+val', views=[{{_base_.test_view}}]),
    ),
    test={{_base_.evaluation.test}},
    batch_size=256,
)
recipes = dict(finetune='finetune_lt_200e')
