"""What only ImageNet has: paper B's networks, the size of its images, and where they come from."""

from dataclasses import dataclass

from harness.base.errors import UserError

IMAGENET = "imagenet"
INPUTS = ("auto", "resident", "files")
"""Where training images come from: held in memory, decoded from files in every epoch, or (``auto``) from files
where the data is real and from memory where it is synthetic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageNetwork:
    """A network of paper B: its name there, the image size it was published with and the smallest it takes (pixels)."""

    title: str
    size: int
    least: int


# AlexNet's paper says 224, but its own first layer (55 x 55 maps of 11 x 11 windows at stride 4) needs 227.
IMAGE_NETWORKS = {
    "alexnet": ImageNetwork(title="AlexNet", size=227, least=32),
    "alexnet-grouped": ImageNetwork(title="AlexNet", size=227, least=32),
    "googlenet": ImageNetwork(title="GoogLeNet", size=224, least=32),
    "inceptionv3": ImageNetwork(title="InceptionV3", size=299, least=75),
    "resnet50": ImageNetwork(title="ResNet-50", size=224, least=32),
}
_OTHER = ImageNetwork(title="", size=224, least=8)
_LARGEST = 4096


def image_size(model: str, asked: int | None) -> int:
    """Return the side of the images in pixels: what was `asked` for, else the network's own."""
    return asked or IMAGE_NETWORKS.get(model, _OTHER).size


def check_images(dataset: str, model: str, size: int | None, classes: int | None, source: str) -> None:
    """Check a workload's image settings.

    Raises:
        UserError: one is out of range, or set for another data set than ``imagenet``.
    """
    for field, value in (("image size", size), ("classes", classes), ("input", source if source != "auto" else None)):
        if value is not None and dataset != IMAGENET:
            raise UserError(f"{field} {value} is a setting of dataset {IMAGENET}, not of {dataset}: leave it out")
    least = IMAGE_NETWORKS.get(model, _OTHER).least
    if size is not None and not least <= size <= _LARGEST:
        raise UserError(f"image size {size} is out of range for {model}: use {least} to {_LARGEST} pixels")
    if classes is not None and classes < 2:
        raise UserError(f"classes {classes} is too small: use at least 2")
