# BYOL as its paper trains it (Tab. 1a): 1000 epochs at batch 4096, 0.2 per 256 images, decay 1.5e-6, m0 0.996,
# the asymmetric pair of views. Crops are resized bilinearly, as in all configs here; BYOL's were bicubic.
_base_ = '../byol_asymmetric_r50_200e.py'
total_batch_size = 4096
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='LARS', lr=3.2, momentum=0.9, weight_decay=1.5e-6, eta=0.001)
)
default_hooks = dict(momentum=dict(base=0.996))
auto_scale_lr = dict(base_batch_size=4096)
train_cfg = dict(max_epochs=1000)
evaluation = dict(sweep=True)  # BYOL selects the linear classifier's rate from five
assumptions = dict(
    crop="crops are resized bilinearly; BYOL's were bicubic",
    release="BYOL's release (deepmind-research/byol) differs in eight settings that its paper does not state: the rate is "
    'applied outside of the momentum buffer, the last gain of each residual block starts at 0, the last Linear of projector '
    'and predictor has no bias, the target network has its own start, its momentum counts steps from 0, brightness is added '
    'and contrast is about the mean of each channel, test images are resampled bicubically, and the warm-up starts at 0; '
    '`explain_byol_release.yaml` crosses five of them',
)
