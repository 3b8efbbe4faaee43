"""Files that unpack to more than a machine has, or that say so: one sentence each, before memory is taken."""

from __future__ import annotations

import gzip
import io
import resource
import struct
import zipfile
import zlib

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat

from coterie.data.sources import limits
from coterie.data.sources.catalogue import list_data
from coterie.data.sources.matlab import unpacked_size
from tests.helpers import call, refused
from tests.source_files import archive, read, write_idx, written


@pytest.fixture(autouse=True)
def measured():
    """Fail if a refusal took more than 300 MB at any time."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def member(shape, dtype="<f4", content=b"", version=1):
    """Return an array's file with a header of one's own."""
    header = io.BytesIO()
    about = {"descr": dtype, "fortran_order": False, "shape": shape}
    write = np.lib.format.write_array_header_1_0 if version == 1 else np.lib.format.write_array_header_2_0
    write(header, about)
    return header.getvalue() + content


def zipped(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


Y = member((6,), "<i8", bytes(48))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "shape", [(10**12,), (10**9, 10**9), (2**62, 4), (6, 2, 10**15), (7, 2), (5, 2), (-6, -2), (2**200,)]
)
def test_an_archive_that_says_more_than_it_holds_is_refused(tmp_path, shape, version):
    """The shape alone made numpy take memory, and the command ended in a traceback."""
    path = zipped(tmp_path / "a.npz", x=member(shape, content=bytes(48), version=version), y=Y)
    with refused("'x' says that it has the shape"):
        read(path)


def bomb(path, size):
    """Write an archive of zeros, of `size` bytes when unpacked."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        with file.open("x.npy", "w", force_zip64=True) as part:
            part.write(member((size // 4,)))
            for _ in range(size // 2**22):
                part.write(bytes(2**22))
        file.writestr("y.npy", member((size // 4,)))
    return path


def test_zeros_that_unpack_to_gigabytes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(limits.VARIABLE, "100MB")
    path = bomb(tmp_path / "a.npz", 2**27)
    assert path.stat().st_size < 2**20
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("silo.npy", Y)
    with refused("does not fit its 0 bytes"):  # y says more than it holds
        read(path)
    path = zipped(tmp_path / "b.npz", x=member((2**25,), content=bytes(2**27)), y=Y)
    with refused("may need 128 MB of memory, more than the limit of 100 MB: if you trust it, set"):
        read(path)
    monkeypatch.setenv(limits.VARIABLE, "2 GiB")
    with refused("differ in length"):  # it is read
        read(path)


def test_the_command_refuses_an_oversized_archive_in_one_sentence(config, tmp_path, monkeypatch, capsys):
    path = zipped(tmp_path / "a.npz", x=member((10**9, 10**9), content=bytes(48)), y=Y)
    code, _, err = call(monkeypatch, capsys, "plan", config, "--set", f"data.source={path}", columns=1000)
    assert (code, err.count("\n"), err.startswith("coterie: data: cannot read")) == (2, 1, True)
    assert call(monkeypatch, capsys, "data", "list", "--data-dir", tmp_path)[0] == 0
    assert [entry.name for entry in list_data(tmp_path)] == ["digits"]


MALFORMED = {
    "empty member": (b"", "cannot read"),
    "no header": (b"\x93NUMPY\x01\x00", "cannot read"),
    "wrong magic": (b"hello" * 20, "cannot read"),
    "version": (b"\x93NUMPY\x09\x00" + bytes(200), "cannot read"),
    "not a dict": (b"\x93NUMPY\x01\x00\x10\x00" + b"[1, 2, 3]      \n", "cannot read"),
    "code": (b"\x93NUMPY\x01\x00\x20\x00" + b"__import__('os').system('true') \n", "cannot read"),
    "long header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 100, "cannot read"),
    "objects": (member((6,), "|O", bytes(48)), "'x' holds Python objects: save it as numbers or text"),
    "deep": (b"\x93NUMPY\x01\x00\x20\x1f" + b"(" * 7968, "cannot read"),
}


@pytest.mark.parametrize("what", MALFORMED)
@pytest.mark.filterwarnings("ignore")
def test_a_malformed_member_is_refused(tmp_path, what):
    content, words = MALFORMED[what]
    with refused(words):
        read(zipped(tmp_path / "a.npz", x=content, y=Y))


def test_encrypted_and_unknown_compression_are_refused(tmp_path):
    path = archive(tmp_path)
    content = bytearray(path.read_bytes())
    for mark, offset, value in ((b"PK\x01\x02", 8, 1), (b"PK\x01\x02", 10, 97)):
        changed = bytearray(content)
        at = changed.find(mark)
        while at >= 0:
            changed[at + offset] = value
            at = changed.find(mark, at + 4)
        path.write_bytes(changed)
        with refused("cannot read the numpy archive"):
            read(path)


def test_a_matlab_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    cell = np.empty(1, dtype=object)
    cell[0] = np.zeros((1000, 1000))
    path = tmp_path / "a.mat"
    savemat(path, {"X": cell, "Y": cell}, do_compression=True)
    assert path.stat().st_size < 50_000
    assert 16_000_000 < unpacked_size(path) < 16_001_000
    monkeypatch.setenv(limits.VARIABLE, "10MB")
    with refused("may need 85 MB"):
        read(path)
    savemat(path, {"X": cell, "Y": cell}, do_compression=False)
    with refused("more than the limit of 10 MB"):
        read(path)


@pytest.mark.parametrize("cut", [128, 130, 136, 140, 200, 500])
def test_a_cut_matlab_file_is_refused(tmp_path, cut):
    cell = np.empty(1, dtype=object)
    cell[0] = np.zeros((3, 3))
    savemat(tmp_path / "a.mat", {"X": cell, "Y": cell}, do_compression=cut % 4 == 0)
    (tmp_path / "a.mat").write_bytes((tmp_path / "a.mat").read_bytes()[:cut])
    with refused("data: "):
        read(tmp_path / "a.mat")


def test_a_matlab_variable_that_says_more_than_the_file_holds_is_refused(tmp_path):
    head = b"MATLAB 5.0 MAT-file".ljust(124, b" ") + b"\x00\x01IM"
    for kind, content in ((14, b""), (15, b"not zlib"), (15, zlib.compress(bytes(100)))):
        (tmp_path / "a.mat").write_bytes(head + struct.pack("<II", kind, 2**32 - 1) + content)
        with refused("data: "):
            read(tmp_path / "a.mat")


def test_columns_are_limited(tmp_path, monkeypatch):
    path = written(tmp_path)
    monkeypatch.setenv(limits.VARIABLE, "100")
    with refused(f"may need {path.stat().st_size} bytes of memory, more than the limit of 100 bytes"):
        read(path, target_column="ill")
    values = [f"v{k % 90}" for k in range(900)]
    frame = pd.DataFrame({"a": values, "b": values, "y": np.arange(900) % 2})
    frame.to_csv(tmp_path / "wide.csv", index=False)
    monkeypatch.setenv(limits.VARIABLE, "100KB")
    with refused("'wide.csv' with a column for each value of its text columns may need 633 KB"):
        read(tmp_path / "wide.csv", target_column="y")
    monkeypatch.setenv(limits.VARIABLE, "1MB")
    assert read(tmp_path / "wide.csv", target_column="y").x.shape == (900, 180)


def test_a_parquet_file_of_one_repeated_value_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"x": np.zeros(2_000_000), "y": np.zeros(2_000_000)}).to_parquet(path)
    assert path.stat().st_size < 100_000
    monkeypatch.setenv(limits.VARIABLE, "10MB")
    with refused("may need 30.5 MB of memory"):
        read(path, target_column="y")


def test_a_zipped_idx_file_that_says_too_much_is_refused(tmp_path, monkeypatch):
    folder = write_idx(tmp_path, zipped=True)
    (images,) = folder.glob("train-images*")
    images.write_bytes(
        gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**20, 2**20) + bytes(100))
    )
    with refused("of memory, more than the limit of 8 GB"):
        read(folder)
    images.write_bytes(gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 5, 4, 4) + bytes(2**26)))
    with refused("is too long for the shape (5, 4, 4)"):
        read(folder)


def test_json_that_is_too_deep_or_too_large_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text("[" * 200_000)
    with refused("is not a LEAF file"):
        read(tmp_path / "a.json")
    monkeypatch.setenv(limits.VARIABLE, "1KB")
    with refused("may need 195 KB of memory, more than the limit of 1 KB"):
        read(tmp_path / "a.json")


@pytest.mark.parametrize("text", ["many", "-1", "0", "1e9x", "8 PB", "nan"])
def test_a_limit_that_is_no_size_is_refused(monkeypatch, text):
    monkeypatch.setenv(limits.VARIABLE, text)
    with refused("COTERIE_DATA_LIMIT: expected a size such as 64GB"):
        limits.data_limit()


@pytest.mark.parametrize(("text", "size"), [("", 2**33), ("5", 5), ("1.5k", 1536), ("2 TiB", 2**41)])
def test_limits(monkeypatch, text, size):
    monkeypatch.setenv(limits.VARIABLE, text)
    assert limits.data_limit() == size
