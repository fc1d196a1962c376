# CIFAR-100 at its own 32 pixels, for networks that were trained so.
evaluation = dict(
    train=dict(type='CIFAR100', root='data/cifar100', split='train'),
    val=dict(type='CIFAR100', root='data/cifar100', split='val'),
    test=dict(type='CIFAR100', root='data/cifar100', split='test'),
    batch_size=256,
)
