# MoCo v2+ with LARS (Tab. 2): the crossover, only the optimizer differs from MoCo v2+.
_base_ = 'mocov2plus_r50_200e.py'
# 0.3 per 256 images; decay not on BN and biases. The schedule is SGD's: warm-up over 10 epochs, cosine to 0.
optim_wrapper = dict(
    _delete_=True,
    type='LARSOptimWrapper',
    constructor='LARSOptimWrapperConstructor',
    optimizer=dict(type='LARS', lr=1.2, momentum=0.9, weight_decay=1e-6, eta=0.001),
)
