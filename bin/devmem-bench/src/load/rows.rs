//! The rows of `bench load`, and one run of each.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use devmem_linux::{cpu, socket};
use devmem_tcp::{Netdev, stats::QueueStats};
use netmem::Dmabuf;
use tool::stock::StockServer;
use transfer::load::{Checkpoint, HttpRequest, Loaded, Loader, Origin, Part, TlsOptions};
use transfer::store::{Stored, Storer};

use super::nvme::Digest;
use super::server::{Files, Home, Server, Serving};
use crate::meter::MeterReading;
use crate::network::{NearEnd, TAP, Veth, open_tap};
use crate::row::Packets;
use crate::rx::bare;
use crate::sender::{PREFIX, RECEIVER, SENDER};
use crate::shuffle::{SEED, shuffle};

/// Bytes of the memory that is bound for receiving.
const BOUND_BYTES: usize = 256 << 20;
/// Bytes of one receive or read call of the other receivers.
const CHUNK: usize = 256 << 10;
const MTU: u16 = 1500;
/// The request of receivers that are no HTTP clients.
const REQUEST: &[u8] = b"GET /file HTTP/1.0\r\nHost: bench\r\n\r\n";
/// Port of the next run of the row `readv`.
static FLOOR_PORT: AtomicU16 = AtomicU16::new(40_000);
/// Requests to NBD servers: in flight on one connection, and the bytes of each.
const NBD_REQUESTS: usize = 16;
const NBD_REQUEST_BYTES: u64 = 1 << 20;

/// A row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    pub kind: Kind,
}

/// How the file is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ours(Ours),
    /// By this project over the kernel's sockets, with this many connections.
    Sockets(Serving, usize),
    Curl(Serving),
    Recv,
    /// Bare readv from a TAP into the target.
    Floor,
    /// With this many connections.
    Nbdcopy(Serving, usize, Sink),
}

/// Where nbdcopy puts the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Nowhere: it drops them.
    Null,
    /// Into a new file in tmpfs.
    File,
}

/// A load by this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ours {
    serving: Serving,
    connections: usize,
    piece_bytes: u64,
    /// Requests in flight on one connection; `None`: those of the loader.
    window: Option<usize>,
    landing: Landing,
    direction: Direction,
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Load,
    Store,
}

/// Where the payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Landing {
    /// To one place in device memory, by a copy.
    OnePlace,
    /// To the places of the checkpoint's tensors, by copies.
    Tensors,
    /// All parts of this length, in the order of the source, each to another place in device memory that is picked at random.
    Parts(u64),
    /// Half of the parts of this length, picked at random, each to such a place.
    RandomParts(u64),
    /// It stays where it was received, and its memory is used again at once.
    InPlace,
}

const NGINX: Serving = Serving::File(StockServer::Nginx);

const HTTP: Ours = Ours {
    serving: NGINX,
    connections: 4,
    piece_bytes: 16 << 20,
    window: None,
    landing: Landing::OnePlace,
    direction: Direction::Load,
};

const NBD: Ours = Ours {
    connections: 1,
    piece_bytes: NBD_REQUEST_BYTES,
    window: Some(NBD_REQUESTS),
    ..HTTP
};

impl Ours {
    const fn over(self, connections: usize) -> Self {
        Self {
            connections,
            ..self
        }
    }

    const fn pieces(self, piece_bytes: u64) -> Self {
        Self {
            piece_bytes,
            ..self
        }
    }

    const fn window(self, requests: usize) -> Self {
        Self {
            window: Some(requests),
            ..self
        }
    }

    const fn stored(self) -> Self {
        Self {
            direction: Direction::Store,
            ..self
        }
    }

    /// Returns the length of a command, if commands are so short that they count more than bytes.
    pub fn short_command(self) -> Option<u64> {
        Some(self.piece_bytes).filter(|bytes| *bytes < 64 << 10)
    }

    const fn from(self, serving: Serving) -> Self {
        Self { serving, ..self }
    }

    const fn landing(self, landing: Landing) -> Self {
        Self { landing, ..self }
    }
}

const fn row(name: &'static str, kind: Kind) -> Row {
    Row { name, kind }
}

const fn ours(name: &'static str, ours: Ours) -> Row {
    row(name, Kind::Ours(ours))
}

