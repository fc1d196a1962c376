# The demo's shapes with few labels: 100 training images of each kind. Settings are selected on other images.
_base_ = 'shapes_r18.py'
evaluation = dict(
    train=dict(count=1_200),
    val=dict(type='Shapes', split='train', count=2_400, size=48, seed=1),
)
recipes = dict(finetune='finetune_few_shapes')
