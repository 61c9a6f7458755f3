//! Cases that ranks play, in processes of this program. Each rank has a NCCL_HOSTID of its own, so that NCCL takes the ranks for machines, and
//! uses its network between them.

use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use devmem_linux::test_util::{built_library, skip};
use gvnic_server::plan::{WireEnd, WirePlan, WirePort};

use crate::bench::Bench;

/// Environment variable: the folder with the libraries.
pub const LIBRARIES: &str = "DEVMEM_TEST_NCCL";

/// Environment variables of a rank, and of a cable.
pub const CASE: &str = "NCCL_RELEASED_CASE";
pub const FOLDER: &str = "NCCL_RELEASED_FOLDER";
pub const RANK: &str = "NCCL_RELEASED_RANK";
pub const RANKS: &str = "NCCL_RELEASED_RANKS";
const IMPAIRMENT: &str = "NCCL_RELEASED_IMPAIR";

/// The exit status of a rank whose library cannot run here; it has printed why.
pub const UNSUITED: i32 = 77;

/// The oldest release for this plugin and the newest, those between that bring a version of the interface, and that version.
pub const RELEASES: [(&str, u32); 6] = [
    ("2.20.5", 8),
    ("2.25.1", 9),
    ("2.27.7", 10),
    ("2.29.7", 11),
    ("2.30.7", 12),
    ("2.32.3", 12),
];

/// What every rank is told: the network; what is played of the kernels; and what a GPU would be needed for.
const SETTINGS: &str = "\
    NCCL_NET=Devmem NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET \
    NCCL_SOCKET_FAMILY=AF_INET NCCL_IB_DISABLE=1 \
    NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_NCHANNELS=2 NCCL_MAX_P2P_NCHANNELS=2 \
    NCCL_LOCAL_REGISTER=0 NCCL_GRAPH_REGISTER=0 NCCL_WIN_ENABLE=0 \
    NCCL_CUMEM_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_GIN_ENABLE=0 NCCL_RAS_ENABLE=0";

/// Settings of ranks whose device memory is that of the stand-in's GPU.
pub fn gpu() -> String {
    let driver = built_library("libdevmem_gpu_stub.so");
    let driver = driver.display();
    format!(
        "DEVMEM_LIBCUDA={driver} NCCL_DEVMEM_POOL=16777216 NCCL_NET_GDR_LEVEL=SYS NCCL_NET_GDR_READ=1"
    )
}

/// Longer than any case takes, on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);
/// Of a log that a failure shows.
const LOG_BYTES: usize = 3000;

/// What connects the ranks.
#[derive(Clone, Copy)]
pub enum Wire<'a> {
    /// The kernel's loopback.
    Loopback,
    /// Two stacks in user space on a wire that shares memory.
    Shared,
    /// Two stacks in user space on a cable with these impairments.
    Cable(&'static str),
    /// Two NICs of the kernel, with device memory; the second is in another namespace.
    Nics(&'a Bench),
}

/// A case, and the settings of its ranks: `NAME=VALUE`, separated by spaces.
pub struct Play<'a> {
    case: &'static str,
    version: &'static str,
    ranks: usize,
    wire: Wire<'a>,
    settings: String,
}

/// How a rank ended.
pub struct Ended {
    pub status: ExitStatus,
    said: String,
    /// What NCCL logged.
    pub log: String,
}

/// Ends a process when its test is over.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a setting that the test gave to this process.
pub fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("the test sets {name}"))
}

fn variables(settings: &str) -> impl Iterator<Item = (&str, &str)> {
    settings
        .split_whitespace()
        .filter_map(|setting| setting.split_once('='))
}

impl<'a> Play<'a> {
    pub fn of(case: &'static str, version: &'static str, ranks: usize, settings: &str) -> Self {
        let (wire, settings) = (Wire::Loopback, settings.to_owned());
        Self {
            case,
            version,
            ranks,
            wire,
            settings,
        }
    }

    pub fn over(self, wire: Wire<'a>) -> Self {
        Self { wire, ..self }
    }

