# Supervised pre-training on ImageNet with 2 balanced classes (Tab. 6 of Huang et al. 2022): artifacts and everything
# else. You must supply the file with the taxonomy, such as ImageNet's wordnet.is_a.txt. Each of its lines is 'parent
# child'.
_base_ = 'supervised_r50_100e.py'
custom_imports = dict(imports='projects.papers.taxonomies')
model = dict(classes=2)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='Relabelled',
        dataset={{_base_.train_dataloader.dataset}},
        taxonomy='data/imagenet/wordnet.is_a.txt',
        groups='artifact',
    )
)