const fn nbdcopy_row(name: &'static str, serving: Serving, connections: usize, sink: Sink) -> Row {
    row(name, Kind::Nbdcopy(serving, connections, sink))
}

const QEMU: Serving = Serving::File(StockServer::QemuNbd);
const NBDKIT: Serving = Serving::File(StockServer::Nbdkit);
const MEMORY: Serving = Serving::Memory;
const NVME: Serving = Serving::Nvme(Digest::None);
const SHORT_COMMANDS: Ours = NBD.from(NVME).pieces(4 << 10).window(128);

pub const ROWS: &[Row] = &[
    row("curl", Kind::Curl(NGINX)),
    row("recv", Kind::Recv),
    row("readv", Kind::Floor),
    ours("ours", HTTP),
    ours("ours/in-place", HTTP.landing(Landing::InPlace)),
    ours("ours/500-tensors", HTTP.landing(Landing::Tensors)),
    ours("ours/1-connection", HTTP.over(1)),
    ours("ours/16-connections", HTTP.over(16)),
    row("ours/sockets", Kind::Sockets(NGINX, 4)),
    row("curl/https", Kind::Curl(Serving::Https)),
    row("ours/https", Kind::Sockets(Serving::Https, 4)),
    row("ours/https/1-connection", Kind::Sockets(Serving::Https, 1)),
    ours("ours/64k-parts", HTTP.landing(Landing::Parts(64 << 10))),
    ours(
        "ours/64k-random-parts",
        HTTP.landing(Landing::RandomParts(64 << 10)),
    ),
    ours("ours/64k-pieces", HTTP.pieces(64 << 10)),
    ours("ours/64m-pieces", HTTP.pieces(64 << 20)),
    ours("ours/1g-pieces", HTTP.pieces(1 << 30)),
    nbdcopy_row("nbdcopy/qemu-nbd", QEMU, 4, Sink::Null),
    nbdcopy_row("nbdcopy/qemu-nbd/tmpfs", QEMU, 1, Sink::File),
    nbdcopy_row("nbdcopy/qemu-nbd/1-connection", QEMU, 1, Sink::Null),
    ours("ours/qemu-nbd", NBD.from(QEMU)),
    ours("ours/qemu-nbd/4-connections", NBD.from(QEMU).over(4)),
    ours(
        "ours/qemu-nbd/in-place",
        NBD.from(QEMU).landing(Landing::InPlace),
    ),
    nbdcopy_row("nbdcopy/nbdkit", NBDKIT, 4, Sink::Null),
    nbdcopy_row("nbdcopy/nbdkit/tmpfs", NBDKIT, 1, Sink::File),
    nbdcopy_row("nbdcopy/nbdkit/1-connection", NBDKIT, 1, Sink::Null),
    ours("ours/nbdkit", NBD.from(NBDKIT)),
    ours("ours/nbdkit/4-connections", NBD.from(NBDKIT).over(4)),
    ours(
        "ours/nbdkit/in-place",
        NBD.from(NBDKIT).landing(Landing::InPlace),
    ),
    nbdcopy_row("nbdcopy/nbdkit-memory", MEMORY, 4, Sink::Null),
    nbdcopy_row("nbdcopy/nbdkit-memory/tmpfs", MEMORY, 1, Sink::File),
    nbdcopy_row("nbdcopy/nbdkit-memory/1-connection", MEMORY, 1, Sink::Null),
    ours("ours/nbdkit-memory", NBD.from(MEMORY)),
    ours("ours/nbdkit-memory/4-connections", NBD.from(MEMORY).over(4)),
    ours("ours/nbdkit-memory/store", NBD.from(MEMORY).stored()),
    ours(
        "ours/nbdkit-memory/store/4-connections",
        NBD.from(MEMORY).stored().over(4),
    ),
    ours("ours/nvme", NBD.from(NVME)),
    ours("ours/nvme/4-queues", NBD.from(NVME).over(4)),
    ours("ours/nvme/4k-commands", SHORT_COMMANDS),
    ours(
        "ours/nvme/4k-random",
        SHORT_COMMANDS.landing(Landing::RandomParts(4 << 10)),
    ),
    ours(
        "ours/nvme/4k-random/4-queues",
        SHORT_COMMANDS
            .landing(Landing::RandomParts(4 << 10))
            .over(4),
    ),
    ours("ours/nvme/store", NBD.from(NVME).stored()),
    ours("ours/nvme/store/4-queues", NBD.from(NVME).stored().over(4)),
    ours(
        "ours/nvme/hdr-digest",
        NBD.from(Serving::Nvme(Digest::Header)),
    ),
    ours(
        "ours/nvme/data-digest",
        NBD.from(Serving::Nvme(Digest::Data)),
    ),
];

