"""ImageNet from class folders and TFRecord files: the same images, the same rows, the same batches."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from harness import datasets
from harness.datasets.image_files import find_images, open_index
from harness.schema.presets import resolve
from tests.labs.image_shards import write_shards
from tests.labs.sentences import refuses, says

KINDS = ("n01440764", "n01443537", "n01484850")


def picture(number, mode="RGB", format="JPEG"):
    pixels = np.random.default_rng(number).integers(0, 256, (8, 10, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    content = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(content, format)
    return content.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Return a folder of 3 classes: colour, grey, CMYK and PNG images, one cut, one that is text."""
    for part, each in (("train", 6), ("val", 2)):
        for label, kind in enumerate(KINDS):
            place = tmp_path / "jpegs" / part / kind
            place.mkdir(parents=True)
            for number in range(each):
                (place / f"{part}_{kind}_{number}.JPEG").write_bytes(picture(label * 100 + number))
    train = tmp_path / "jpegs" / "train"
    (train / KINDS[0] / f"train_{KINDS[0]}_1.JPEG").write_bytes(picture(1, "L"))
    (train / KINDS[1] / f"train_{KINDS[1]}_2.JPEG").write_bytes(picture(2, "CMYK"))
    (train / KINDS[2] / f"train_{KINDS[2]}_3.JPEG").write_bytes(picture(3, format="PNG"))
    (train / KINDS[0] / f"train_{KINDS[0]}_4.JPEG").write_bytes(picture(4)[:700])
    (train / KINDS[1] / f"train_{KINDS[1]}_5.JPEG").write_text("no image at all")
    (train / KINDS[1] / "README.txt").write_text("not an image, by its name")
    return tmp_path / "jpegs"


def index_of(folder):
    found = find_images(folder)
    assert not found.missing
    return open_index(found.train, found.test)


def test_damaged_images_are_left_out_and_named_and_unusual_ones_counted(cache, folder):
    index = index_of(folder)
    assert (index.summary.train_rows, index.summary.test_rows, index.summary.classes) == (16, 6, 3)
    assert "damaged" in index.summary.note
    assert f"{KINDS[0]}/train_{KINDS[0]}_4.JPEG" in index.summary.note
    says(index.summary.note, "damaged images are left", "1 CMYK", "1 PNG", "1 grey")
    lines = (index.folder / "damaged.txt").read_text().splitlines()
    assert {line.split("\t")[0] for line in lines} == {
        f"{KINDS[0]}/train_{KINDS[0]}_4.JPEG",
        f"{KINDS[1]}/train_{KINDS[1]}_5.JPEG",
    }


def test_every_container_has_the_same_rows_and_batches(cache, folder, tmp_path):
    from harness.train.batch_input import ImageFiles, image_dataset

    found = find_images(folder)
    assert write_shards(found.train, found.test, tmp_path / "shards", 3) == [16, 6]
    assert len(list((tmp_path / "shards").glob("train-*-of-00003"))) == 3
    seen = []
    for place in (folder, tmp_path / "shards"):
        index = index_of(place)
        rows = np.arange(16)
        batches = list(
            image_dataset(
                ImageFiles(index.files), index.places[:16], index.labels[:16], rows, batch=5, size=32, threads=2, salt=9
            )
        )
        assert [len(labels) for _, labels in batches] == [5, 5, 5, 1]
        seen.append((index.summary.sha256, np.concatenate([x for x, _ in batches]), index.labels.tolist()))
    for sha256, images, labels in seen[1:]:
        assert (sha256, labels) == (seen[0][0], seen[0][2])
        np.testing.assert_array_equal(images, seen[0][1])
    assert sorted(seen[0][2][:16]) == [0] * 5 + [1] * 5 + [2] * 6


def test_crops_depend_on_row_and_epoch_and_not_on_the_batch(cache, folder):
    from harness.train.batch_input import ImageFiles, image_dataset

    index = index_of(folder)

    def images(rows, salt, batch=4):
        rows = np.array(rows)
        made = image_dataset(
            ImageFiles(index.files),
            index.places[rows],
            index.labels[rows],
            rows,
            batch=batch,
            size=24,
            threads=1,
            salt=salt,
        )
        return np.concatenate([x for x, _ in made])

    whole = images(range(8), 1)
    np.testing.assert_array_equal(images([6, 2], 1, batch=1), whole[[6, 2]])
    assert not np.array_equal(images(range(8), 2), whole)
    np.testing.assert_array_equal(images(range(8), None), images(range(8), None))
    assert whole.shape == (8, 24, 24, 3) and whole.dtype == np.uint8 and whole.std() > 20


