"""The extension module. Its names are imported from `devmem_tcp`."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Protocol, TypeAlias, final

from typing_extensions import Buffer as Buffer
from typing_extensions import CapsuleType, Self

import numpy
import numpy.typing

from ._tensors import Tensors

#: "10.77.0.2:5201" or ("10.77.0.2", 5201).
Address: TypeAlias = str | tuple[str, int]
#: "float32", numpy.float32, numpy.dtype("float32"), torch.float32.
Dtype: TypeAlias = Any
Shape: TypeAlias = int | Sequence[int]

__version__: str

class SupportsDlpack(Protocol):
    """A tensor of any library that can lend its memory by DLPack."""
    def __dlpack__(self) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class SupportsCudaArray(Protocol):
    """An array on a GPU that tells where it is by `__cuda_array_interface__`."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

#: A tensor of another library on a GPU.
SupportsGpu: TypeAlias = SupportsDlpack | SupportsCudaArray
#: A source of bytes in host memory.
Source: TypeAlias = Buffer | SupportsDlpack
#: Where bytes are copied to; not read-only.
Target: TypeAlias = Tensor | Buffer | SupportsGpu

class _Closing:
    """A handle that has `close`."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_raised: object) -> None: ...

class _Buffer:
    """The part of a tensor that gives buffers: Python finds it as the base class."""
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

class Tensor(_Buffer):
    """A contiguous array in memory of a device or of the host. It keeps its memory, and in received memory the tokens of its
    frags: they are returned when the last tensor, array or view over them is gone.

    numpy.asarray, numpy.from_dlpack, torch.from_dlpack and memoryview show the same bytes without a copy.
    """
    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
    @property
    def dtype(self) -> str:
        """The name of the type of the elements, as numpy and torch write it."""
    @property
    def ndim(self) -> int:
        """The number of dimensions."""
    @property
    def nbytes(self) -> int:
        """The number of bytes."""
    @property
    def device(self) -> str:
        """Where the memory is: "cpu", "cuda:N", "hip:N" or "vulkan:N"."""
    @property
    def data_ptr(self) -> int:
        """The address of the first byte: for the CPU, or for the libraries of the device. Vulkan memory that the CPU does not
        access has none (AttributeError).
        """
    @property
    def offset(self) -> int:
        """The offset of the first byte in its memory: in a Dmabuf the offset that `Stream.send` takes."""
    def view(self, dtype: Dtype, shape: Shape | None = None) -> Tensor:
        """Returns the same bytes with another type and shape; one dimension may be -1."""
    def numpy(self) -> numpy.typing.NDArray[Any]:
        """Returns the tensor as an array of numpy, without a copy."""
    def tobytes(self) -> bytes:
        """Returns a copy of the bytes."""
    def copy_from(self, source: Tensor | Source | SupportsGpu) -> None:
        """Copies the bytes of a tensor, an array or a buffer of the same length into this tensor."""
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Tensor: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

@final
class Dmabuf(Tensor):
    """Device memory: all of it as a tensor of bytes. It is bound to NICs for receiving and sending, and cut into views."""
    @staticmethod
    def anonymous(nbytes: int) -> Dmabuf:
        """Allocates anonymous memory, in huge pages if the machine has them. For NICs in user space."""
    @staticmethod
    def memfd(nbytes: int) -> Dmabuf:
        """Allocates memory with a file descriptor. Bound to a NIC of the kernel, it becomes a udmabuf."""
    @staticmethod
    def shared_memfd(nbytes: int) -> Dmabuf:
        """Allocates memory with a file descriptor, and marks it as shared: sent on a "unix:" link, it crosses without a copy of the
        sender, and the other process can read all of it, not only what is sent, for as long as it likes.
        """
    @staticmethod
    def udmabuf(nbytes: int) -> Dmabuf:
        """Allocates a dma-buf of ordinary memory, through /dev/udmabuf. For both kinds of NIC."""
    @staticmethod
    def dma_heap(name: str, nbytes: int) -> Dmabuf:
        """Allocates a dma-buf from a heap of the kernel, as "system". For both kinds of NIC."""
    @staticmethod
    def cuda(nbytes: int, device: int = 0) -> Dmabuf:
        """Allocates memory of the NVIDIA GPU `device`, rounded up to whole pages. For both kinds of NIC."""
    @staticmethod
    def hip(nbytes: int, device: int = 0) -> Dmabuf:
        """Allocates memory of the AMD GPU `device`, rounded up to whole pages. For NICs in user space."""
    @staticmethod
    def vulkan(nbytes: int, device: int = 0, *, mapped: bool = True) -> Dmabuf:
        """Allocates memory of the Vulkan device `device`, of any vendor, rounded up to whole pages: memory that the CPU accesses,
        too, if the device has it, or with `mapped=False` memory that only the device accesses. For NICs in user space, and
        for those of the kernel if the driver exports it.
        """
    @staticmethod
    def adopt(tensor: SupportsGpu) -> Dmabuf:
        """Takes memory of a GPU that another library has allocated: a tensor of torch, CuPy, jax or numba, which is kept as long as
        the memory is used. Both show the same bytes. Waits until the library's work on the tensor is done. The tensor must be
        contiguous, and whole pages of 4096 bytes. One that is read-only, as arrays of jax are, can be sent only.
        """
    @staticmethod
    def from_fd(fd: Any) -> Dmabuf:
        """Takes a dma-buf of another library. The descriptor is duplicated: the caller closes its own."""
    def fileno(self) -> int:
        """Returns the file descriptor of the memory; -1 if it has none. It belongs to this object."""
    def fill(self, byte: int) -> None:
        """Sets every byte to `byte`."""

@final
class Netdev(_Closing):
    """A NIC and its TCP/IP stack: in user space, or an interface of the kernel with the kernel's stack."""
    @staticmethod
    def user(
        link: str,
        *addresses: str,
        gateway: str | None = None,
        mtu: int | None = None,
        queues: int | None = None,
        shards: int = 1,
    ) -> Netdev:
        """Opens a NIC in user space on `link`: "tap:NAME", "packet:NAME", "macvtap:NAME", "unix:PATH", "unix-listen:PATH" or "mem:NAME". `addresses`:
        one or more, as "10.77.0.2/24" or "auto". With ",share=send" after the path of a "unix:" or "unix-listen:" link the other process
        may read what waits to be sent, which saves a copy. `shards`: stacks of the NIC that receive at the same time on different cores; not on
        a "unix:" link.
        """
    @staticmethod
    def kernel(name: str, configured: bool = False, broker: str | PathLike[str] | None = None) -> Netdev:
        """Opens an interface of the kernel, as "eth1". With `configured`, nothing is written to it: an agent has set it up, as for a pod
        (`devmem-tcp lease`); `plan_receive` then finds its queues and checks what can be seen. With `broker`, the path of a broker's
        socket, the same without privileges: the broker binds (`devmem-tcp broker`).
        """
    @staticmethod
    def pair(impair: str = "none") -> tuple[Netdev, Netdev]:
        """Opens two NICs, 10.77.0.1 and 10.77.0.2, on a wire in memory and in virtual time, for tests without a network.
        `impair`: as "loss=1%,seed=7".
        """
    def plan_receive(self, address: Address, queues: int = 1) -> ReceivePlan:
        """The plan to receive TCP at `address` into device memory, with `queues` queues."""
    def bind_rx(self, memory: Dmabuf, queues: Sequence[int], niov_size: int | None = None) -> BoundRx:
        """Binds memory to RX queues, with net_iovs of `niov_size` bytes. For more than a page, a NIC of the kernel needs Linux 7.3, a driver that
        has them, and memory in pieces of that size, as of huge pages.
        """
    def bind_tx(self, memory: Dmabuf) -> BoundTx:
        """Binds memory for sending."""
    def listen(self, address: Address, congestion: str | None = None) -> Listener:
        """Listens for connections; port 0 selects a free one. `congestion`: the congestion control of those that are accepted, "cubic",
        "reno", "bbr" or "dctcp"; None: that of the NIC.
        """
    def connect(
        self,
        address: Address,
        timeout: float | None = None,
        source: Address | None = None,
        congestion: str | None = None,
    ) -> Stream:
        """Connects; gives up after `timeout` seconds. Of several addresses of a name, each is tried in turn, for as long. `source`: the
        local address. `congestion`: the congestion control, as in `listen`.
        """
    def begin_connect(
        self, address: Address, source: Address | None = None, congestion: str | None = None
    ) -> _Connecting:
        """Begins to connect to the first address of a name, without waiting."""
    def shards(self) -> list[Netdev]:
        """The shards of the NIC, each as a NIC: for one thread per shard, which share nothing. A shard has the connections that a
        hash of their addresses and ports selects, so every shard must listen.
        """
    @property
    def crossed_frames(self) -> int:
        """How many received frames crossed from the shard that received them to that of their connection."""
    @property
    def link_state(self) -> str:
        """The state of the link: "up", "down" or "gone"."""
    @property
    def mtu(self) -> int:
        """The length of the longest IP packet."""
    @property
    def addresses(self) -> list[str]:
        """The addresses of the NIC."""
    @property
    def interface(self) -> str | None:
        """The name of the kernel's interface; None in user space."""
    @property
    def drops(self) -> dict[str, int]:
        """The dropped packets by reason."""
    @property
    def closed(self) -> bool:
        """Whether this handle is closed."""
    def close(self, timeout: float = 0.5) -> bool:
        """Waits until closed streams are closed on both sides, for `timeout` seconds, and gives up this handle. Returns whether all
        are closed. Streams, bindings and tensors of the NIC keep working.
        """