/// The rows that are compared: those from NBD servers with rows of as many connections.
pub const PAIRS: &[(&str, &str)] = &[
    ("ours", "curl"),
    ("ours", "recv"),
    ("ours/1-connection", "recv"),
    ("ours/in-place", "recv"),
    ("readv", "recv"),
    ("ours/1-connection", "readv"),
    ("ours", "ours/in-place"),
    ("ours/500-tensors", "ours/in-place"),
    ("ours/sockets", "curl"),
    ("ours/https", "curl/https"),
    ("ours/https/1-connection", "curl/https"),
    ("ours/https", "ours/sockets"),
    ("ours/qemu-nbd", "nbdcopy/qemu-nbd/1-connection"),
    ("ours/qemu-nbd", "nbdcopy/qemu-nbd/tmpfs"),
    ("ours/qemu-nbd/4-connections", "nbdcopy/qemu-nbd"),
    ("ours/nbdkit", "nbdcopy/nbdkit/1-connection"),
    ("ours/nbdkit", "nbdcopy/nbdkit/tmpfs"),
    ("ours/nbdkit/4-connections", "nbdcopy/nbdkit"),
    ("ours/nbdkit-memory", "nbdcopy/nbdkit-memory/1-connection"),
    ("ours/nbdkit-memory", "nbdcopy/nbdkit-memory/tmpfs"),
    ("ours/nbdkit-memory/4-connections", "nbdcopy/nbdkit-memory"),
    ("ours/nvme", "ours/nbdkit-memory"),
    ("ours/nvme/4-queues", "ours/nbdkit-memory/4-connections"),
    ("ours/nvme/hdr-digest", "ours/nvme"),
    ("ours/nvme/data-digest", "ours/nvme"),
    ("ours/nvme/store", "ours/nbdkit-memory/store"),
    (
        "ours/nvme/store/4-queues",
        "ours/nbdkit-memory/store/4-connections",
    ),
];

impl Row {
    /// Returns the programs that it needs.
    pub fn programs(&self) -> Vec<&'static str> {
        let (serving, client) = match self.kind {
            Kind::Ours(Ours { serving, .. }) => (serving, None),
            Kind::Sockets(serving, _) => (serving, None),
            Kind::Curl(serving) => (serving, Some("curl")),
            Kind::Recv | Kind::Floor => (NGINX, None),
            Kind::Nbdcopy(serving, ..) => (serving, Some("nbdcopy")),
        };
        let mut programs = serving.programs();
        programs.extend(client.filter(|client| !programs.contains(client)));
        programs
    }
}

/// What all runs share.
pub struct Setting<'a> {
    pub files: &'a Files,
    pub target: Dmabuf,
    pub bytes: u64,
    pub server_cpu: usize,
}

/// The figures of one run.
#[derive(Clone, Copy, Debug)]
pub struct LoadReading {
    /// Those of the receiver.
    pub meter: MeterReading,
    /// CPU time of the server's process during that time.
    pub server: Duration,
    /// Bytes that a NIC in user space received at their place.
    pub placed: Option<u64>,
}

/// Runs one row once.
///
/// # Errors
///
/// The server or the load failed.
pub fn run(setting: &Setting<'_>, kind: Kind) -> Result<LoadReading> {
    match kind {
        Kind::Ours(ours) => load(setting, ours),
        Kind::Sockets(serving, connections) => {
            over_veth(setting, serving, || sockets(setting, serving, connections))
        }
        Kind::Curl(serving) => over_veth(setting, serving, || curl(setting, serving)),
        Kind::Recv => over_veth(setting, NGINX, || recv(setting)),
        Kind::Floor => floor(setting),
        Kind::Nbdcopy(serving, connections, sink) => over_veth(setting, serving, || {
            nbdcopy(setting, serving, connections, sink)
        }),
    }
}

