"""Synthetic stand-ins: seeded data with a real set's shapes, dtypes, class balance and range, made in chunks.

A row's class is drawn by the class shares. Each class is two Gaussian clusters in a small latent space; the
row's latent point, through a fixed random matrix, becomes one score per feature, and the set's own `render`
turns scores into features. The clusters overlap, so the stand-in is learnable and no network reaches 100 %.

Every chunk has its own counter range of Philox, so a stand-in of n rows is a prefix of every larger one.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.base.files import cache_folder, publish_once
from harness.datasets.dataset import TEST, TRAIN, Array, Chunk, Dataset, StandIn

VERSION = 1
_CLUSTERS = 2
_NOISE = np.float32(0.5)  # of a score, which carries no information
# Streams of random numbers.
_FIXED = 0
_TRAIN_STREAM = 1
_TEST_STREAM = 2

Scores = npt.NDArray[np.float32]

# HIGGS's columns: transverse momentum, pseudorapidity, azimuth, b-tag, mass; as in the UCI description.
_HIGGS_KINDS = np.array([*"pea", *"pa", *("peat" * 4), *("m" * 7)])
_B_TAG_LEVELS = np.array([1.0865, 1.1074, 1.2741, 1.5510], dtype=np.float32)


def test_rows(dataset: Dataset, train_rows: int) -> int:
    """Return the size of a stand-in's test part: the original's, at most a fifth of `train_rows`, but not too few."""
    assert dataset.stand_in is not None
    return max(dataset.stand_in.least_test_rows, min(dataset.test_rows, train_rows // 5))


def chunks(dataset: Dataset, rows: int, part: str) -> Iterator[Chunk]:
    """Yield the first `rows` rows of part ``train`` or ``test`` of the data set's stand-in.

    Features are [rows, *features] of the set's dtype, labels int32. The same on every machine and call.
    """
    recipe = dataset.stand_in
    assert recipe is not None
    centres, matrix = _structure(dataset, recipe)
    stream = _TRAIN_STREAM if part == TRAIN else _TEST_STREAM
    for chunk, start in enumerate(range(0, rows, recipe.chunk_rows)):
        rng = _generator(dataset.name, stream, chunk)
        labels = rng.choice(dataset.classes, size=recipe.chunk_rows, p=dataset.shares).astype(np.int32)
        cluster = rng.integers(_CLUSTERS, size=recipe.chunk_rows)
        latent = rng.standard_normal((recipe.chunk_rows, recipe.latent), dtype=np.float32)
        latent += centres[labels, cluster]
        scores = latent @ matrix
        scores += _NOISE * rng.standard_normal(scores.shape, dtype=np.float32)
        features = recipe.render(scores, rng).reshape(-1, *_score_shape(dataset.features, recipe.patch))
        if recipe.patch > 1:
            height, width, _ = dataset.features
            features = features.repeat(recipe.patch, axis=1).repeat(recipe.patch, axis=2)[:, :height, :width]
        count = min(recipe.chunk_rows, rows - start)
        yield features[:count], labels[:count]


def render_plain(scores: Scores, rng: np.random.Generator) -> Array:
    """Return the scores as they are: features of mean about 0 and deviation about 1."""
    return scores


def render_grey(scores: Scores, rng: np.random.Generator) -> Array:
    """Return pixels, uint8, most of them black as on a page with a digit."""
    return np.clip(scores * 90 - 20, 0, 255).astype(np.uint8)


def render_colour(scores: Scores, rng: np.random.Generator) -> Array:
    """Return pixels, uint8, about the mean and deviation of photographs."""
    return np.clip(scores * 63 + 121, 0, 255).astype(np.uint8)


def render_groups(sizes: tuple[int, ...]) -> Callable[[Scores, np.random.Generator], Array]:
    """Return a render to one-hot groups of the given `sizes`: in each, one column is 1 (uint8)."""
    edges = np.cumsum((0, *sizes))

    def render(scores: Scores, rng: np.random.Generator) -> Array:
        # Scores plus Gumbel noise, the negative logarithm of an exponential: the largest is a softmax sample.
        waits = rng.standard_exponential(scores.shape, dtype=np.float32)
        chance = scores - np.log(np.maximum(waits, np.float32(1e-30)))
        ones = np.zeros(scores.shape, np.uint8)
        for first, last in itertools.pairwise(edges):
            ones[np.arange(len(ones)), first + chance[:, first:last].argmax(axis=1)] = 1
        return ones

    return render


def render_collisions(scores: Scores, rng: np.random.Generator) -> Array:
    """Return HIGGS-like features: positive momenta and masses about 1, bounded angles, b-tags of three levels."""
    for column, kind in enumerate(_HIGGS_KINDS):
        values = scores[:, column]
        if kind in "pm":
            width = np.float32(0.5 if kind == "p" else 0.35)
            np.clip(np.exp(values * width - width * width / 2, out=values), 0.05, 10, out=values)
        elif kind in "ea":
            limit = 2.5 if kind == "e" else 1.7435
            np.clip(values, -limit, limit, out=values)
        else:
            level = _B_TAG_LEVELS[np.count_nonzero(_HIGGS_KINDS[:column] == "t")]
            values[:] = level * ((values > 0).astype(np.float32) + (values > 1))
    return scores


def _structure(dataset: Dataset, recipe: StandIn) -> tuple[Scores, Scores]:
    """Return the class centres [classes, clusters, latent] and the matrix [latent, scores] of a stand-in."""
    rng = _generator(dataset.name, _FIXED, 0)
    centres = rng.standard_normal((dataset.classes, _CLUSTERS, recipe.latent), dtype=np.float32)
    centres *= np.float32(recipe.separation) / np.linalg.norm(centres, axis=-1, keepdims=True)
    scores = math.prod(_score_shape(dataset.features, recipe.patch))
    matrix = rng.standard_normal((recipe.latent, scores), dtype=np.float32)
    matrix /= np.linalg.norm(matrix, axis=0)
    return centres, matrix


def _score_shape(features: tuple[int, ...], patch: int) -> tuple[int, ...]:
    """Return the shape of one row's scores: `features`, or the squares of `patch` pixels that cover the image."""
    if patch == 1:
        return features
    height, width, channels = features
    return -(-height // patch), -(-width // patch), channels


def _generator(name: str, stream: int, chunk: int) -> np.random.Generator:
    key = int.from_bytes(hashlib.sha256(f"{name}-v{VERSION}".encode()).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, chunk, stream]))


