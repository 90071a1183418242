"""Mount an empty file system of a network kind with FUSE, in a process with its own mount namespace."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEVICE: Final = "/dev/fuse"
_REQUEST: Final = struct.Struct("=IIQQIIIHH")
_REPLY: Final = struct.Struct("=IiQ")
_INIT: Final = struct.Struct("=IIIIHHIIHHI28x")
_ATTRIBUTES: Final = struct.Struct("=QII6Q10I")
_LOOKUP, _FORGET, _GETATTR, _INITIALIZE, _DESTROY, _FORGET_ALL = 1, 2, 3, 26, 38, 42
_VERSION: Final = (7, 31)
_MAX_REQUEST_BYTES: Final = 135_168


@contextmanager
def mounted(folder: Path, *, kind: str) -> Iterator[None]:
    """Mount an empty file system at *folder*, which the kernel shows as ``fuse.`` and *kind*."""
    device = os.open(DEVICE, os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode={stat.S_IFDIR:o},user_id=0,group_id=0"
    if libc.mount(b"host:/export", os.fsencode(folder), f"fuse.{kind}".encode(), 0, options.encode()):
        os.close(device)
        raise OSError(ctypes.get_errno(), f"cannot mount fuse.{kind}")
    server = threading.Thread(target=_serve, args=(device,), daemon=True)
    server.start()
    try:
        yield
    finally:
        libc.umount2(os.fsencode(folder), 0)
        server.join()
        os.close(device)


def _serve(device: int) -> None:
    """Reply to the kernel until the file system is unmounted."""
    while True:
        try:
            request = os.read(device, _MAX_REQUEST_BYTES)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            raise
        _, operation, unique, node, *_ = _REQUEST.unpack_from(request)
        if operation not in {_FORGET, _FORGET_ALL}:
            error_number, body = _answer(operation, node)
            os.write(device, _REPLY.pack(_REPLY.size + len(body), -error_number, unique) + body)


def _answer(operation: int, node: int) -> tuple[int, bytes]:
    if operation == _INITIALIZE:
        return 0, _INIT.pack(*_VERSION, 0, 0, 0, 0, 4_096, 1, 0, 0, 0)
    if operation == _GETATTR:
        mode = stat.S_IFDIR | 0o755
        return 0, _ATTRIBUTES.pack(0, 0, 0, node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 2, 0, 0, 0, 4_096, 0)
    if operation == _DESTROY:
        return 0, b""
    return errno.ENOENT if operation == _LOOKUP else errno.ENOSYS, b""