/// Starts a server at the other end of a veth pair for the time of `run`.
fn over_veth(
    setting: &Setting<'_>,
    serving: Serving,
    run: impl FnOnce() -> Result<MeterReading>,
) -> Result<LoadReading> {
    let mut running = Server::start(serving, setting.files, Home::Apart, setting.server_cpu)?;
    let _veth = Veth::new(&running.namespace()?, NearEnd::Kernel, MTU, None)?;
    running.until_ready(serving, setting.files)?;
    with_server(&running, run)
}

/// Adds the CPU time of the server during `run`.
fn with_server(server: &Server, run: impl FnOnce() -> Result<MeterReading>) -> Result<LoadReading> {
    let before = server.cpu_time()?;
    let meter = run()?;
    let server = server.cpu_time()?.saturating_sub(before);
    Ok(LoadReading {
        meter,
        server,
        placed: None,
    })
}

fn load(setting: &Setting<'_>, ours: Ours) -> Result<LoadReading> {
    let nic = Netdev::builder(format!("tap:{TAP}"))?
        .address(&format!("{RECEIVER}/{PREFIX}"))?
        .peer_address(&format!("{SENDER}/{PREFIX}"))?
        .mtu(MTU)
        .open()?;
    let mut running = Server::start(ours.serving, setting.files, Home::Here, setting.server_cpu)?;
    running.until_ready(ours.serving, setting.files)?;
    let memory = Dmabuf::anonymous(BOUND_BYTES)?;
    let setup = nic.plan_receive(SocketAddr::from((RECEIVER, 0))).apply()?;
    let bound = nic.bind_rx(&memory, setup.queues())?;
    let reading = with_server(&running, || {
        let (start, clock) = (Instant::now(), cpu::process_cpu_time());
        let bytes = match ours.direction {
            Direction::Load => load_by(&nic, setting, ours)?.bytes,
            Direction::Store => store_by(&nic, setting, ours)?.bytes,
        };
        Ok(MeterReading {
            bytes,
            elapsed: start.elapsed(),
            cpu: cpu::process_cpu_time().saturating_sub(clock),
        })
    });
    let queues = nic.queue_stats();
    let at_once = |queue: &QueueStats| queue.direct_bytes - queue.direct_copied_bytes;
    let placed = queues.iter().map(at_once).sum();
    drop((bound, setup));
    Ok(LoadReading {
        placed: Some(placed).filter(|_| ours.direction == Direction::Load),
        ..reading?
    })
}

fn store_by(nic: &Netdev, setting: &Setting<'_>, ours: Ours) -> Result<Stored> {
    let storer = Storer::new(nic)
        .connections(ours.connections)
        .piece_bytes(ours.piece_bytes);
    let storer = match ours.window {
        Some(requests) => storer.window(requests),
        None => storer,
    };
    let origin = ours.serving.url().parse::<Origin>()?;
    let sink =
        transfer::store::Sink::open_cancellable(nic, &origin, &mut || ControlFlow::Continue(()))?;
    let all = transfer::store::Part {
        target: 0..setting.bytes,
        offset: 0,
    };
    let mut always = |_| ControlFlow::Continue(());
    Ok(storer.store(&sink, &setting.target, &[all], &mut always)?)
}

fn load_by(nic: &Netdev, setting: &Setting<'_>, ours: Ours) -> Result<Loaded> {
    let loader = Loader::new(nic)
        .connections(ours.connections)
        .piece_bytes(ours.piece_bytes);
    let loader = match ours.window {
        Some(requests) => loader.pipeline(requests),
        None => loader,
    };
    let url = ours.serving.url();
    let mut always = |_| ControlFlow::Continue(());
    let whole = 0..setting.bytes;
    let loaded = match ours.landing {
        Landing::OnePlace => {
            let source = url.parse::<Origin>()?.open(loader.nic())?;
            let part = Part {
                source: whole,
                memory: setting.target.clone(),
                offset: 0,
            };
            loader.load(source, &[part], &mut always)?
        }
        Landing::Tensors => {
            let checkpoint = Checkpoint::open(&loader, HttpRequest::new(url.parse()?))?;
            checkpoint.load(&loader, &setting.target, &mut always)?
        }
        Landing::Parts(len) => {
            let source = url.parse::<Origin>()?.open(loader.nic())?;
            let parts = parts_anywhere(&setting.target, setting.bytes, len)?;
            loader.load(source, &parts, &mut always)?
        }
        Landing::RandomParts(len) => {
            let source = url.parse::<Origin>()?.open(loader.nic())?;
            let mut parts = parts_anywhere(&setting.target, setting.bytes, len)?;
            shuffle(&mut parts, SEED);
            parts.truncate(parts.len() / 2);
            loader.load(source, &parts, &mut always)?
        }
        Landing::InPlace => {
            let source = url.parse::<Origin>()?.open(loader.nic())?;
            loader.deliver(source, &[whole], &mut |_| Ok(()), &mut always)?
        }
    };
    Ok(loaded)
}

