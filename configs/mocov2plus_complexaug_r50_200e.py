# + more complex augmentation (Fig. 2, last bar; Tab. 5): BYOL's, with solarization, for both views.
# The paper's Sec. 3.2 says that both views draw from one recipe; its release trains on BYOL's asymmetric pair instead.
__method__ = 'mocov2plus_complexaug'
_base_ = ['mocov2plus_r50_200e.py', '_base_/views/byol.py']
train_dataloader = dict(dataset=dict(views=[{{_base_.symmetric_view}}, {{_base_.symmetric_view}}]))
assumptions = dict(
    views="both views draw from one recipe, as the paper says; its release trains on BYOL's asymmetric pair"
)