def test_the_batch_that_16_bit_sums_are_tried_on_is_the_first_of_the_epoch(cache, folder):
    from harness.datasets.shards import Shards
    from harness.train.replica import first_batch

    index, shards = index_of(folder), Shards(rows=16, batch=5, ranks=1)
    data = SimpleNamespace(
        files=index.files,
        train_x=index.places[:16],
        train_y=index.labels[:16],
        shift=None,
        factor=None,
        record=SimpleNamespace(features=(24, 24, 3)),
        shards=shards,
    )
    replica = SimpleNamespace(data=data, world=SimpleNamespace(rank=0), point=SimpleNamespace(seed=3))
    inputs, labels = first_batch(replica, 1)
    rows = shards.order(0, seed=3, epoch=1)[0][0]
    assert inputs.shape == (5, 24, 24, 3) and labels.numpy().tolist() == index.labels[rows].tolist()


def test_a_changed_image_is_another_data_set(cache, folder):
    before = index_of(folder)
    place = folder / "train" / KINDS[0]
    (place / f"train_{KINDS[0]}_0.JPEG").unlink()
    (place / f"train_{KINDS[0]}_9.JPEG").write_bytes(picture(77))
    after = index_of(folder)
    assert after.summary.sha256 != before.summary.sha256 and after.folder != before.folder


def test_a_damaged_container_is_one_sentence(cache, tmp_path):
    (tmp_path / "train-00000-of-00001").write_bytes(b"\x10\0\0\0")
    found = find_images(tmp_path)
    with refuses("or not an uncompressed"):
        open_index(found.train, found.test)


def test_a_folder_is_located_and_opened_as_data(cache, folder):
    workload = resolve(dataset="imagenet", model="resnet50", data="real", image_size=64)
    source = datasets.locate(workload, folder)
    assert (source.kind, source.classes, source.image_size, source.stored) == ("real", 3, 64, True)
    record = datasets.prepare(source).record
    assert (record.train_rows, record.test_rows, record.features) == (16, 6, (64, 64, 3))
    assert "damaged" in record.note
    with refuses("leave it out", "10", "3"):
        datasets.locate(resolve(dataset="imagenet", model="resnet50", data="real", classes=10), folder)
    with refuses("input resident holds synthetic"):
        datasets.locate(resolve(dataset="imagenet", model="resnet50", data="real", input="resident"), folder)


def test_without_validation_images_one_in_25_is_held_out(cache, folder):
    for path in sorted((folder / "val").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    source = datasets.locate(resolve(dataset="imagenet", model="resnet50"), folder)
    record = datasets.prepare(source).record
    assert (record.train_rows, record.test_rows, record.held_out) == (15, 1, True)


def test_synthetic_images_come_from_memory_or_from_files_of_the_size_of_photographs(cache, tmp_path):
    resident = resolve(dataset="imagenet", model="resnet50", data="synthetic", image_size=64, classes=4, samples=70)
    stored = resolve(
        dataset="imagenet", model="resnet50", data="synthetic", image_size=64, classes=4, samples=70, input="files"
    )
    held = datasets.prepare(datasets.locate(resident, None))
    assert held.train_x.shape == (70, 64, 64, 3) and held.files is None
    decoded = datasets.prepare(datasets.locate(stored, None))
    assert decoded.train_x.shape == (70, 3) and decoded.files is not None and len(decoded.files) == 70 + 32
    assert 60_000 < decoded.train_x[:, 2].mean() < 160_000
    assert decoded.record.kind == "synthetic" and decoded.record.features == (64, 64, 3)


def test_rank_0_does_not_send_images_that_every_rank_decodes(cache):
    settings = {"dataset": "imagenet", "model": "alexnet", "distribution": "scatter", "image_size": 64, "classes": 4}
    assert datasets.locate(resolve(**settings), None).kind == "synthetic"  # held in memory
    with refuses("--distribution parallel"):
        datasets.locate(resolve(**settings, input="files"), None)
