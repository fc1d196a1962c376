# CIFAR-10-LT (Cao et al.): the largest class has 100 times as many training images as the smallest. The test set is
# balanced.
_base_ = 'cifar10_r50.py'
evaluation = dict(
    _delete_=True,
    train=dict(
        type='LongTailed',
        imbalance=100,
        dataset=dict(
            type='CIFAR10', root='data/cifar10', split='train+val', views=[{{_base_.test_view}}]
        ),
    ),
    test={{_base_.evaluation.test}},
    batch_size=256,
)
recipes = dict(finetune='finetune_lt_200e')
