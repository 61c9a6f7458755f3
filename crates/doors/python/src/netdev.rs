//! NICs.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use devmem_tcp::tcp::Congestion;
use devmem_tcp::{ConnectOptions, Connecting, LinkState, SendSignal};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};

use crate::binding::{BoundRx, BoundTx, ReceivePlan};
use crate::closing::{Closing, Open};
use crate::error::Error;
use crate::listener::Listener;
use crate::released::released;
use crate::repr;
use crate::sent::Signal;
use crate::stream::Stream;
use crate::tensor::Dmabuf;
use crate::wait::{Handle, SLICE, Time, TimedWait, Timeout};

/// A NIC and its TCP/IP stack: in user space, or an interface of the kernel with the kernel's stack.
#[pyclass(frozen, extends = Closing, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct Netdev {
    nic: Handle<devmem_tcp::Netdev>,
    time: Time,
}

impl Netdev {
    fn new(nic: devmem_tcp::Netdev, time: Time) -> Self {
        Self {
            nic: Handle::new(nic, "NIC"),
            time,
        }
    }

    /// Begins to connect.
    fn attempt(
        &self,
        py: Python<'_>,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Attempt, Error> {
        let nic = self.get(py)?;
        let begun = released(py, || {
            nic.begin_connect(address, options).map_err(Error::from)
        });
        Ok(Attempt {
            connecting: Handle::new(begun?, "attempt"),
            time: self.time,
        })
    }

    /// Returns another handle of the NIC.
    pub(crate) fn get(&self, py: Python<'_>) -> Result<devmem_tcp::Netdev, Error> {
        self.nic.with(py, |nic| nic.clone())
    }
}

/// An address as Python writes it: "10.77.0.2:5201", or ("10.77.0.2", 5201).
pub(crate) enum Address {
    Text(String),
    Pair(String, u16),
}

impl<'py> FromPyObject<'_, 'py> for Address {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.extract() {
            return Ok(Self::Text(text));
        }
        match object.extract::<(String, i64)>() {
            Ok((host, port)) => match u16::try_from(port) {
                Ok(port) => Ok(Self::Pair(host, port)),
                Err(_) => Err(PyValueError::new_err(format!(
                    "{port} is no port: 0 to 65535"
                ))),
            },
            Err(_) => Err(PyTypeError::new_err(
                "an address is a text as '10.77.0.2:5201', or a pair of host and port",
            )),
        }
    }
}

/// Most addresses of one name that are tried: a resolver may return thousands.
const MAX_ADDRESSES: usize = 16;

impl Address {
    /// Returns the first address, for what can use only one.
    fn resolve(self, py: Python<'_>) -> Result<SocketAddr, Error> {
        self.resolve_all(py).map(|(first, _)| first)
    }

    /// Returns the addresses of a name in the order of the resolver: the first one, and those after it.
    fn resolve_all(self, py: Python<'_>) -> Result<(SocketAddr, Vec<SocketAddr>), Error> {
        let resolved = released(py, || {
            let found = match &self {
                Self::Text(text) => text.to_socket_addrs()?,
                Self::Pair(host, port) => (host.as_str(), *port).to_socket_addrs()?,
            };
            let mut found = found.take(MAX_ADDRESSES);
            let nothing = || io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
            Ok((found.next().ok_or_else(nothing)?, found.collect()))
        });
        resolved.map_err(|error: io::Error| Error::not_an_address(&error))
    }
}

/// The addresses of a name as texts with the port, in the order of the resolver.
#[pyfunction]
#[pyo3(name = "_resolve")]
pub(crate) fn resolve(py: Python<'_>, address: Address) -> PyResult<Vec<String>> {
    let (first, others) = address.resolve_all(py)?;
    let all = [first].into_iter().chain(others);
    Ok(all.map(|address| address.to_string()).collect())
}

/// Returns the options of a connection.
fn connect_options(
    py: Python<'_>,
    source: Option<Address>,
    congestion: Option<&str>,
) -> Result<ConnectOptions, Error> {
    let mut options = ConnectOptions::new();
    if let Some(source) = source {
        options = options.source(source.resolve(py)?);
    }
    if let Some(name) = congestion {
        options = options.congestion(name.parse().map_err(Error::from)?);
    }
    Ok(options)
}