@final
class ReceivePlan:
    """The settings that receiving at an address needs; nothing changes until `apply` or `bind`."""
    def commands(self) -> list[str]:
        """The changes: commands of ethtool for an interface of the kernel."""
    def apply(self) -> Setup:
        """Makes the changes. They are undone when the result and all bindings of its queues are closed or collected."""
    def bind(self, memory: Dmabuf, niov_size: int | None = None) -> BoundRx:
        """Makes the changes, and binds `memory` to the queues. Closing the result undoes both."""

@final
class Setup(_Closing):
    """Settings that were made."""
    @property
    def queues(self) -> list[int]:
        """The queues to bind memory to."""
    def changes(self) -> list[str]:
        """The changes that were made to an interface of the kernel, as commands."""
    def unseen(self) -> list[str]:
        """What the agent of an interface opened with `configured` must have set where it cannot be checked from here."""
    def close(self) -> None:
        """Gives up the settings: they are undone when no binding needs them."""

@final
class BoundRx(_Closing):
    """Memory that is bound to RX queues: payload lands in it. It is unbound when this is closed or collected: keep it."""
    @property
    def id(self) -> int:
        """The id of the binding, which each frag has."""
    @property
    def memory(self) -> Dmabuf:
        """The memory that is bound."""
    @property
    def net_iovs(self) -> tuple[int, int]:
        """How many net_iovs the memory has, and how many are free: not posted, not in a packet, and not lent."""
    def close(self) -> None:
        """Unbinds. Frags and tensors stay valid."""

