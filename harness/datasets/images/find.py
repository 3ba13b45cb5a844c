"""Look for ImageNet where users have it: class folders, tar files of the distribution, TFRecord shards."""

from pathlib import Path

from harness.datasets.dataset import Found

_TRAIN_TAR, _VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
_VAL_FOLDERS = ("val", "validation")


def find(folder: Path) -> Found:
    """Return the first of these in `folder`/imagenet or `folder`: TFRecord shards, class folders, the tar file.

    Class folders are ``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``, or ``train/<wnid>.tar``; shards
    ``train-00000-of-01024`` and ``validation-...``. The distribution's flat validation images have no classes in
    their names, so without ``val/<wnid>/`` training images are held out.
    """
    for base in (folder / "imagenet", folder):
        shards = _shards(base, "train") or _shards(base / "train", "train")
        if shards:
            return Found(train=shards, test=_shards(base, "validation") or _shards(base / "validation", "validation"))
        train = base / "train"
        if train.is_dir() and (_classes(train) or any(train.glob("n*.tar"))):
            val = next((base / name for name in _VAL_FOLDERS if _classes(base / name)), None)
            return Found(train=(train,), test=(val,) if val else ())
        if (base / _TRAIN_TAR).is_file():
            val = next((base / name for name in _VAL_FOLDERS if _classes(base / name)), None)
            return Found(train=(base / _TRAIN_TAR,), test=(val,) if val else ())
    return Found(missing=("train/",))


def _shards(folder: Path, part: str) -> tuple[Path, ...]:
    return tuple(sorted(path for path in folder.glob(f"{part}-?????-of-?????*") if path.is_file()))


def _classes(folder: Path) -> bool:
    return folder.is_dir() and any(path.is_dir() for path in folder.iterdir())