/// Opens a NIC in user space.
fn open(
    link: &str,
    addresses: &[String],
    gateway: Option<&str>,
    mtu: Option<u16>,
    queues: Option<u16>,
    shards: u16,
) -> Result<devmem_tcp::Netdev, Error> {
    let mut builder = devmem_tcp::Netdev::builder(link)?.shards(shards);
    for address in addresses {
        builder = builder.address(address)?;
    }
    if let Some(gateway) = gateway {
        let parsed = gateway.parse();
        let wrong = |_error| Error::value(format!("'{gateway}' is not an IP address"));
        builder = builder.gateway(parsed.map_err(wrong)?);
    }
    if let Some(mtu) = mtu {
        builder = builder.mtu(mtu);
    }
    if let Some(queues) = queues {
        builder = builder.rx_queues(queues);
    }
    Ok(builder.open()?)
}

fn link_state(state: LinkState) -> &'static str {
    match state {
        LinkState::Up => "up",
        LinkState::Down => "down",
        LinkState::Gone => "gone",
    }
}

#[pymethods]
impl Netdev {
    /// Opens a NIC in user space on `link`: "tap:NAME", "packet:NAME", "macvtap:NAME", "unix:PATH", "unix-listen:PATH" or "mem:NAME". `addresses`:
    /// one or more, as "10.77.0.2/24" or "auto". With ",share=send" after the path of a "unix:" or "unix-listen:" link the other process
    /// may read what waits to be sent, which saves a copy. `shards`: stacks of the NIC that receive at the same time on different cores; not on
    /// a "unix:" link.
    #[staticmethod]
    #[pyo3(signature = (link, *addresses, gateway=None, mtu=None, queues=None, shards=1))]
    fn user(
        py: Python<'_>,
        link: &str,
        addresses: Vec<String>,
        gateway: Option<&str>,
        mtu: Option<u16>,
        queues: Option<u16>,
        shards: u16,
    ) -> PyResult<Open<Self>> {
        let nic = released(py, || open(link, &addresses, gateway, mtu, queues, shards))?;
        Ok(Open(Self::new(nic, Time::Real)))
    }

    /// Opens an interface of the kernel, as "eth1". With `configured`, nothing is written to it: an agent has set it up, as for a pod
    /// (`devmem-tcp lease`); `plan_receive` then finds its queues and checks what can be seen. With `broker`, the path of a broker's
    /// socket, the same without privileges: the broker binds (`devmem-tcp broker`).
    #[staticmethod]
    #[pyo3(signature = (name, configured=false, broker=None))]
    fn kernel(
        py: Python<'_>,
        name: &str,
        configured: bool,
        broker: Option<PathBuf>,
    ) -> PyResult<Open<Self>> {
        let open = || match (broker, configured) {
            (Some(broker), _) => devmem_tcp::Netdev::brokered(name, broker),
            (None, true) => devmem_tcp::Netdev::configured(name),
            (None, false) => devmem_tcp::Netdev::kernel(name),
        };
        let nic = released(py, || open().map_err(Error::from))?;
        Ok(Open(Self::new(nic, Time::Real)))
    }

    /// Opens two NICs, 10.77.0.1 and 10.77.0.2, on a wire in memory and in virtual time, for tests without a network.
    /// `impair`: as "loss=1%,seed=7".
    #[staticmethod]
    #[pyo3(signature = (impair="none"))]
    fn pair(py: Python<'_>, impair: &str) -> PyResult<(Open<Self>, Open<Self>)> {
        let impairment = impair.parse();
        let impairment: devmem_tcp::Impairment = impairment
            .map_err(|error| PyValueError::new_err(format!("impair='{impair}': {error}")))?;
        let pair = released(py, || {
            devmem_tcp::Netdev::pair(impairment).map_err(Error::from)
        });
        let (a, b) = pair?;
        let open = |nic| Open(Self::new(nic, Time::Virtual));
        Ok((open(a), open(b)))
    }

    /// The plan to receive TCP at `address` into device memory, with `queues` queues.
    #[pyo3(signature = (address, queues=1))]
    fn plan_receive(slf: &Bound<'_, Self>, address: Address, queues: u16) -> PyResult<ReceivePlan> {
        Ok(ReceivePlan {
            nic: slf.clone().unbind(),
            local: address.resolve(slf.py())?,
            queues,
        })
    }