/// Returns the source cut into parts of `len` bytes, each with a place in `memory` that is picked at random.
fn parts_anywhere(memory: &Dmabuf, source_bytes: u64, len: u64) -> Result<Vec<Part>> {
    let mut places = (0..usize::try_from(source_bytes / len)?).collect::<Vec<_>>();
    shuffle(&mut places, !SEED);
    let part = |(start, place): (u64, usize)| {
        Ok(Part {
            source: start..start + len,
            memory: memory.clone(),
            offset: place * usize::try_from(len)?,
        })
    };
    let starts = (0..).step_by(usize::try_from(len)?);
    starts.zip(places).map(part).collect()
}

/// Receives nginx's response by bare readv from a TAP: what no receiver over a TAP can do without. The head of the response stays
/// before the bytes of the file, so that these are a few hundred bytes behind their places.
fn floor(setting: &Setting<'_>) -> Result<LoadReading> {
    let tap = open_tap(MTU, Packets::Usual)?;
    let server = SocketAddrV4::new(SENDER, StockServer::Nginx.address(SENDER.into()).port());
    let mut running = Server::start(NGINX, setting.files, Home::Here, setting.server_cpu)?;
    running.until_ready(NGINX, setting.files)?;
    with_server(&running, || {
        let from = FLOOR_PORT.fetch_add(1, Ordering::Relaxed);
        let reading = bare::fetch(&setting.target, tap, MTU, from, server, REQUEST)?;
        let bytes = setting.bytes;
        if reading.bytes < bytes {
            bail!("only {} of {bytes} bytes came", reading.bytes);
        }
        Ok(MeterReading { bytes, ..reading })
    })
}

/// Loads over the kernel's sockets, to one place in memory.
fn sockets(setting: &Setting<'_>, serving: Serving, connections: usize) -> Result<MeterReading> {
    let (start, clock) = (Instant::now(), cpu::process_cpu_time());
    let nic = Netdev::kernel_to(SENDER.into())?;
    let mut request = HttpRequest::new(serving.url().parse()?);
    if serving == Serving::Https {
        let tls = TlsOptions::new().authorities(setting.files.certificate());
        request = request.tls(tls.client()?);
    }
    let loader = Loader::new(&nic).connections(connections);
    let mut always = || ControlFlow::Continue(());
    let source = loader.open(&Origin::Http(request), &mut always)?;
    let part = Part {
        source: 0..setting.bytes,
        memory: setting.target.clone(),
        offset: 0,
    };
    let loaded = loader.load(source, &[part], &mut |_| always())?;
    Ok(MeterReading {
        bytes: loaded.bytes,
        elapsed: start.elapsed(),
        cpu: cpu::process_cpu_time().saturating_sub(clock),
    })
}

/// Loads into a file in memory, and reads that once.
fn curl(setting: &Setting<'_>, serving: Serving) -> Result<MeterReading> {
    let copy = setting.files.copy();
    let mut command = Command::new("curl");
    command.args(["--silent", "--fail", "--noproxy", "*", "--output"]);
    command.arg(&copy).arg(serving.url());
    if serving == Serving::Https {
        command.arg("--cacert").arg(setting.files.certificate());
    }
    let mut bytes = 0;
    let reading = measured(&mut command, || {
        let file = File::open(&copy).context("open curl's file")?;
        let mut buffer = vec![0; CHUNK];
        loop {
            let read = file.read_at(&mut buffer, bytes);
            match read.context("read curl's file")? {
                0 => return Ok(()),
                len => bytes += len as u64,
            }
        }
    });
    let reading = MeterReading { bytes, ..reading? };
    fs::remove_file(&copy).context("remove curl's file")?;
    Ok(reading)
}

