# BYOL's recipe for fine-tuning, with LARS instead of SGD. The learning rates of the grid are 100 times as large, because
# LARS scales the step of each layer to the rate times 0.001 times the norm of the layer's weights.
_base_ = 'finetune_20k.py'
optim_wrapper = dict(
    type='LARSOptimWrapper',
    optimizer=dict(_delete_=True, type='LARS', lr=1.0, momentum=0.9, weight_decay=1e-6),
)
trials = [
    {'optim_wrapper.optimizer': dict(lr=rate, weight_decay=decay)}
    for rate in (0.01, 10**-1.5, 0.1, 10**-0.5, 1.0, 10**0.5, 10.0)
    for decay in (0.0, 1e-6, 1e-5, 1e-4)
]
assumptions = dict(
    finetune_lars='fine-tuning with LARS has no published recipe; its grid of learning rates is a choice'
)
