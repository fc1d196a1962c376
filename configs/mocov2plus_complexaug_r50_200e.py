# Step 5 from MoCo v2 to BYOL (Fig. 2 of Huang et al. 2022, last point; Tab. 5): BYOL's more complex augmentation, which
# includes solarization. Both views have the same operations, as the paper states (Sec. 3.2). The paper's release uses
# BYOL's asymmetric pair of views instead.
__method__ = 'mocov2plus_complexaug'
_base_ = ['mocov2plus_r50_200e.py', '_base_/views/byol.py']
train_dataloader = dict(dataset=dict(views=[{{_base_.symmetric_view}}, {{_base_.symmetric_view}}]))
assumptions = dict(
    views="both views have the same operations, as in the paper; the release uses BYOL's asymmetric pair of views"
)