    /// Binds memory to RX queues, with net_iovs of `niov_size` bytes. For more than a page, a NIC of the kernel needs Linux 7.3, a driver that
    /// has them, and memory in pieces of that size, as of huge pages.
    #[pyo3(signature = (memory, queues, niov_size=None))]
    pub(crate) fn bind_rx(
        &self,
        _py: Python<'_>,
        memory: &Bound<'_, Dmabuf>,
        queues: Vec<u16>,
        niov_size: Option<usize>,
    ) -> PyResult<Open<BoundRx>> {
        Ok(Open(BoundRx::bind(self, memory, queues, niov_size)?))
    }

    /// Binds memory for sending.
    fn bind_tx(&self, memory: &Bound<'_, Dmabuf>) -> PyResult<Open<BoundTx>> {
        Ok(Open(BoundTx::bind(self, memory)?))
    }

    /// Listens for connections; port 0 selects a free one. `congestion`: the congestion control of those that are accepted, "cubic",
    /// "reno", "bbr" or "dctcp"; None: that of the NIC.
    #[pyo3(signature = (address, congestion=None))]
    fn listen(
        &self,
        py: Python<'_>,
        address: Address,
        congestion: Option<&str>,
    ) -> PyResult<Open<Listener>> {
        let address = address.resolve(py)?;
        let congestion: Option<Congestion> = congestion
            .map(str::parse)
            .transpose()
            .map_err(Error::from)?;
        let nic = self.get(py)?;
        let listener = released(py, || nic.listen(address).map_err(Error::from))?;
        if let Some(congestion) = congestion {
            let set = listener.set_congestion(congestion);
            set.map_err(Error::from)?;
        }
        Ok(Open(Listener::new(listener, self.time)))
    }

    /// Connects; gives up after `timeout` seconds. Of several addresses of a name, each is tried in turn, for as long. `source`: the
    /// local address. `congestion`: the congestion control, as in `listen`.
    #[pyo3(signature = (address, timeout=None, source=None, congestion=None))]
    fn connect(
        &self,
        py: Python<'_>,
        address: Address,
        timeout: Option<f64>,
        source: Option<Address>,
        congestion: Option<&str>,
    ) -> PyResult<Open<Stream>> {
        let timeout = Timeout::new(timeout)?;
        let options = connect_options(py, source, congestion)?;
        let (first, others) = address.resolve_all(py)?;
        let connect = |address| self.attempt(py, address, &options)?.finish(py, timeout);
        let mut outcome = connect(first);
        for address in others {
            match outcome {
                // An exception of Python, as of a signal, ends the call.
                Ok(_) | Err(Error::Python(_)) => break,
                Err(_) => outcome = connect(address),
            }
        }
        Ok(outcome?)
    }

    /// Begins to connect to the first address of a name, without waiting.
    #[pyo3(signature = (address, source=None, congestion=None))]
    fn begin_connect(
        &self,
        py: Python<'_>,
        address: Address,
        source: Option<Address>,
        congestion: Option<&str>,
    ) -> PyResult<Attempt> {
        let options = connect_options(py, source, congestion)?;
        Ok(self.attempt(py, address.resolve(py)?, &options)?)
    }

    /// The shards of the NIC, each as a NIC: for one thread per shard, which share nothing. A shard has the connections that a
    /// hash of their addresses and ports selects, so every shard must listen.
    fn shards(&self, py: Python<'_>) -> PyResult<Vec<Open<Self>>> {
        let shards = self.nic.with(py, |nic| nic.shards())?;
        let open = |nic| Open(Self::new(nic, self.time));
        Ok(shards.into_iter().map(open).collect())
    }