@final
class BoundTx(_Closing):
    """Memory that is bound for sending. It is unbound when this is closed or collected: keep it."""
    @property
    def id(self) -> int:
        """The id of the binding."""
    @property
    def memory(self) -> Dmabuf:
        """The memory that is bound."""
    @property
    def in_flight(self) -> int:
        """The number of incomplete sends from the memory, over all streams. At 0, all of it may be changed."""
    def close(self) -> None:
        """Unbinds. Sends that are queued go on."""

@final
class Listener(_Closing):
    """A listening socket. Iterating accepts."""
    def accept(self) -> tuple[Stream, tuple[str, int]]:
        """Waits for the next connection; returns its stream, and host and port of its peer."""
    def try_accept(self) -> tuple[Stream, tuple[str, int]] | None:
        """Accepts without waiting; None if no connection is pending."""
    def settimeout(self, seconds: float | None) -> None:
        """Sets how long `accept` waits, in seconds: None waits for ever, 0 never."""
    def gettimeout(self) -> float | None:
        """Returns how long `accept` waits, in seconds."""
    def getsockname(self) -> tuple[str, int]:
        """The address that it listens on: host and port."""
    def fileno(self) -> int:
        """A file descriptor that is readable while a connection is pending."""
    @property
    def is_virtual(self) -> bool:
        """Whether the listener is in the virtual time of a `Netdev.pair`, where a task cannot wait for it."""
    @property
    def closed(self) -> bool:
        """Whether it is closed."""
    def close(self) -> None:
        """Closes it: further connections are refused, accepted ones stay open."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[Stream, tuple[str, int]]: ...
    def __aiter__(self) -> AsyncIterator[Any]: ...

@final
class Stream(_Closing):
    """A TCP connection. One thread may receive while another one sends.

    Iterating receives: each batch is released by the step to the next one.
    """
    def recv(self, max_bytes: int | None = None, *, batch: Batch | None = None) -> Batch:
        """Receives queued bytes; waits if there are none. The batch is false at the end of the stream. `batch` is an earlier
        batch to release first.
        """
    def try_recv(self, max_bytes: int | None = None) -> Batch | None:
        """Receives queued bytes without waiting; None if there are none."""
    def recv_into(self, out: Target) -> int:
        """Receives until `out` is full or the stream ends: copies the bytes to a tensor, a Dmabuf, or a writable array or buffer.
        Returns the number of bytes.
        """
    def peek(self, nbytes: int) -> bytes:
        """Returns a copy of the first queued bytes, `nbytes` at most, and leaves them queued; waits if there are none."""
    def send(self, tx: BoundTx, *parts: Tensor | slice | tuple[int, int]) -> Sent:
        """Sends parts of bound memory without a copy: tensors over it, slices, or pairs (start, end); all of it if none is given.
        Waits until the bytes are queued. They must not change until `wait` of the result has returned.
        """
    def try_send(self, tx: BoundTx, start: int, end: int) -> Sent | None:
        """Sends what fits of one range of bound memory, without waiting; None if nothing fits."""
    def sendall(self, data: Source) -> None:
        """Copies all bytes of a buffer, an array or a tensor to the send queue; waits for room."""
    def try_write(self, data: Source, offset: int = 0) -> int:
        """Copies what fits of a buffer, an array or a tensor from `offset` on, without waiting. Returns the number of bytes; 0 if
        nothing fits.
        """
    def wait_sent(self, timeout: float | None = None) -> None:
        """Waits until every send so far is complete."""
    def shutdown(self) -> None:
        """Ends the sending direction: a FIN follows the queued bytes. Receiving is still possible."""
    def settimeout(self, seconds: float | None) -> None:
        """Sets how long a call waits, in seconds: None waits for ever, 0 never. In virtual time, virtual seconds."""
    def gettimeout(self) -> float | None:
        """Returns how long calls wait, in seconds; None: for ever."""
    def setblocking(self, blocking: bool) -> None:
        """Sets whether calls wait: `settimeout(None)` or `settimeout(0.0)`."""
    def set_strict(self, strict: bool) -> None:
        """Refuses bytes in host memory: receiving them is a MisplacedError with its cause, and they stay queued."""
    def set_nodelay(self, nodelay: bool) -> None:
        """Sends small segments at once (TCP_NODELAY)."""
    def set_congestion(self, name: str) -> None:
        """Changes the congestion control: "cubic", "reno", "bbr" or "dctcp"."""
    def getpeername(self) -> tuple[str, int]:
        """The address of the peer: host and port."""
    def getsockname(self) -> tuple[str, int]:
        """The local address: host and port."""
    def held_memory(self) -> dict[str, int | str] | None:
        """Returns what holds the memory that the stream receives into; None while enough of it is free. A dict: dmabuf_id,
        net_iovs (all of the memory), unit ("net_iovs" or "frags", which the following count), lent (to this program by this
        stream), lent_by_others and unread.
        """
    @property
    def stats(self) -> dict[str, int]:
        """The counters of what was received: device_bytes, linear_bytes, device_frags, tokens_returned, receives."""
    def fileno(self) -> int:
        """A file descriptor that is readable while bytes are queued or the stream has ended, for select and poll."""
    def send_signal(self) -> _Signal:
        """What tells when a send that found the queue full can be repeated."""
    @property
    def is_virtual(self) -> bool:
        """Whether the stream is in the virtual time of a `Netdev.pair`, where a task cannot wait for it."""
    @property
    def closed(self) -> bool:
        """Whether it is closed."""
    def close(self) -> None:
        """Closes the stream: a FIN follows the queued bytes. Tensors over received bytes stay valid."""
    def __iter__(self) -> _Batches: ...
    def __aiter__(self) -> AsyncIterator[Batch]: ...

@final
class Sent:
    """A send from bound memory: its bytes must not change until it is complete."""
    @property
    def nbytes(self) -> int:
        """The number of bytes that were queued: all of them, or fewer if the stream has a timeout."""
    def wait(self, timeout: float | None = None) -> None:
        """Waits until the peer has acknowledged the bytes and the NIC has finished with them: they may change now. Sends
        complete in order.
        """
    def done(self) -> bool:
        """Returns whether the send is complete. Never waits."""

@final
class Batch:
    """The bytes of one receive, in stream order: frags of device memory, which are lent until the batch is released or collected,
    and bytes in host memory. It is true unless the stream has ended.

    Tensors of a batch outlive it: they keep their frags, and while they do, that memory receives nothing else.
    """
    @property
    def nbytes(self) -> int:
        """The number of bytes; 0 at the end of the stream."""
    @property
    def device_bytes(self) -> int:
        """The number of bytes in device memory."""
    def tensors(self) -> list[Tensor]:
        """Returns the bytes as tensors of uint8, without a copy: one for each contiguous part."""
    def tensor(self, dtype: Dtype | None = None, shape: Shape | None = None) -> Tensor:
        """Returns all bytes as one tensor: without a copy if they are contiguous and aligned, else gathered."""
    def array(self, dtype: Dtype | None = None, shape: Shape | None = None) -> numpy.typing.NDArray[Any]:
        """Returns all bytes as one array of numpy, as `tensor` does."""
    def gather(self, out: Target | None = None) -> Any:
        """Copies all bytes, in stream order and without gaps, to the beginning of `out`: a tensor, a Dmabuf, or a writable array
        or buffer. Returns their number. Without `out`, returns a new tensor on the same device.
        """
    def tobytes(self) -> bytes:
        """Returns a copy of all bytes."""
    def release(self) -> None:
        """Returns the frags that no tensor keeps. The batch cannot be used any more. A second call does nothing."""
    def __bytes__(self) -> bytes: ...
    def __bool__(self) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Frag]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_raised: object) -> None: ...

@final
class Frag:
    """One piece of a batch."""
    @property
    def nbytes(self) -> int:
        """The number of bytes."""
    @property
    def offset(self) -> int | None:
        """The place of the first byte in the bound memory; None for bytes in host memory."""
    @property
    def dmabuf_id(self) -> int | None:
        """The id of the binding; None for bytes in host memory."""
    @property
    def is_device(self) -> bool:
        """Whether the bytes are in device memory."""
    def tensor(self) -> Tensor:
        """Returns the bytes as a tensor of uint8, without a copy. The batch must not be released yet."""
    def __len__(self) -> int: ...

@final
class _Batches:
    """Iterator over the batches of a stream."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> Batch: ...

