"""Device memory TCP: receive TCP payload straight into device memory, and send it from there.

    from devmem_tcp import Dmabuf, Netdev

`devmem_tcp.aio` has the same calls for asyncio. The guide is docs/src/guides/python.md of the repository.
"""

from ._errors import (
    AbortedError,
    ClosedError,
    DataLostError,
    DevmemError,
    ForkedError,
    InUseError,
    InvalidInputError,
    MisplacedError,
    NotFoundError,
    NotPermittedError,
    NotSetUpError,
    NotSupportedError,
    OutOfResourcesError,
    PeerRefusedError,
    PeerResetError,
    ShutDownError,
    TimedOutError,
    UnreachableError,
    WouldBlockError,
)
from ._loading import TensorIterator, iter_safetensors, load_safetensors
from ._native import (
    Batch,
    BoundRx,
    BoundTx,
    Dmabuf,
    Frag,
    Listener,
    Netdev,
    ReceivePlan,
    Sent,
    Setup,
    Stream,
    Tensor,
)
from ._native import __version__ as __version__
from ._progress import Progress
from ._ring import SendRing
from ._tensors import Tensors

__all__ = [
    "AbortedError",
    "Batch",
    "BoundRx",
    "BoundTx",
    "ClosedError",
    "DataLostError",
    "DevmemError",
    "Dmabuf",
    "ForkedError",
    "Frag",
    "InUseError",
    "InvalidInputError",
    "Listener",
    "MisplacedError",
    "Netdev",
    "NotFoundError",
    "NotPermittedError",
    "NotSetUpError",
    "NotSupportedError",
    "OutOfResourcesError",
    "PeerRefusedError",
    "PeerResetError",
    "Progress",
    "ReceivePlan",
    "SendRing",
    "Sent",
    "Setup",
    "ShutDownError",
    "Stream",
    "Tensor",
    "TensorIterator",
    "Tensors",
    "TimedOutError",
    "UnreachableError",
    "WouldBlockError",
    "iter_safetensors",
    "load_safetensors",
]