    /// How many received frames crossed from the shard that received them to that of their connection.
    #[getter]
    fn crossed_frames(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.nic.with(py, |nic| nic.crossed_frames())?)
    }

    /// The state of the link: "up", "down" or "gone".
    #[getter]
    fn link_state(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(link_state(self.nic.with(py, |nic| nic.link_state())?))
    }

    /// The length of the longest IP packet.
    #[getter]
    fn mtu(&self, py: Python<'_>) -> PyResult<u16> {
        Ok(self.nic.with(py, |nic| nic.mtu())?)
    }

    /// The addresses of the NIC.
    #[getter]
    fn addresses(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let addresses = self.nic.with(py, |nic| nic.addresses())?;
        Ok(addresses.iter().map(ToString::to_string).collect())
    }

    /// The name of the kernel's interface; None in user space.
    #[getter]
    fn interface(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let name = |nic: &mut devmem_tcp::Netdev| nic.interface().map(str::to_owned);
        Ok(self.nic.with(py, name)?)
    }

    /// The dropped packets by reason.
    #[getter]
    fn drops<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let drops = PyDict::new(py);
        for (reason, count) in self.nic.with(py, |nic| nic.drops())? {
            drops.set_item(reason, count)?;
        }
        Ok(drops)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = self.nic.with(py, |nic| {
            let name = nic.interface().unwrap_or("in user space").to_owned();
            let addresses = nic
                .addresses()
                .into_iter()
                .map(|address| address.to_string());
            let link = link_state(nic.link_state());
            let parts = [name, format!("link {link}")].into_iter().chain(addresses);
            parts.collect::<Vec<_>>().join(", ")
        });
        repr::of_handle("Netdev", state)
    }

    /// Whether this handle is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.nic.is_closed()
    }

    /// Waits until closed streams are closed on both sides, for `timeout` seconds, and gives up this handle. Returns whether all
    /// are closed. Streams, bindings and tensors of the NIC keep working.
    #[pyo3(signature = (timeout=0.5))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let wrong = |_error| PyValueError::new_err(format!("a timeout of {timeout} s"));
        let at_most = Duration::try_from_secs_f64(timeout).map_err(wrong)?;
        let nic = self.nic.take(py);
        Ok(released(py, || nic.is_none_or(|nic| nic.close(at_most))))
    }
}

/// A connection attempt.
#[pyclass(frozen, module = "devmem_tcp._native", name = "_Connecting")]
#[derive(Debug)]
pub(crate) struct Attempt {
    connecting: Handle<Connecting>,
    time: Time,
}

impl Attempt {
    fn edges(&self, py: Python<'_>) -> Result<Edges, Error> {
        let signal = self
            .connecting
            .with(py, |connecting| connecting.signal())??;
        Ok(Edges::of(signal)?)
    }

    /// Returns the stream once the connection is established. Never waits.
    fn outcome(&self, py: Python<'_>) -> Result<Option<Open<Stream>>, Error> {
        let finished = self
            .connecting
            .with(py, |connecting| connecting.try_finish())?;
        Ok(finished?.map(|stream| Open(Stream::new(stream, self.time))))
    }

    /// Waits until the connection is established.
    fn finish(&self, py: Python<'_>, timeout: Timeout) -> Result<Open<Stream>, Error> {
        let mut timed = TimedWait::new(timeout, Time::Real);
        let mut is_over = timed.is_over();
        let edges = match self.time {
            Time::Real => Some(self.edges(py)?),
            // Each attempt advances the clock.
            Time::Virtual => None,
        };
        loop {
            if let Some(edges) = &edges {
                edges.signal.arm();
            }
            if let Some(stream) = self.outcome(py)? {
                return Ok(stream);
            }
            if is_over {
                return Err(Error::no_answer());
            }
            if let Some(edges) = &edges {
                released(py, || edges.sleep());
            }
            py.check_signals()?;
            is_over = timed.is_over();
        }
    }
}

/// A signal, and the epoll set that sees its edges.
struct Edges {
    signal: SendSignal,
    set: OwnedFd,
}

impl Edges {
    fn of(signal: SendSignal) -> std::io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (data, flags) = (
            epoll::EventData::new_u64(0),
            EventFlags::IN | EventFlags::ET,
        );
        epoll::add(&set, &signal, data, flags)?;
        Ok(Self { signal, set })
    }

    /// Sleeps until an edge, for one slice at most.
    fn sleep(&self) {
        let slice = Timespec {
            tv_sec: 0,
            tv_nsec: SLICE.subsec_nanos().into(),
        };
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        // A signal of the process only ends the sleep early.
        let _ = epoll::wait(&self.set, &mut events, Some(&slice));
    }
}

#[pymethods]
impl Attempt {
    /// Returns the stream once the connection is established; None while it is not. Never waits.
    fn try_finish(&self, py: Python<'_>) -> PyResult<Option<Open<Stream>>> {
        Ok(self.outcome(py)?)
    }

    /// What tells when there may be an outcome.
    fn signal(&self, py: Python<'_>) -> PyResult<Signal> {
        let signal = self.connecting.with(py, |connecting| connecting.signal())?;
        Ok(Signal(signal.map_err(Error::from)?))
    }

    #[getter]
    fn is_virtual(&self) -> bool {
        self.time == Time::Virtual
    }

    /// Gives up.
    fn close(&self, py: Python<'_>) {
        self.connecting.close(py);
    }
}
