# CIFAR-10-LT (Cao et al.): the largest class has 100 times as many training images as the smallest. The test set is
# balanced.
_base_ = 'cifar10_r50.py'
custom_imports = dict(imports='projects.papers.long_tail')
evaluation = dict(
    _delete_=True,
    train=dict(type='LongTailed', imbalance=100, dataset={{_base_.evaluation.train}}),
    test={{_base_.evaluation.test}},
    batch_size=256,
)
recipes = dict(finetune='finetune_lt_200e')
