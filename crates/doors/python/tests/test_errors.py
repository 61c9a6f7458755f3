"""Errors: their classes, errno, texts and remedies; and wrong arguments."""

import errno

import pytest
from conftest import ADDRESS, Wire, send_in_thread

import devmem_tcp
from devmem_tcp import DevmemError, Dmabuf, Netdev


def test_every_exception_is_an_oserror_and_the_builtin_that_users_of_sockets_expect():
    for name in devmem_tcp.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(devmem_tcp, name), DevmemError), name
            assert getattr(devmem_tcp, name).__module__ == "devmem_tcp"
    assert issubclass(DevmemError, OSError)
    assert issubclass(devmem_tcp.TimedOutError, TimeoutError)
    assert issubclass(devmem_tcp.WouldBlockError, BlockingIOError)
    assert issubclass(devmem_tcp.PeerResetError, ConnectionResetError)
    assert issubclass(devmem_tcp.InvalidInputError, ValueError)


def test_the_text_is_that_of_the_library_and_the_remedy_says_what_to_type():
    with pytest.raises(FileNotFoundError) as raised:
        Netdev.kernel("nosuch0")
    error = raised.value
    assert isinstance(error, devmem_tcp.NotFoundError) and error.errno in (errno.ENODEV, errno.ENOENT)
    assert error.strerror.startswith("there is no interface nosuch0")
    assert error.remedy == "`ip link` lists those of this network namespace"


def test_an_interface_that_no_agent_has_set_up_is_not_written_to():
    plan = Netdev.kernel("lo", configured=True).plan_receive(("127.0.0.1", 5201))
    with pytest.raises(DevmemError) as raised:
        plan.apply()
    assert "lo is not set up for device memory: " in str(raised.value)


def test_an_interface_with_a_broker_is_not_written_to_either(tmp_path):
    nic = Netdev.kernel("lo", broker=tmp_path / "broker")
    with pytest.raises(DevmemError) as raised:
        nic.plan_receive(("127.0.0.1", 5201)).apply()
    assert "lo is not set up for device memory: " in str(raised.value)


def test_remedies_name_calls_of_python_and_are_the_last_lines_of_the_text():
    with pytest.raises(devmem_tcp.InvalidInputError) as raised:
        Netdev.user("mem:no-address")
    error = raised.value
    assert error.remedy == 'give it one, as in Netdev.user(LINK, "10.77.0.2/24")'
    assert error.strerror == f"the NIC has no address\n  {error.remedy}"


def test_no_remedy_names_an_option_of_the_command_or_a_path_of_rust():
    remedies = devmem_tcp._native._remedies()
    assert len(remedies) >= 25 and all(remedies)
    for remedy in remedies:
        assert not any(word in remedy for word in ("--", "::", "`")), remedy


def test_an_error_of_a_setting_has_its_errno(wire):
    sender, receiver = wire.connect()
    receiver.close()
    with pytest.raises(OSError) as raised:
        while True:
            sender.sendall(bytes(1 << 20))
    assert raised.value.errno in (errno.EPIPE, errno.ECONNRESET), raised.value
    sender.close()


def test_a_timeout_says_that_the_program_keeps_the_memory():
    wire = Wire(Dmabuf.anonymous(1 << 20))
    sender, receiver = wire.connect()
    sending = send_in_thread(sender, bytes(1 << 21))
    receiver.settimeout(0.5)
    kept = []
    with pytest.raises(devmem_tcp.TimedOutError) as raised:
        while True:
            kept.append(receiver.recv())
    text = raised.value.strerror
    assert text.startswith("no data arrived within the timeout: 1"), text
    assert " of 16 net_iovs of dma-buf " in text and " are lent to the program" in text
    assert raised.value.remedy.startswith("release the batches, or drop the frags and tensors")
    for batch in kept:
        batch.release()
    receiver.settimeout(60)
    assert len(receiver.recv()) > 0
    receiver.close()
    sending.join()
    wire.close()


