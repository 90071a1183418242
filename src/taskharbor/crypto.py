"""Encryption of payloads and results with AES-GCM.

Format of the encrypted bytes::

    1 byte    version, 0x01 (no JSON text begins with it)
    1 byte    length of the key id
    n bytes   key id, ASCII
    12 bytes  nonce, random
    the rest  AES-GCM ciphertext with its 16-byte tag

The header (the first three fields) and the context are authenticated too. So bytes moved to
another job, or from a payload to a result, cannot be decrypted.
"""

from __future__ import annotations

import hmac
import os
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from taskharbor.core.codec import JsonCodec, can_store, codec_name
from taskharbor.core.errors import PayloadNotDecodable, Problem, UsageError
from taskharbor.installation import install_command

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as missing:
    remedy = f"taskharbor.crypto needs the cryptography package; run: {install_command('crypto')}"
    raise ImportError(remedy) from missing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.core.codec import Codec

_JSON: Final = JsonCodec()


class AesGcmCodec:
    """A codec that encrypts the output of another codec.

    *keys* maps key ids to keys of 16, 24 or 32 bytes. The *active* key encrypts, by default the
    last one; all keys decrypt. To rotate, add a key at the end, first in every process that reads,
    then in those that write. Remove the old key when no job is stored under it. Rotate before a
    key has encrypted 2**32 payloads and results: beyond that, two random nonces may be equal.

    ``digest`` is keyed, so that a stored digest does not reveal a payload that can be guessed. Its
    key is derived from the **first** of *keys*, so adding keys does not change digests. Removing
    the first key changes them: a repeated request with an earlier idempotency key is then refused
    as a different payload until the key's job is removed. No job is lost.

    >>> codec = AesGcmCodec({"2025": bytes(32)})
    >>> codec.decode(codec.encode({"card": "4111"}, context=b"job 1"), context=b"job 1")
    {'card': '4111'}
    >>> codec
    AesGcmCodec(keys=['2025'], active='2025')
    """

    def __init__(self, keys: Mapping[str, bytes], *, active: str | None = None, inner: Codec = _JSON) -> None:
        for key_id, key in keys.items():
            _check(key_id, key)
        if not keys:
            _misuse("keys", "empty", "at least one is required")
        self._active = [*keys][-1] if active is None else active
        if self._active not in keys:
            _misuse("active", repr(active), f"the keys are {[*keys]}")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._digest_key = _digest_key(next(iter(keys.values())))
        self._inner = inner

    @property
    def name(self) -> str:
        """The name of the format. It does not depend on the keys, so rotation does not change it."""
        return f"aes-gcm+{codec_name(self._inner)}"

    def stores(self, kind: type) -> bool:
        """Return whether the inner codec can encode values of this class."""
        return can_store(self._inner, kind)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={[*self._ciphers]}, active={self._active!r})"

    def encode(self, value: object, *, context: bytes) -> bytes:
        plain = self._inner.encode(value, context=context)
        header = bytes([_VERSION, len(self._active)]) + self._active.encode("ascii")
        nonce = os.urandom(_NONCE_BYTES)
        return header + nonce + self._ciphers[self._active].encrypt(nonce, plain, header + context)

    def decode(self, data: bytes, *, context: bytes) -> Any:
        if data[:1] != bytes([_VERSION]):
            _refuse("they do not have the header of AesGcmCodec; read them with the codec that wrote them")
        start = 2 + int.from_bytes(data[1:2])
        header, nonce, sealed = data[:start], data[start : start + _NONCE_BYTES], data[start + _NONCE_BYTES :]
        if len(sealed) < _TAG_BYTES:
            _refuse("they are truncated")
        cipher = self._ciphers.get(key_id := header[2:].decode("ascii", "backslashreplace"))
        if cipher is None:
            _refuse(f"they are encrypted under the key {key_id!r}: put it back in AesGcmCodec's keys")
        try:
            plain = cipher.decrypt(nonce, sealed, header + context)
        except InvalidTag:
            _refuse(
                f"they were modified, written for another job or role, or encrypted with another key named {key_id!r}"
            )
        return self._inner.decode(plain, context=context)

    def digest(self, value: object) -> bytes:
        return hmac.digest(self._digest_key, self._inner.digest(value), "sha256")


_VERSION: Final = 1
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


def _check(key_id: object, key: object) -> None:
    """Raise `UsageError` for an invalid key, without showing it."""
    if not isinstance(key_id, str) or not re.fullmatch(r"[ -~]{1,64}", key_id):
        _misuse("keys", "given with an unusable id", "an id is 1 to 64 printable ASCII characters")
    if not isinstance(key, bytes):
        _misuse(f"keys[{key_id!r}]", f"a {type(key).__name__}", "a key is bytes, 16, 24 or 32 of them")
    if len(key) not in {16, 24, 32}:
        _misuse(f"keys[{key_id!r}]", f"{len(key)} bytes long", "a key has 16, 24 or 32")


def _digest_key(key: bytes) -> bytes:
    """Derive a separate key for digests, so that they reveal nothing about the encryption key."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"taskharbor payload digest v1").derive(key)


def _misuse(field: str, value: str, rule: str) -> NoReturn:
    raise UsageError(Problem(field=field, value=value, rule=rule))


def _refuse(reason: str) -> NoReturn:
    raise PayloadNotDecodable(reason) from None
