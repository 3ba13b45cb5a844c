"""The ImageNet networks of paper B. All end in logits: softmax is part of the loss and of the evaluation."""

import keras

from harness.models.alexnet import alexnet
from harness.models.googlenet import googlenet

_LAST_OF_BLOCK = "_3_bn"  # in ResNet-50; InceptionV3 has no such layer


def imagenet_network(name: str, features: tuple[int, ...], classes: int) -> keras.Model:
    """Return the network `name` (`harness.schema.workload.IMAGE_NETWORKS`) with logits [rows, classes].

    InceptionV3 and ResNet-50 are those of `keras.applications`, the first without its auxiliary classifier.
    """
    match name:
        case "alexnet":
            return alexnet(features, classes, towers=1)
        case "alexnet-grouped":
            return alexnet(features, classes, towers=2)
        case "googlenet":
            return googlenet(features, classes)
        case "inceptionv3":
            return _application(keras.applications.InceptionV3, features, classes)
        case "resnet50":
            return _application(keras.applications.ResNet50, features, classes)
    raise AssertionError(name)


def _application(build: "type[keras.Model]", features: tuple[int, ...], classes: int) -> keras.Model:
    model = build(weights=None, input_shape=features, classes=classes, classifier_activation=None)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            # Goyal et al. 2017, section 5.1. Keras's 0.99 forgets the initial values in hundreds of steps only.
            layer.momentum = 0.9
            if layer.name.endswith(_LAST_OF_BLOCK):  # the same section: each residual block begins as the identity
                layer.gamma.assign(keras.ops.zeros_like(layer.gamma))
    return model
