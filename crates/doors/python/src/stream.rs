//! TCP connections.

use std::io::Write;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};

use devmem_tcp::{Placement, RecvError, RecvHalf, SendHalf, memory::HeldUnit, stats::StreamStats};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySlice, PyTuple};

use crate::batch::{Batch, Spares, check_max};
use crate::batches::Batches;
use crate::binding::BoundTx;
use crate::closing::Closing;
use crate::error::Error;
use crate::raw::{Foreign, Use};
use crate::released::released;
use crate::repr;
use crate::sent::{Sent, Signal, limit_completions};
use crate::target::Target;
use crate::tensor::{Tensor, memory_of, view_of};
use crate::wait::{Handle, Limit, Time, TimedWait, Timeout};

/// Bytes that a peek makes room for at first.
const FIRST_PEEK: usize = 64 << 10;

/// A TCP connection. One thread may receive while another one sends.
///
/// Iterating receives: each batch is released by the step to the next one.
#[pyclass(frozen, extends = Closing, module = "devmem_tcp")]
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) recv: Handle<RecvHalf>,
    send: Handle<SendHalf>,
    timeout: Mutex<Timeout>,
    time: Time,
    spares: Arc<Spares>,
}

impl Stream {
    pub(crate) fn new(stream: devmem_tcp::Stream, time: Time) -> Self {
        let (recv, send) = stream.into_split();
        Self {
            recv: Handle::new(recv, "stream"),
            send: Handle::new(send, "stream"),
            timeout: Mutex::new(Timeout::FOREVER),
            time,
            spares: Arc::default(),
        }
    }

