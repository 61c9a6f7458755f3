"""The exceptions. Each is a DevmemError, and the built-in exception that a user of `socket` expects."""

from __future__ import annotations


class DevmemError(OSError):
    """A call failed. `errno` is the kernel's for the same refusal, the text says why, `remedy` what to change or type."""

    #: One or more lines: what to change or type next; None if the reason says it all.
    remedy: str | None = None


class WouldBlockError(DevmemError, BlockingIOError):
    """The call would have to wait, and its timeout is 0."""


class TimedOutError(DevmemError, TimeoutError):
    """The timeout expired, or the peer did not answer."""


class InvalidInputError(DevmemError, ValueError):
    """An argument is invalid: a text, a range, a queue, a size."""


class NotFoundError(DevmemError, FileNotFoundError):
    """There is no such interface or device."""


class NotPermittedError(DevmemError, PermissionError):
    """This user lacks the permission."""


class NotSupportedError(DevmemError):
    """This kernel, driver or machine does not support the operation."""


class NotSetUpError(DevmemError):
    """The NIC is not set up for device memory: header split is off, or it does not split all packets."""


class InUseError(DevmemError):
    """The memory, the queue, the address or the link is in use."""


class OutOfResourcesError(DevmemError):
    """Memory, file descriptors or another limited resource ran out."""


class PeerRefusedError(DevmemError, ConnectionRefusedError):
    """The peer refused the connection."""


class PeerResetError(DevmemError, ConnectionResetError):
    """The peer reset the connection."""


class AbortedError(DevmemError, ConnectionAbortedError):
    """This side aborted the connection."""


class ShutDownError(DevmemError, BrokenPipeError):
    """The connection is shut down for sending."""


class UnreachableError(DevmemError):
    """There is no route to the peer, or its host does not answer."""


class MisplacedError(DevmemError):
    """Bytes are in host memory, and the stream accepts device memory only."""


class DataLostError(DevmemError):
    """Received bytes are lost."""


class ForkedError(DevmemError):
    """The NIC, or the library of the GPU, belongs to the process that this one was forked from."""


class ClosedError(DevmemError):
    """The object was closed before the call."""


_BY_KIND = {
    "WouldBlock": WouldBlockError,
    "TimedOut": TimedOutError,
    "InvalidInput": InvalidInputError,
    "NotFound": NotFoundError,
    "PermissionDenied": NotPermittedError,
    "Unsupported": NotSupportedError,
    "NotSetUp": NotSetUpError,
    "InUse": InUseError,
    "AddrInUse": InUseError,
    "OutOfResources": OutOfResourcesError,
    "ConnectionRefused": PeerRefusedError,
    "ConnectionReset": PeerResetError,
    "ConnectionAborted": AbortedError,
    "BrokenPipe": ShutDownError,
    "HostUnreachable": UnreachableError,
    "NetworkUnreachable": UnreachableError,
    "Misplaced": MisplacedError,
    "DataLost": DataLostError,
    "Forked": ForkedError,
    "Closed": ClosedError,
}

# Users know them by the names in the package.
for _class in [DevmemError, *_BY_KIND.values()]:
    _class.__module__ = "devmem_tcp"


def make(kind: str, errno: int, text: str, remedy: str | None) -> DevmemError:
    """Returns the exception for an error of the library."""
    error = _BY_KIND.get(kind, DevmemError)(errno, text)
    error.remedy = remedy
    return error
