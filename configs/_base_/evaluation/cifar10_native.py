# CIFAR-10 at its own 32 pixels, for networks that were trained so.
evaluation = dict(
    train=dict(type='CIFAR10', root='data/cifar10', split='train'),
    val=dict(type='CIFAR10', root='data/cifar10', split='val'),
    test=dict(type='CIFAR10', root='data/cifar10', split='test'),
    batch_size=256,
)
