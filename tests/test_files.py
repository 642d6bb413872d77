# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or absent."""

import contextlib
import errno
import os
import resource

import pytest

from phasejax.files import write_atomic


@contextlib.contextmanager
def full_disk():
    """No file may grow past 10 bytes; a full disk fails in the same places."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_new_content_replaces_the_old(tmp_path):
    for text in ("old", "new\u00e9"):
        write_atomic(tmp_path / "file", text)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "new\u00e9"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("there", [["file"], []])
def test_what_cannot_be_written_leaves_the_old_content_and_nothing_else(tmp_path, there):
    for name in there:
        (tmp_path / name).write_text("old")
    with pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as caught, full_disk():
        write_atomic(tmp_path / "file", "new" * 100)
    assert caught.value.filename == str(tmp_path / "file"), "not the name of a temporary file"
    assert os.listdir(tmp_path) == there
    assert all((tmp_path / name).read_text() == "old" for name in there)


def test_what_cannot_be_put_in_place_is_removed(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "file", "new")
    assert os.listdir(tmp_path) == ["file"]