/// Reads the export into memory of nbdcopy, and from there to `sink`: with as many requests in flight as ours.
fn nbdcopy(
    setting: &Setting<'_>,
    serving: Serving,
    connections: usize,
    sink: Sink,
) -> Result<MeterReading> {
    let copy = setting.files.copy();
    let mut command = Command::new("nbdcopy");
    command.arg(format!("--connections={connections}"));
    command.arg(format!("--requests={NBD_REQUESTS}"));
    command.arg(format!("--request-size={NBD_REQUEST_BYTES}"));
    // Without asking for holes: the file has none.
    command.args(["--no-extents", &serving.url()]);
    match sink {
        Sink::Null => command.arg("null:"),
        Sink::File => command.arg(&copy),
    };
    let reading = measured(&mut command, || Ok(()))?;
    if sink == Sink::File {
        fs::remove_file(&copy).context("remove nbdcopy's file")?;
    }
    Ok(MeterReading {
        bytes: setting.bytes,
        ..reading
    })
}

/// Runs a program and then `after`, and measures both. Returns no bytes.
fn measured(command: &mut Command, after: impl FnOnce() -> Result<()>) -> Result<MeterReading> {
    let program = command.get_program().display().to_string();
    let (start, children) = (Instant::now(), cpu::children_cpu_time()?);
    let clock = cpu::process_cpu_time();
    let status = command.stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("start {program}"))?;
    if !status.success() {
        bail!("{program} ended: {status}");
    }
    after()?;
    let own = cpu::process_cpu_time().saturating_sub(clock);
    Ok(MeterReading {
        bytes: 0,
        elapsed: start.elapsed(),
        cpu: own + cpu::children_cpu_time()?.saturating_sub(children),
    })
}

/// Receives into a buffer that stays in the cache, and copies from there to device memory.
fn recv(setting: &Setting<'_>) -> Result<MeterReading> {
    let (start, clock) = (Instant::now(), cpu::process_cpu_time());
    let mut stream =
        TcpStream::connect(StockServer::Nginx.address(SENDER.into())).context("connect")?;
    // Woken for every packet, it would use a sixth more CPU time; woken later, it would be slower.
    socket::set_receive_low_water(stream.as_fd(), CHUNK / 2).context("set SO_RCVLOWAT")?;
    stream.write_all(REQUEST).context("send the request")?;
    let mut buffer = vec![0; CHUNK];
    let mut head = Vec::new();
    let body = loop {
        let len = stream.read(&mut buffer).context("receive")?;
        head.extend_from_slice(&buffer[..len]);
        if let Some(end) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break head.split_off(end + 4);
        }
        if len == 0 {
            bail!("the head of the response is incomplete");
        }
    };
    setting.target.copy_in(0, &body)?;
    let mut at = body.len();
    loop {
        let len = stream.read(&mut buffer).context("receive")?;
        if len == 0 {
            break;
        }
        setting.target.copy_in(at, &buffer[..len])?;
        at += len;
    }
    Ok(MeterReading {
        bytes: at as u64,
        elapsed: start.elapsed(),
        cpu: cpu::process_cpu_time().saturating_sub(clock),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn parts_cover_the_source_in_order_and_their_places_are_others() {
        let (len, count) = (4096, 256);
        let memory = Dmabuf::anonymous(len * count).unwrap();
        let parts = parts_anywhere(&memory, memory.size() as u64, len as u64).unwrap();
        let starts = parts.iter().map(|it| it.source.start);
        assert!(starts.eq((0..(count * len) as u64).step_by(len)));
        assert!(
            parts
                .iter()
                .all(|it| it.source.end - it.source.start == len as u64)
        );
        let places: BTreeSet<_> = parts.iter().map(|it| it.offset).collect();
        assert!(places.into_iter().eq((0..count * len).step_by(len)));
        let unmoved = parts
            .iter()
            .filter(|it| it.source.start == it.offset as u64);
        assert!(unmoved.count() < 8);
    }
}
