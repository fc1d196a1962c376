# CIFAR-100 enlarged to the size of pre-training, as in the transfer table: top-1.
test_view = [dict(type='Resize', size=224, interpolation='bicubic'), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='CIFAR100', root='data/cifar100', split='train', views=[test_view]),
    val=dict(type='CIFAR100', root='data/cifar100', split='val', views=[test_view]),
    test=dict(type='CIFAR100', root='data/cifar100', split='test', views=[test_view]),
    batch_size=256,
)
