"""Messages and file descriptors between processes of one machine, over a stream socket."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from mqtune.core.codec import decode_value, encode_value
from mqtune.trainable.process.protocol import Message

_LENGTH: Final = struct.Struct("<I")
#: The C type timeval: seconds and microseconds.
_INTERVAL: Final = struct.Struct("@ll")
#: Longer than any message.
_LONGEST: Final = 2**28
#: Maximum number of descriptors in a message: a trial's pipes.
_MAX_FDS: Final = 4
#: Programs that a trial starts don't inherit received descriptors, if the system can set that atomically.
_CLOEXEC: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Channel:
    """One end of a socket pair. Messages are dicts of plain values.

    They arrive whole and in order. Any thread may send. Only one thread may receive.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return both ends of a new channel."""
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(left), cls(right)

    @classmethod
    def of_fd(cls, fd: int) -> Channel:
        """Return the end that this process has inherited as a file descriptor."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """Return the descriptor to poll. It becomes readable for a message or the other end's close."""
        return self._socket.fileno()

    def limit(self, seconds: float) -> None:
        """Set how many seconds ``send`` and ``receive`` wait before they count the other end as closed."""
        limit = _INTERVAL.pack(int(seconds), round(seconds % 1 * 1_000_000))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)

    def send(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> bool:
        """Send a message with duplicates of descriptors. Return False if the other end is closed."""
        body = encode_value(message)
        data = _LENGTH.pack(len(body)) + body
        with self._sending:
            try:
                sent = socket.send_fds(self._socket, [data], fds) if fds else self._socket.send(data)
                if sent < len(data):
                    self._socket.sendall(data[sent:])
            except OSError:
                return False
        return True

    def receive(self) -> tuple[Message, list[int]] | None:
        """Wait for the next message, and return it with its descriptors.

        Return None if the other end is closed or has sent malformed data.
        """
        head, fds = self._read_head()
        size = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else _LONGEST + 1
        body = self._read(size) if size <= _LONGEST else None
        try:
            message = None if body is None else decode_value(body)
        except ValueError:
            message = None
        if isinstance(message, dict):
            return message, fds
        for fd in fds:
            os.close(fd)
        return None

    def _read_head(self) -> tuple[bytes, list[int]]:
        # The descriptors come with the first byte, so the first read must receive them.
        try:
            head, fds, _, _ = socket.recv_fds(self._socket, _LENGTH.size, _MAX_FDS, _CLOEXEC)
        except OSError:
            return b"", []
        if head and len(head) < _LENGTH.size:
            head += self._read(_LENGTH.size - len(head)) or b""
        return head, fds

    def _read(self, size: int) -> bytes | None:
        chunks = []
        while size:
            try:
                chunk = self._socket.recv(min(size, 2**20))
            except OSError:
                return None
            if not chunk:
                return None
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def end(self) -> None:
        """Shut the channel down in both directions. Waiting threads on either end return."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end, while no thread waits on it. The other end reads that it is closed."""
        self._socket.close()
