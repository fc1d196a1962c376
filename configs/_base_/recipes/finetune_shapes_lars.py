# Fine-tuning for Shapes and Digits with LARS instead of SGD.
_base_ = 'finetune_shapes.py'
optim_wrapper = dict(
    type='LARSOptimWrapper',
    optimizer=dict(_delete_=True, type='LARS', lr=3.0, momentum=0.9, weight_decay=1e-6),
)
assumptions = dict(
    finetune_lars='fine-tuning with LARS has no published recipe; its learning rate is a choice'
)
