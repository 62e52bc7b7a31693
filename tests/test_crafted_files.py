"""Files that someone made to do damage."""

import hashlib
import io
import struct
import zipfile

import numpy as np
import pytest

from algd.runs.files import FORMAT, MAGIC, DamagedFile, read_arrays

NOBODY = "0" * 32


def signed(payload):
    """Any bytes with a beginning and a checksum that are right."""
    head = MAGIC + FORMAT.to_bytes(4, "little") + bytes.fromhex(NOBODY)
    return head + hashlib.blake2b(head + payload, digest_size=32).digest() + payload


def archive(*members, compression=zipfile.ZIP_STORED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as file:
        for name, data in members:
            file.writestr(name, data)
    return content.getvalue()


def npy(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def encrypted():
    """As a reader sees it: the flag of every member says so."""
    content = bytearray(archive(("a.npy", npy(np.zeros(2)))))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def overlapping():
    """Thousands of members that are all the same bytes of the file."""
    one = archive(("a.npy", npy(np.zeros(2**16))))
    start = one.index(b"PK\x01\x02")
    entry = one[start : one.index(b"PK\x05\x06")]
    count = 1_000
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(entry) * count, start, 0)
    return one[:start] + entry * count + end


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no archive",
        archive(("a.npy", npy(np.zeros(2**24))), compression=zipfile.ZIP_DEFLATED),
        archive(("a.npy", npy(np.zeros(3))), compression=zipfile.ZIP_LZMA),
        archive(("a.npy", npy(np.zeros(3)).replace(b"(3,)", b"(9**99,)"))),
        archive(("a.npy", npy(np.zeros(3, np.int8)).replace(b"(3,), }  ", b"(10**15,),}"))),
        archive(("a.npy", npy(np.zeros(3)).replace(b"(3,)", b"(-3,)"))),
        archive(("a.npy", npy(np.array([{}], object)))),
        archive(("a.npy", npy(np.zeros(3))[:-1])),
        archive(("a.txt", b"words")),
        encrypted(),
        overlapping(),
    ],
)
def test_crafted_archives_end_in_one_message(payload, tmp_path):
    path = tmp_path / "x.algd"
    path.write_bytes(signed(payload))
    with pytest.raises(DamagedFile, match=r"x.algd holds no plain arrays"):
        read_arrays(path, NOBODY)