@final
class _Checkpoint(_Closing):
    """An opened checkpoint."""
    @property
    def entries(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The names of its tensors, in the order of the files; of each the name of its type and its shape."""
    @property
    def metadata(self) -> dict[str, str]:
        """What the writers of the files have added to them."""
    def start(
        self,
        wanted: Sequence[tuple[str, Sequence[tuple[int, int]]]],
        memory_limit: int | None,
        merge_gap: int,
        in_files: bool,
    ) -> _Arrivals:
        """Begins to load tensors: names, and of each the part of its first dimensions. The checkpoint is closed then.

        `memory_limit`, in bytes, counts tensors that are requested, wait to be taken, or are held; without it those that are held do not count. With `in_files`
        they are in memory with file descriptors, several of them in one, and room is waited for longer: other processes have to make it.
        """
    def close(self) -> None:
        """Gives up the connections. Tensors stay."""

@final
class _Arrivals(_Closing):
    """Tensors of a checkpoint, and what loads them."""
    def next(self, timeout: float | None = None) -> tuple[str, Tensor, int, _Share, bool] | bool | None:
        """Takes the next tensor, and waits for it `timeout` seconds. Returns its name, the tensor, the number of its memory, what counts that, and whether
        it is the last one of it; None if none has come, True when all have.
        """
    def progress(self) -> tuple[int, int]:
        """How many bytes of the tensors are in place, and how many they have in all."""
    def fileno(self) -> int:
        """A file descriptor that is readable when there may be a tensor: read 8 bytes of it, then take what is there."""
    def close(self) -> None:
        """Ends the load. Tensors that were taken stay."""

@final
class _Share:
    """Memory that counts until this is collected."""

@final
class _Signal:
    """A file descriptor with an edge when a call that would have blocked can be repeated."""
    def arm(self) -> None:
        """Arms it for one edge: before each attempt."""
    def fileno(self) -> int:
        """The file descriptor, readable after the edge."""

@final
class _Connecting:
    """A connection attempt."""
    def try_finish(self) -> Stream | None:
        """Returns the stream once the connection is established; None while it is not. Never waits."""
    def signal(self) -> _Signal:
        """What tells when there may be an outcome."""
    @property
    def is_virtual(self) -> bool:
        """Whether it is in the virtual time of a `Netdev.pair`, where a task cannot wait for it."""
    def close(self) -> None:
        """Gives up."""

def _resolve(address: Address) -> list[str]:
    """The addresses of a name as texts with the port, in the order of the resolver."""

def load_safetensors(
    url: str,
    nic: Netdev | None = None,
    *,
    device: str = "cpu",
    bind: int | None = None,
    connections: int | None = None,
    idle_limit: float = 30.0,
    headers: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    headers_file: str | PathLike[str] | None = None,
    user: str | None = None,
    password: str | None = None,
    password_file: str | PathLike[str] | None = None,
    cacert: str | PathLike[str] | None = None,
    cert: str | PathLike[str] | None = None,
    key: str | PathLike[str] | None = None,
    verify: bool = True,
    checksums: bool = False,
) -> Tensors:
    """Loads the tensors of the safetensors file, or of the shards of the `*.index.json`, at `url` (http, https or s3) over `nic`, with range
    requests over several connections. Returns them by name; they share one memory on `device`: "cpu", "cuda:N", "hip:N" or
    "vulkan:N". Without `nic`, the kernel's sockets are used, on the interface of the route to the server, and payload passes through
    host memory.

    The bytes of https servers are decrypted by the CPU in host memory, and copied to their place. The server is verified by the certificates of the system, or of
    `SSL_CERT_FILE` and `SSL_CERT_DIR`, or by those of the PEM file `cacert` alone. `cert` is a PEM file with a certificate of this client, and `key` that of its private
    key, if it is another one; they are shown to the origin of `url` alone. With `verify=False` any certificate is accepted, with a warning.

    The call binds `bind` bytes to the NIC for its own time: 64 MiB in user space by default, none with a NIC of the
    kernel. With 0 it uses what the caller has bound for `nic.plan_receive((address, 0))`; without a binding payload passes
    through host memory. `headers` are fields of each request, a dict or pairs of name and value, and `headers_file` names a file with further ones,
    one a line. `password`, or the first line of `password_file`, is sent for `user` or the user of the URL. The environment may have them, too:
    DEVMEM_HEADERS, DEVMEM_USER, DEVMEM_PASSWORD, and for s3 what Amazon's tools use. The proxy of the environment is used
    (http_proxy, https_proxy, all_proxy, no_proxy). `connections` is the largest number of them: 4 by default, and 16 while the files of a checkpoint are opened. A server
    that brings less than 4 KiB in `idle_limit` seconds is asked again, on another connection. A type that this package has no name for becomes bytes. The result
    also has `metadata`, the texts that the writers of the files have added (`__metadata__`), and `entries`: for each tensor the names of its type and its shape, as
    in the file.

    With `checksums=True` the bytes of each file are compared with the checksum that its server has (the fields x-goog-hash and x-amz-checksum-*): DataLostError, if they
    differ, and NotSupportedError, if there is none to compare, or an index names only some tensors of a file.
    """
def load(
    url: str,
    nic: Netdev | None = None,
    *,
    at: int = 0,
    nbytes: int | None = None,
    device: str = "cpu",
    bind: int | None = None,
    connections: int | None = None,
    idle_limit: float = 30.0,
    headers: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    headers_file: str | PathLike[str] | None = None,
    user: str | None = None,
    password: str | None = None,
    password_file: str | PathLike[str] | None = None,
    cacert: str | PathLike[str] | None = None,
    cert: str | PathLike[str] | None = None,
    key: str | PathLike[str] | None = None,
    verify: bool = True,
) -> Tensor:
    """Loads `nbytes` from `at` on of what `url` names, by default all that is behind it: a file ("http:", "https:", "s3:"), an export of an NBD
    server ("nbd:"), or a namespace of an NVMe subsystem ("nvme://HOST/SUBNQN?nsid=1"). Returns a tensor of bytes on `device`: "cpu",
    "cuda:N", "hip:N" or "vulkan:N". Of exports and namespaces, whole blocks are loaded.

    `nic`, `bind`, `connections`, `idle_limit` and, for files, `headers`, `headers_file`, `user`, `password`, `password_file`, `cacert`,
    `cert`, `key` and `verify` are those of `load_safetensors`.
    """
def load_into(
    out: Target,
    url: str,
    nic: Netdev | None = None,
    *,
    at: int = 0,
    bind: int | None = None,
    connections: int | None = None,
    idle_limit: float = 30.0,
    headers: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    headers_file: str | PathLike[str] | None = None,
    user: str | None = None,
    password: str | None = None,
    password_file: str | PathLike[str] | None = None,
    cacert: str | PathLike[str] | None = None,
    cert: str | PathLike[str] | None = None,
    key: str | PathLike[str] | None = None,
    verify: bool = True,
) -> int:
    """Loads as many bytes from `at` on of what `url` names as fill `out`: a tensor, a Dmabuf, or a writable array or buffer. Returns their
    number. A tensor of device memory gets them without a copy by the CPU; otherwise as `load`.
    """
def store(
    data: Source | SupportsGpu,
    url: str,
    nic: Netdev,
    *,
    at: int = 0,
    durability: str = "flush",
    connections: int | None = None,
    idle_limit: float = 30.0,
) -> Stored:
    """Stores the bytes of `data` from `at` on in an export of an NBD server ("nbd:") or a namespace of an NVMe subsystem
    ("nvme://HOST/SUBNQN?nsid=1"), in whole blocks. A tensor of device memory is sent from where it lies, and must not be changed
    meanwhile; arrays and buffers are copied once.

    `durability` says when the bytes are on storage: "flush", when the call returns, if the server can flush; "fua", when each write
    is acknowledged; "none", some time later. Up to `connections` connections are used, 4 by default. A server that does nothing for
    `idle_limit` seconds is asked again, on another connection.
    """
@final
class Stored:
    """What a store has done."""
    @property
    def nbytes(self) -> int:
        """The number of bytes, all of which the server has acknowledged."""
    @property
    def repeated(self) -> int:
        """How many requests were repeated, because a connection broke."""
    @property
    def durable(self) -> bool:
        """Whether the bytes are on storage, and not only in the memory of the server: a flush followed them, or each write was durable."""
    @property
    def seconds(self) -> float:
        """The time, in seconds."""

def _remedies() -> list[str]:
    """Returns all remedies that have words of Python, for the tests."""

def list_subsystems(url: str, nic: Netdev | None = None) -> list[Subsystem]:
    """Lists the NVMe subsystems that the host of `url` ("nvme://HOST") names, or the one that `url` names, with their namespaces and the
    sizes of those. Without `nic`, the kernel's sockets are used.
    """
@final
class Subsystem:
    """An NVMe subsystem of a host."""
    @property
    def url(self) -> str:
        """The URL that names it."""
    @property
    def namespaces(self) -> list[Namespace]:
        """Its active namespaces."""
    @property
    def problem(self) -> str | None:
        """Why they are not known; None if they are."""

@final
class Namespace:
    """A namespace of an NVMe subsystem."""
    @property
    def url(self) -> str:
        """The URL by which it is loaded and stored."""
    @property
    def nsid(self) -> int:
        """Its number in the subsystem."""
    @property
    def nbytes(self) -> int | None:
        """Its size; None if it has blocks that cannot be loaded."""
    @property
    def block_bytes(self) -> int | None:
        """The size of a block: what is loaded or stored starts and ends at multiples of it."""
    @property
    def is_read_only(self) -> bool:
        """Whether it refuses writes."""

def _open_safetensors(url: str, options: dict[str, Any]) -> _Checkpoint:
    """Opens the checkpoint at a URL: the first call of every load. `options` are the arguments of load_safetensors, by their names."""
def _shared_file(file: Any, nbytes: int, number: int, tell: Any | None = None) -> Tensor:
    """Maps a memory of another process, and returns it as a read-only tensor of bytes. When it is not used any more, `number` is sent on the socket `tell`."""
def _shared_part(tensor: Tensor, shape: Sequence[int], bounds: Sequence[tuple[int, int]], device: str) -> Tensor:
    """Returns a part of a tensor that has `shape` in its file, on `device`: where it lies, if that is the CPU and its bytes are contiguous, else as a copy."""
def _shared_tensor(tensor: Tensor) -> tuple[int, int]:
    """Returns the file descriptor of the memory of a tensor, which belongs to that, and the length of the memory."""
def _receive_all(stream: Stream, max_bytes: int) -> int:
    """Receives up to the end of the stream in batches of at most `max_bytes`, and releases each: the loop of a program in Rust,
    which the benchmark compares with that of a program in Python. Returns the number of bytes.
    """
def _end() -> None:
    """What `atexit` calls: no other thread takes the lock after this."""
def _forked() -> None:
    """What `os.register_at_fork` calls in a child: the other threads are not there."""
