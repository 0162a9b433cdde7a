"""Checksums and fingerprints."""

import hashlib
import os

from ebmcal.storage.checksums import checksum, fingerprint


def test_fingerprints_depend_on_content_and_not_on_key_order():
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert (
        len({fingerprint("a", "b"), fingerprint("ab"), fingerprint(["a", "b"]), fingerprint(1), fingerprint("1")}) == 5
    )


def test_checksums(tmp_path, monkeypatch):
    content = os.urandom(3 << 20)
    (tmp_path / "a").write_bytes(content)
    expected = hashlib.sha256(content).hexdigest()
    assert checksum(tmp_path / "a") == expected
    monkeypatch.delattr(hashlib, "file_digest", raising=False)  # Python 3.10
    assert checksum(tmp_path / "a") == expected