    /// Runs all ranks to their end; `differs` has settings of some of them. If the library is not here, or cannot run here, skips the test.
    pub fn run(&self, test: &str, differs: fn(usize) -> &'static str) -> Option<Vec<Ended>> {
        let skip = |reason: &str| skip(test, "nccl", &format!("NCCL {}: {reason}", self.version));
        let library = std::env::var_os(LIBRARIES).map(PathBuf::from);
        let library = library.map(|folder| folder.join(self.version).join("libnccl.so.2"));
        let Some(library) = library.filter(|library| library.exists()) else {
            skip("its library is not there");
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder = folder.path();
        let plugin = built_library("libnccl_net_devmem.so");
        symlink(plugin, folder.join("libnccl-net-devmem.so")).expect("the folder is writable");
        symlink(library, folder.join("libnccl.so.2")).expect("the folder is writable");
        let _cable = match self.wire {
            Wire::Cable(impairment) => Some(start_cable(folder, impairment)),
            _ => None,
        };
        let mut running = Vec::new();
        for rank in 0..self.ranks {
            running.push(Running(self.start(rank, folder, differs(rank))));
            if matches!(self.wire, Wire::Shared) && rank == 0 {
                // The other end connects to it.
                wait_for(&folder.join("wire"));
            }
        }
        let begun = Instant::now();
        let ends = running
            .into_iter()
            .enumerate()
            .map(|(rank, mut running)| Ended {
                status: wait(&mut running.0, begun),
                said: read(&folder.join(format!("said.{rank}"))),
                log: read(&folder.join(format!("log.{rank}"))),
            });
        let ended: Vec<_> = ends.collect();
        match ended
            .iter()
            .find(|rank| rank.status.code() == Some(UNSUITED))
        {
            Some(unsuited) => skip(unsuited.said.trim()),
            None => return Some(ended),
        }
        None
    }

    fn start(&self, rank: usize, folder: &Path, differs: &str) -> Child {
        let said = std::fs::File::create(folder.join(format!("said.{rank}")));
        let said = said.expect("the folder is writable");
        let mut command = this_program(self.case, folder);
        command
            .env(RANK, rank.to_string())
            .env(RANKS, self.ranks.to_string());
        // By its name, as it is installed: NCCL takes a path since 2.21.
        command
            .env("NCCL_NET_PLUGIN", "devmem")
            .env("LD_LIBRARY_PATH", folder);
        command.env("NCCL_HOSTID", format!("released-{rank}"));
        command.env("NCCL_DEBUG_FILE", folder.join(format!("log.{rank}")));
        command.env("DEVMEM_TCP_DEVICES", self.wire.device(rank, folder));
        command.env("NCCL_SOCKET_IFNAME", self.wire.interface(rank));
        let settings = [SETTINGS, &self.settings, differs];
        command.envs(settings.into_iter().flat_map(variables));
        command
            .stdout(said.try_clone().expect("a descriptor"))
            .stderr(said);
        let mut start = || command.spawn().expect("this program can be started");
        match self.wire {
            Wire::Nics(bench) if rank == 1 => bench.at_peer(start),
            _ => start(),
        }
    }

    /// Runs all ranks, which must succeed over this plugin. Returns their logs; none if the test is skipped.
    pub fn succeed(&self, test: &str) -> Vec<String> {
        let ended = self.run(test, |_| "").unwrap_or_default();
        let is_right =
            |rank: &Ended| rank.status.success() && rank.log.contains("Using network Devmem");
        assert!(ended.iter().all(is_right), "{}", self.told(&ended));
        ended.into_iter().map(|rank| rank.log).collect()
    }

    /// Returns what a failure shows.
    pub fn told(&self, ended: &[Ended]) -> String {
        let mut text = format!("{} with NCCL {}", self.case, self.version);
        for (rank, Ended { status, said, log }) in ended.iter().enumerate() {
            let log = log
                .get(log.len().saturating_sub(LOG_BYTES)..)
                .unwrap_or(log);
            write!(text, "\n--- rank {rank}: {status}\n{said}\n{log}").expect("text grows");
        }
        text
    }
}

impl Wire<'_> {
    /// Returns the interface of the kernel that a rank uses.
    fn interface(self, rank: usize) -> String {
        match self {
            Self::Nics(bench) if rank == 0 => bench.name.clone(),
            Self::Nics(bench) => bench.peer_nic().0,
            _ => "lo".to_owned(),
        }
    }

    fn device(self, rank: usize, folder: &Path) -> String {
        let unix = |link: &str, file: &str| {
            format!(
                "user:{link}:{}:10.77.0.{}/24",
                folder.join(file).display(),
                rank + 1
            )
        };
        match (self, rank) {
            (Self::Loopback | Self::Nics(_), _) => format!("kernel:{}", self.interface(rank)),
            (Self::Shared, 0) => unix("unix-listen", "wire"),
            (Self::Shared, _) => unix("unix", "wire"),
            (Self::Cable(_), rank) => unix("unix", &format!("end{rank}")),
        }
    }
}

/// Returns the command that starts this program in a role.
fn this_program(role: &str, folder: &Path) -> Command {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command
        .env(CASE, role)
        .env(FOLDER, folder)
        .stdin(Stdio::null());
    command
}

/// Starts a cable between two stacks in user space.
fn start_cable(folder: &Path, impairment: &str) -> Running {
    let mut command = this_program("cable", folder);
    command.env(IMPAIRMENT, impairment);
    let cable = Running(command.spawn().expect("this program can be started"));
    for end in ["end0", "end1"] {
        wait_for(&folder.join(end));
    }
    cable
}

/// Plays the cable, until the test kills it.
pub fn cable() {
    let end = |end: &str| WireEnd {
        port: WirePort::Listen(PathBuf::from(given(FOLDER)).join(end)),
        netns: None,
    };
    let plan = WirePlan {
        ends: [end("end0"), end("end1")],
        mtu: 1500,
        impairment: given(IMPAIRMENT).parse().expect("impairments"),
        limit: Some(LIMIT),
        json: false,
    };
    let ended = gvnic_server::cable::run(&plan);
    panic!("the cable ended before the test: {ended:?}");
}

fn read(file: &Path) -> String {
    let bytes = std::fs::read(file).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits until a process has made a file.
pub fn wait_for(file: &Path) {
    let begun = Instant::now();
    while !file.exists() {
        assert!(begun.elapsed() < LIMIT, "{} was not made", file.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for the end of a rank, and ends it at the limit.
fn wait(rank: &mut Child, begun: Instant) -> ExitStatus {
    loop {
        if let Some(status) = rank.try_wait().expect("a child") {
            return status;
        }
        if begun.elapsed() > LIMIT {
            rank.kill().expect("a child");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
