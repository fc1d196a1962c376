# SimCLR with its own projector, as in BYOL's Fig. 3 and Tab. 16, 17; Tab. 5b uses BYOL's projector. Beta 1 is NT-Xent.
_base_ = 'simclr_r50_300e.py'
model = dict(projector=dict(hidden_channels=2048, out_channels=128))
assumptions = dict(
    simclr="SimCLR's own projector is 2048-128, as in its release; BYOL's Tab. 16 and 17 state no widths"
)