@pytest.mark.parametrize(
    "call, kind",
    [
        (lambda: Netdev.user("tep:x", "10.0.0.1/24"), ValueError),
        (lambda: Netdev.user("mem:x", "10.0.0.1"), ValueError),
        (lambda: Netdev.user("mem:x"), ValueError),
        (lambda: Netdev.user(5, "10.0.0.1/24"), TypeError),
        (lambda: Netdev.user("mem:x", "10.0.0.1/24", gateway="router"), ValueError),
        (lambda: Netdev.user("mem:x", "10.0.0.1/24", mtu=-1), OverflowError),
        (lambda: Netdev.user("mem:x", "10.0.0.1/24", speed=1), TypeError),
        (lambda: Netdev.pair("loss=200%"), ValueError),
        (lambda: Netdev.pair(5), TypeError),
        (lambda: Dmabuf.anonymous(5000), ValueError),
        (lambda: Dmabuf.anonymous("big"), TypeError),
        (lambda: Dmabuf.anonymous(-4096), OverflowError),
        (lambda: Dmabuf.anonymous(1 << 60), devmem_tcp.OutOfResourcesError),
        (lambda: Dmabuf.from_fd(99999), OSError),
        (lambda: Netdev(), TypeError),
    ],
)
def test_wrong_arguments_are_refused(call, kind):
    with pytest.raises(kind):
        call()


def test_wrong_addresses_timeouts_and_sizes_are_refused(wire):
    sender, receiver = wire.connect()
    nic = wire.receiver
    for address in ("10.77.0.2", "10.77.0.2:no", ("10.77.0.2", 70000), "10.77.0.9:5201"):
        with pytest.raises((ValueError, OSError)):
            nic.listen(address)
    for address in (5201, ("10.77.0.2", "5201"), None):
        with pytest.raises(TypeError):
            nic.listen(address)
    for seconds in (-1, float("nan")):
        with pytest.raises(ValueError):
            receiver.settimeout(seconds)
    with pytest.raises(TypeError):
        receiver.settimeout("soon")
    with pytest.raises(ValueError):
        receiver.recv(0)
    with pytest.raises(OverflowError):
        receiver.recv(-1)
    with pytest.raises(ValueError):
        nic.plan_receive(ADDRESS, queues=100).apply()
    with pytest.raises(OSError) as raised:
        nic.bind_rx(wire.memory, [1])
    assert raised.value.errno in (errno.EBUSY, errno.EEXIST, errno.EINVAL)
    with pytest.raises(TypeError):
        nic.bind_rx(wire.memory[:4096], [1])
    sender.sendall(b"x" * 100)
    with pytest.raises(ValueError, match="do not fit"):
        receiver.recv().gather(out=bytearray(5))


def test_a_peer_that_refuses_or_is_silent_is_the_error_of_sockets(wire):
    with pytest.raises(ConnectionRefusedError) as raised:
        wire.sender.connect("10.77.0.2:1", timeout=60)
    assert raised.value.errno == errno.ECONNREFUSED
    with pytest.raises(TimeoutError):
        wire.sender.connect("10.77.0.77:1", timeout=0.01)


def test_timeouts_and_calls_that_never_wait(wire):
    _sender, receiver = wire.connect()
    receiver.settimeout(0.01)
    assert receiver.gettimeout() == pytest.approx(0.01)
    with pytest.raises(TimeoutError):
        receiver.recv()
    receiver.setblocking(False)
    with pytest.raises(BlockingIOError) as raised:
        receiver.recv()
    assert raised.value.errno == errno.EAGAIN
    assert receiver.try_recv() is None
    wire.listener.settimeout(0)
    with pytest.raises(BlockingIOError):
        wire.listener.accept()
    assert wire.listener.try_accept() is None
    a, b = Netdev.pair()
    listener = b.listen(ADDRESS)
    listener.settimeout(5)
    with pytest.raises(TimeoutError):
        listener.accept()


def test_closed_objects_say_so():
    wire = Wire()
    sender, receiver = wire.connect()
    tx = wire.sender.bind_tx(Dmabuf.anonymous(4096))
    for handle in (sender, receiver, tx, wire.bound, wire.listener, wire.sender, wire.receiver):
        handle.close()
        handle.close()
    for call in (
        receiver.recv,
        receiver.fileno,
        wire.listener.accept,
        lambda: wire.sender.connect(ADDRESS),
        lambda: wire.bound.net_iovs,
        lambda: sender.send(tx),
    ):
        with pytest.raises(devmem_tcp.ClosedError) as raised:
            call()
        assert raised.value.errno == errno.EBADF
    assert sender.closed and wire.listener.closed and wire.sender.closed