    fn timeout(&self) -> Timeout {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn spares(&self) -> &Spares {
        &self.spares
    }

    pub(crate) fn timed_wait(&self) -> TimedWait {
        TimedWait::new(self.timeout(), self.time)
    }

    /// Receives into an empty batch of the library.
    fn receive(
        &self,
        py: Python<'_>,
        batch: &mut devmem_tcp::RxBatch,
        max_bytes: usize,
        timed: &mut TimedWait,
    ) -> Result<usize, Error> {
        timed.wait(py, &self.recv, |half, limit| {
            limit_recv(half, limit);
            Ok(half.recv_at_most(batch, max_bytes)?)
        })
    }

    /// Receives a batch of the package.
    pub(crate) fn receive_batch(
        &self,
        py: Python<'_>,
        max_bytes: usize,
        timed: &mut TimedWait,
    ) -> Result<Batch, Error> {
        let mut batch = self.spares.take();
        match self.receive(py, &mut batch, max_bytes, timed) {
            Ok(_bytes) => Ok(Batch::new(batch, &self.spares)),
            Err(error) => {
                self.spares.put(batch);
                Err(error)
            }
        }
    }

    /// Sends ranges, until all bytes are queued; or some, if the timeout is over.
    fn send_ranges(
        &self,
        py: Python<'_>,
        tx: &BoundTx,
        ranges: &[Range<usize>],
        timed: &mut TimedWait,
    ) -> Result<Sent, Error> {
        let total: usize = ranges.iter().map(Range::len).sum();
        let bound = tx.get(py)?;
        let mut rest = ranges.to_vec();
        let (mut bytes, mut last) = (0, None);
        while bytes < total || last.is_none() {
            let sent = timed.wait(py, &self.send, |half, limit| {
                limit_send(half, limit);
                Ok(half.send(&bound, &rest)?)
            });
            match sent {
                Ok(id) => {
                    bytes += id.bytes();
                    advance(&mut rest, id.bytes());
                    last = Some(id);
                }
                // As the library does: what was queued counts.
                Err(_) if bytes > 0 && (timed.is_over() || self.timeout().never_waits()) => {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let completions = self.send.with(py, |half| half.completions())?;
        Ok(Sent {
            id: last,
            bytes,
            completions: Handle::new(completions, "stream"),
            time: self.time,
        })
    }
}

fn limit_recv(half: &mut RecvHalf, limit: Limit) {
    match limit {
        Limit::Never => half.set_nonblocking(true),
        Limit::For(time) => half.set_timeout(Some(time)),
    }
}

fn limit_send(half: &mut SendHalf, limit: Limit) {
    match limit {
        Limit::Never => half.set_nonblocking(true),
        Limit::For(time) => half.set_timeout(Some(time)),
    }
}

/// Removes the first `taken` bytes from the ranges.
fn advance(ranges: &mut Vec<Range<usize>>, mut taken: usize) {
    let whole = ranges.iter().take_while(|range| {
        let is_whole = range.len() <= taken;
        taken -= if is_whole { range.len() } else { 0 };
        is_whole
    });
    let whole = whole.count();
    ranges.drain(..whole);
    if let Some(first) = ranges.first_mut() {
        first.start += taken;
    }
}

/// Returns the ranges of bound memory that arguments of `send` name.
fn ranges_of(tx: &BoundTx, what: &Bound<'_, PyTuple>) -> PyResult<Vec<Range<usize>>> {
    if what.is_empty() {
        let all = 0..tx.memory().size();
        return Ok([all].into());
    }
    let ranges = what.iter().map(|part| {
        if let Ok(tensor) = part.cast::<Tensor>() {
            return match memory_of(view_of(tensor)) {
                Some((memory, range)) if memory.is_same(tx.memory()) => Ok(range),
                _ => Err(PyValueError::new_err(
                    "the tensor is not in the bound memory\n  copy it there: memory[a:b].copy_from(tensor)",
                )),
            };
        }
        if let Ok(slice) = part.cast::<PySlice>() {
            let indices = slice.indices(isize::try_from(tx.memory().size())?)?;
            if indices.step != 1 {
                return Err(PyValueError::new_err("a range to send has the step 1"));
            }
            let start = usize::try_from(indices.start)?;
            return Ok(start..start + indices.slicelength);
        }
        match part.extract::<(usize, usize)>() {
            Ok((start, end)) if start <= end => Ok(start..end),
            Ok((start, end)) => Err(PyValueError::new_err(format!("{start} is after {end}"))),
            Err(_) => Err(PyTypeError::new_err(
                "what to send is a tensor over the bound memory, a slice, or a pair (start, end)",
            )),
        }
    });
    ranges.collect()
}

#[pymethods]
impl Stream {
    /// Receives queued bytes; waits if there are none. The batch is false at the end of the stream. `batch` is an earlier
    /// batch to release first.
    #[pyo3(signature = (max_bytes=None, *, batch=None))]
    fn recv(
        &self,
        py: Python<'_>,
        max_bytes: Option<usize>,
        batch: Option<&Bound<'_, Batch>>,
    ) -> PyResult<Batch> {
        let max_bytes = check_max(max_bytes)?;
        if let Some(batch) = batch {
            batch.get().end(py)?;
        }
        Ok(self.receive_batch(py, max_bytes, &mut self.timed_wait())?)
    }

    /// Receives queued bytes without waiting; None if there are none.
    #[pyo3(signature = (max_bytes=None))]
    fn try_recv(&self, py: Python<'_>, max_bytes: Option<usize>) -> PyResult<Option<Batch>> {
        let max_bytes = check_max(max_bytes)?;
        let mut batch = self.spares.take();
        let received = self.recv.with(py, |half| {
            half.set_nonblocking(true);
            half.recv_at_most(&mut batch, max_bytes)
        })?;
        match received {
            Ok(_bytes) => Ok(Some(Batch::new(batch, &self.spares))),
            Err(error) => {
                self.spares.put(batch);
                match error {
                    RecvError::WouldBlock => Ok(None),
                    error => Err(Error::from(error).into()),
                }
            }
        }
    }

    /// Receives until `out` is full or the stream ends: copies the bytes to a tensor, a Dmabuf, or a writable array or buffer.
    /// Returns the number of bytes.
    fn recv_into(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut target = Target::of(out)?;
        let mut batch = self.spares.take();
        let mut timed = self.timed_wait();
        let mut done = 0;
        let result = loop {
            let room = target.len() - done;
            if room == 0 {
                break Ok(done);
            }
            match self.receive(py, &mut batch, room, &mut timed) {
                Ok(0) => break Ok(done),
                Ok(bytes) => {
                    let put = released(py, || {
                        target.put(done, &batch)?;
                        batch.release().map_err(Error::from)
                    });
                    match put {
                        Ok(_) => done += bytes,
                        Err(error) => break Err(error),
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.spares.put(batch);
        Ok(result?)
    }

    /// Returns a copy of the first queued bytes, `nbytes` at most, and leaves them queued; waits if there are none.
    fn peek<'py>(&self, py: Python<'py>, nbytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        // The stream decides how much memory this takes, not the caller, who may ask for more than there is.
        let mut bytes = vec![0; nbytes.min(FIRST_PEEK)];
        loop {
            let peeked = self.timed_wait().wait(py, &self.recv, |half, limit| {
                limit_recv(half, limit);
                Ok(half.peek(&mut bytes)?)
            })?;
            if peeked < bytes.len() || bytes.len() >= nbytes {
                return Ok(PyBytes::new(py, &bytes[..peeked]));
            }
            bytes.resize(bytes.len().saturating_mul(2).min(nbytes), 0);
        }
    }

    /// Sends parts of bound memory without a copy: tensors over it, slices, or pairs (start, end); all of it if none is given.
    /// Waits until the bytes are queued. They must not change until `wait` of the result has returned.
    #[pyo3(signature = (tx, *parts))]
    fn send(
        &self,
        py: Python<'_>,
        tx: &Bound<'_, BoundTx>,
        parts: &Bound<'_, PyTuple>,
    ) -> PyResult<Sent> {
        let tx = tx.get();
        let ranges = ranges_of(tx, parts)?;
        tx.make_visible(py)?;
        Ok(self.send_ranges(py, tx, &ranges, &mut self.timed_wait())?)
    }

    /// Sends what fits of one range of bound memory, without waiting; None if nothing fits.
    fn try_send(
        &self,
        py: Python<'_>,
        tx: &Bound<'_, BoundTx>,
        start: usize,
        end: usize,
    ) -> PyResult<Option<Sent>> {
        let tx = tx.get();
        if start > end {
            return Err(PyValueError::new_err(format!("{start} is after {end}")));
        }
        tx.make_visible(py)?;
        let timeout = Timeout::new(Some(0.0))?;
        let mut timed = TimedWait::new(timeout, self.time);
        let range = start..end;
        match self.send_ranges(py, tx, std::slice::from_ref(&range), &mut timed) {
            Ok(sent) => Ok(Some(sent)),
            Err(error) if error.would_block_now() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Copies all bytes of a buffer, an array or a tensor to the send queue; waits for room.
    fn sendall(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = Foreign::of(data, Use::Read)?;
        let mut timed = self.timed_wait();
        let mut done = 0;
        while done < data.len() {
            done += timed.wait(py, &self.send, |half, limit| {
                limit_send(half, limit);
                write(half, data.bytes().get(done..).unwrap_or_default())
            })?;
        }
        Ok(())
    }

    /// Copies what fits of a buffer, an array or a tensor from `offset` on, without waiting. Returns the number of bytes; 0 if
    /// nothing fits.
    #[pyo3(signature = (data, offset=0))]
    fn try_write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: usize) -> PyResult<usize> {
        let data = Foreign::of(data, Use::Read)?;
        let Some(rest) = data.bytes().get(offset..).filter(|rest| !rest.is_empty()) else {
            return Ok(0);
        };
        let written = self.send.with(py, |half| {
            half.set_nonblocking(true);
            write(half, rest)
        })?;
        match written {
            Err(error) if error.would_block_now() => Ok(0),
            written => Ok(written?),
        }
    }

    /// Waits until every send so far is complete.
    #[pyo3(signature = (timeout=None))]
    fn wait_sent(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let completions = self.send.with(py, |half| half.completions())?;
        let completions = Handle::new(completions, "stream");
        let mut timed = TimedWait::new(Timeout::new(timeout)?, self.time);
        Ok(timed.wait(py, &completions, |completions, limit| {
            limit_completions(completions, limit);
            Ok(completions.wait_all()?)
        })?)
    }

    /// Ends the sending direction: a FIN follows the queued bytes. Receiving is still possible.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let shut = self.send.with(py, |half| half.shutdown_write())?;
        Ok(shut.map_err(Error::from)?)
    }

    /// Sets how long a call waits, in seconds: None waits for ever, 0 never. In virtual time, virtual seconds.
    fn settimeout(&self, seconds: Option<f64>) -> PyResult<()> {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = Timeout::new(seconds)?;
        Ok(())
    }

    fn gettimeout(&self) -> Option<f64> {
        self.timeout().seconds()
    }

    fn setblocking(&self, blocking: bool) -> PyResult<()> {
        self.settimeout(if blocking { None } else { Some(0.0) })
    }

    /// Refuses bytes in host memory: receiving them is a MisplacedError with its cause, and they stay queued.
    fn set_strict(&self, py: Python<'_>, strict: bool) -> PyResult<()> {
        let placement = match strict {
            true => Placement::Strict,
            false => Placement::Mixed,
        };
        Ok(self.recv.with(py, |half| half.set_placement(placement))?)
    }

    /// Sends small segments at once (TCP_NODELAY).
    fn set_nodelay(&self, py: Python<'_>, nodelay: bool) -> PyResult<()> {
        let set = self.send.with(py, |half| half.set_nodelay(nodelay))?;
        Ok(set.map_err(Error::from)?)
    }

    /// Changes the congestion control: "cubic", "reno", "bbr" or "dctcp".
    fn set_congestion(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let congestion = name.parse().map_err(Error::from)?;
        let set = self.send.with(py, |half| half.set_congestion(congestion))?;
        Ok(set.map_err(Error::from)?)
    }

    /// The address of the peer: host and port.
    fn getpeername(&self, py: Python<'_>) -> PyResult<(String, u16)> {
        let address = self.recv.with(py, |half| half.peer_addr())?;
        let address = address.map_err(Error::from)?;
        Ok((address.ip().to_string(), address.port()))
    }

    /// The local address: host and port.
    fn getsockname(&self, py: Python<'_>) -> PyResult<(String, u16)> {
        let address = self.recv.with(py, |half| half.local_addr())?;
        let address = address.map_err(Error::from)?;
        Ok((address.ip().to_string(), address.port()))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let ends = self
            .recv
            .with(py, |half| (half.local_addr(), half.peer_addr()));
        let state = ends.and_then(|(local, peer)| Ok(format!("on {}, peer {}", local?, peer?)));
        repr::of_handle("Stream", state)
    }

    /// Returns what holds the memory that the stream receives into; None while enough of it is free. A dict: dmabuf_id,
    /// net_iovs (all of the memory), unit ("net_iovs" or "frags", which the following count), lent (to this program by this
    /// stream), lent_by_others and unread.
    fn held_memory<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(held) = self.recv.with(py, |half| half.held_memory())? else {
            return Ok(None);
        };
        let counts = PyDict::new(py);
        counts.set_item("dmabuf_id", held.dmabuf.0)?;
        let unit = match held.unit {
            HeldUnit::Frags => "frags",
            _ => "net_iovs",
        };
        counts.set_item("unit", unit)?;
        for (name, count) in [
            ("net_iovs", held.net_iovs),
            ("lent", held.lent),
            ("lent_by_others", held.lent_by_others),
            ("unread", held.unread),
        ] {
            counts.set_item(name, count)?;
        }
        Ok(Some(counts))
    }

    /// The counters of what was received: device_bytes, linear_bytes, device_frags, tokens_returned, receives.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let StreamStats {
            device_bytes,
            linear_bytes,
            device_frags,
            tokens_returned,
            receives,
        } = self.recv.with(py, |half| half.stats())?;
        let stats = PyDict::new(py);
        for (name, count) in [
            ("device_bytes", device_bytes),
            ("linear_bytes", linear_bytes),
            ("device_frags", device_frags),
            ("tokens_returned", tokens_returned),
            ("receives", receives),
        ] {
            stats.set_item(name, count)?;
        }
        Ok(stats)
    }

    /// A file descriptor that is readable while bytes are queued or the stream has ended, for select and poll.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let fd = self
            .recv
            .with(py, |half| half.readiness_fd().map(|fd| fd.as_raw_fd()))?;
        Ok(fd.map_err(Error::from)?)
    }

    /// What tells when a send that found the queue full can be repeated.
    fn send_signal(&self, py: Python<'_>) -> PyResult<Signal> {
        let signal = self.send.with(py, |half| half.send_signal())?;
        Ok(Signal(signal.map_err(Error::from)?))
    }

    /// Whether the stream is in the virtual time of a `Netdev.pair`, where a task cannot wait for it.
    #[getter]
    fn is_virtual(&self) -> bool {
        self.time == Time::Virtual
    }

    #[getter]
    fn closed(&self) -> bool {
        self.recv.is_closed()
    }

    /// Closes the stream: a FIN follows the queued bytes. Tensors over received bytes stay valid.
    fn close(&self, py: Python<'_>) {
        self.send.close(py);
        self.recv.close(py);
    }

    fn __iter__(slf: Py<Self>) -> Batches {
        Batches {
            stream: slf,
            last: Mutex::new(None),
        }
    }

    fn __aiter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let aio = slf.py().import("devmem_tcp.aio")?;
        aio.getattr("Stream")?
            .call1((slf,))?
            .call_method0("__aiter__")
    }
}

fn write(half: &mut SendHalf, bytes: &[u8]) -> Result<usize, Error> {
    Ok(half.write(bytes)?)
}
