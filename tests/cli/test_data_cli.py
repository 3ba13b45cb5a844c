"""`harness data`: what each command prints, and exit code 2 with one sentence for bad input."""

import bz2
import dataclasses
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from harness import datasets
from harness.__main__ import main
from harness.datasets.data_checks import verify_data
from harness.schema.workload import Workload
from tests.labs.mnist_files import write_mnist


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs `harness data` and gives what it printed (its one sentence, for code 2)."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: object, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["harness", "data", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == code, printed.out + printed.err
        return printed.err.strip().splitlines()[-1] if code else printed.out

    return run


def test_list_says_what_is_here(run, cache, tmp_path):
    write_mnist(tmp_path / "data" / "mnist")
    out = run("list", "--data-dir", tmp_path / "data")
    lines = out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("name"))
    rows = {line.split()[0]: line for line in lines[head + 1 : head + 8]}
    assert list(rows) == ["acoustic", "adult", "cifar10", "cifar100", "higgs", "imagenet", "mnist"]
    assert "4 files" in rows["mnist"] and "60,000" in rows["mnist"]
    assert "no" in rows["higgs"].split()[-2:] and "10,900,000" in rows["higgs"]


def test_prepare_writes_once_and_says_where(run, cache, tmp_path):
    write_mnist(tmp_path / "data" / "mnist")
    first = run("prepare", "mnist", "--data-dir", tmp_path / "data")
    assert "mnist (real) prepared in" in first and "30 + 10 rows" in first and str(cache) in first
    assert "was prepared before" in run("prepare", "mnist", "--data-dir", tmp_path / "data")
    made = run("prepare", "mnist", "--samples", "50")
    assert "50 synthetic samples are used" in made and "50 + 1,000 rows" in made


def test_verify_refuses_a_set_that_is_not_whole(run, cache, tmp_path):
    write_mnist(tmp_path / "mnist")
    sentence = run("verify", "mnist", "--data-dir", tmp_path, code=2)
    assert sentence.startswith("harness: the data of mnist is not as published in train rows, test rows")


def test_verify_and_info_of_a_file_of_the_users_own(run, cache, tmp_path):
    path = tmp_path / "my data.csv"
    path.write_text("\n".join(f"{row % 2},{row / 7}" for row in range(20)))
    out = run("verify", path)
    assert "rows: 20" in out and "train rows per class: 10 10" in out and "held out for test" in out
    assert str(path) in run("info", path)


@pytest.mark.parametrize(("rows", "agrees"), [(9, None), (10, True), (11, False)])
def test_verify_counts_the_rows_of_a_set_without_test_files(cache, tmp_path, monkeypatch, rows, agrees):
    facts = dataclasses.replace(datasets.dataset_info("higgs"), train_rows=8, test_rows=2)
    monkeypatch.setattr("harness.datasets.data_checks.dataset_info", lambda name: facts)
    (tmp_path / "HIGGS.csv").write_text("".join(",".join([f"{row % 2}", *["0.5"] * 28]) + "\n" for row in range(rows)))
    source = datasets.locate(Workload(dataset="higgs", model="dnn", global_batch=1), tmp_path)
    checks = {check.what: check for check in verify_data(source, datasets.prepare(source))}
    assert checks["rows"].agrees is agrees


def test_info_tells_addresses_files_and_the_stand_in(run, cache, tmp_path):
    out = run("info", "acoustic")
    assert "acoustic.t.bz2  size not published  hash pinned on first use" in out
    assert "78,823 synthetic samples are used" in out and "synthetic-acoustic-v1" in out


def test_fetch_from_a_mirror_and_then_use_it(run, cache, tmp_path):
    (tmp_path / "mirror").mkdir()
    for name in ("acoustic.bz2", "acoustic.t.bz2"):
        lines = "".join(f"{1 + row % 3} 1:{row}.5 50:1\n" for row in range(30))
        (tmp_path / "mirror" / name).write_bytes(bz2.compress(lines.encode()))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path / "mirror"))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        out = run("fetch", "acoustic", "--mirror", f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert str(cache / "data" / "acoustic" / "acoustic.t.bz2") in out
    assert "acoustic (real) prepared" in run("prepare", "acoustic")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("info", "higs"), "unknown dataset 'higs': did you mean 'higgs'?"),
        (("prepare", "gone.csv"), "gone.csv is not there"),
        (("verify", "mnist"), "`harness data fetch mnist`"),
        (("prepare", "mnist", "--data-dir", "nowhere"), "data folder 'nowhere' is not there"),
        (("fetch", "mnist", "--mirror", "http://127.0.0.1:9"), "connection refused"),
    ],
)
def test_bad_input_is_one_sentence(run, cache, arguments, part):
    assert part in run(*arguments, code=2)


def test_wrong_hash_from_a_mirror(run, cache, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"not it")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        sentence = run("fetch", "mnist", "--mirror", f"http://127.0.0.1:{server.server_address[1]}", code=2)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert "does not have the published SHA-256 440fcabf" in sentence
    assert [path.name for path in (cache / "data" / "mnist").iterdir()] == [".lock"]


def test_clean_empties_what_is_made_again_and_keeps_downloads(run, cache, tmp_path):
    write_mnist(cache / "data" / "mnist")
    run("prepare", "mnist")
    assert list((cache / "prepared").rglob("x.npy"))
    assert "MB  prepared data" in run("clean")
    assert not (cache / "prepared").exists() and (cache / "data" / "mnist").is_dir()
    run("clean", "--downloads")
    assert not (cache / "data").exists()
