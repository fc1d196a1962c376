# + more complex augmentation (Fig. 2, last bar; Tab. 5): BYOL's, with solarization, for both views.
# In the paper (Sec. 3.2) both views use one recipe; its release uses BYOL's asymmetric pair.
__method__ = 'mocov2plus_complexaug'
_base_ = ['mocov2plus_r50_200e.py', '_base_/views/byol.py']
train_dataloader = dict(dataset=dict(views=[{{_base_.symmetric_view}}, {{_base_.symmetric_view}}]))
assumptions = dict(
    views="both views use one recipe, as in the paper; the release uses BYOL's asymmetric pair"
)