JPEG_VERSION = 1
_JPEG_SIDE = 400
_JPEG_QUALITY = 90
_JPEG_NOISE = 12


def jpeg_folder(dataset: Dataset, rows: int, classes: int) -> Path:
    """Return a folder of `rows` synthetic training JPEGs and their test part, written to the cache the first time."""
    folder = cache_folder() / "images" / "synthetic" / f"v{JPEG_VERSION}-{classes}-{rows}"
    publish_once(folder, lambda staging: _write_jpegs(dataset.sized(_JPEG_SIDE, classes), rows, staging))
    return folder


def _write_jpegs(dataset: Dataset, rows: int, folder: Path) -> None:
    from PIL import Image

    for part, name, count in ((TRAIN, "train", rows), (TEST, "val", test_rows(dataset, rows))):
        noise = np.random.default_rng([JPEG_VERSION, part == TRAIN])
        pairs = (zip(x, y, strict=True) for x, y in chunks(dataset, count, part))
        for number, (pixels, label) in enumerate(itertools.chain.from_iterable(pairs)):
            rough = pixels + noise.normal(0, _JPEG_NOISE, pixels.shape)
            place = folder / name / f"n{label:08d}"
            place.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(np.clip(rough, 0, 255).astype(np.uint8))
            image.save(place / f"{name}_{number:08d}.JPEG", "JPEG", quality=_JPEG_QUALITY)
