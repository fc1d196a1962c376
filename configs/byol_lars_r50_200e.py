# BYOL with LARS, the optimizer of BYOL's paper (Tab. 2 of Huang et al. 2022).
__method__ = 'byol_lars'
_base_ = 'byol_r50_200e.py'
# The learning rate is 0.3 per 256 images. The batch of 1024 is an assumption: neither the paper of Huang et al. 2022
# nor its release states the batch for models with LARS, and BYOL's own batch is 4096. LARS neither adapts nor decays
# batch norms and biases. The schedule is that of the SGD config.
optim_wrapper = dict(
    type='LARSOptimWrapper',
    optimizer=dict(_delete_=True, type='LARS', lr=1.2, momentum=0.9, weight_decay=1e-6, eta=0.001),
)
assumptions = dict(
    lars_batch="models with LARS are trained with the benchmark's batch of 1024; neither the paper of Huang et al. "
    '2022 nor its release states a batch, and BYOL itself uses 4096'
)
