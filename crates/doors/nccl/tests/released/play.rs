//! Cases that ranks play, in processes of this program. Each rank has a NCCL_HOSTID of its own, so that NCCL takes the ranks for machines, and
//! uses its network between them.

use std::fmt::Write;
use std::fs::{File, read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use devmem_linux::test_util::{built_library, skip, wait_or_kill};

use crate::bench::Bench;
use crate::wires::{Running, Wire, this_program};

/// Environment variable: the folder with the libraries.
pub const LIBRARIES: &str = "DEVMEM_TEST_NCCL";

/// Environment variables of a rank.
pub const CASE: &str = "NCCL_RELEASED_CASE";
pub const FOLDER: &str = "NCCL_RELEASED_FOLDER";
pub const RANK: &str = "NCCL_RELEASED_RANK";
pub const RANKS: &str = "NCCL_RELEASED_RANKS";

/// The exit status of a rank whose library cannot run here; it has printed why.
pub const UNSUITED: i32 = 77;

/// What every rank is told: the network; what is played of the kernels; and what a GPU would be needed for.
const SETTINGS: &str = "\
    NCCL_NET=Devmem NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET \
    NCCL_SOCKET_FAMILY=AF_INET NCCL_IB_DISABLE=1 \
    NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_NCHANNELS=2 NCCL_MAX_P2P_NCHANNELS=2 \
    NCCL_LOCAL_REGISTER=0 NCCL_GRAPH_REGISTER=0 NCCL_WIN_ENABLE=0 \
    NCCL_CUMEM_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_GIN_ENABLE=0 NCCL_RAS_ENABLE=0";

/// What a rank is told, too, whose device memory is that of the stand-in's GPU.
const GPU_SETTINGS: &str = "NCCL_DEVMEM_POOL=16777216 NCCL_NET_GDR_LEVEL=SYS NCCL_NET_GDR_READ=1";

/// Longer than any case takes, on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);
/// Of a log that a failure shows.
const LOG_BYTES: usize = 3000;

/// A case, and the settings of its ranks: `NAME=VALUE`, separated by spaces.
pub struct Play<'a> {
    case: &'static str,
    version: &'static str,
    ranks: usize,
    settings: String,
    wire: Wire,
    /// Two NICs of the kernel in place of the wire; the second is in another namespace.
    nics: Option<&'a Bench>,
}

/// How a rank ended.
pub struct Ended {
    pub status: ExitStatus,
    /// What it printed.
    pub said: String,
    /// What NCCL logged.
    pub log: String,
}

/// Returns a setting that the test gave to this process.
pub fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("the test sets {name}"))
}

fn variables(settings: &str) -> impl Iterator<Item = (&str, &str)> {
    let words = settings.split_whitespace();
    words.filter_map(|setting| setting.split_once('='))
}

impl<'a> Play<'a> {
    pub fn of(case: &'static str, version: &'static str, ranks: usize, settings: &str) -> Self {
        Self {
            case,
            version,
            ranks,
            settings: settings.to_owned(),
            wire: Wire::Loopback,
            nics: None,
        }
    }

    pub fn over(self, wire: Wire) -> Self {
        Self { wire, ..self }
    }

    pub fn over_nics(self, nics: &'a Bench) -> Self {
        let nics = Some(nics);
        Self { nics, ..self }
    }

    /// Lets device memory be memory of the stand-in's GPU, which behaves by `plan`.
    pub fn with_gpu(self, plan: &str) -> Self {
        let driver = built_library("libdevmem_gpu_stub.so");
        let driver = driver.display();
        self.and(&format!(
            "{GPU_SETTINGS} DEVMEM_LIBCUDA={driver} STUB_GPU={plan}"
        ))
    }

    /// Adds settings, which win.
    pub fn and(self, more: &str) -> Self {
        let settings = format!("{} {more}", self.settings);
        Self { settings, ..self }
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
        let _cable = self.wire.start_cable(folder);
        let mut running = Vec::new();
        for rank in 0..self.ranks {
            running.push(Running(self.start(rank, folder, differs(rank))));
            self.wire.wait_for_rank(rank, folder);
        }
        let text = |name: &str, rank: usize| {
            let bytes = read(folder.join(format!("{name}.{rank}"))).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let mut ended = Vec::new();
        for (rank, Running(process)) in running.iter_mut().enumerate() {
            let status = wait_or_kill(process, LIMIT);
            ended.push(Ended {
                status: status.unwrap_or_else(|| process.wait().expect("a child")),
                said: text("said", rank),
                log: text("log", rank),
            });
        }
        let mut all = ended.iter();
        if let Some(rank) = all.find(|rank| rank.status.code() == Some(UNSUITED)) {
            skip(rank.said.trim());
            return None;
        }
        Some(ended)
    }

    fn start(&self, rank: usize, folder: &Path, differs: &str) -> Child {
        let said = File::create(folder.join(format!("said.{rank}")));
        let said = said.expect("the folder is writable");
        // In the kernel, for the bootstrap.
        let interface = match self.nics {
            Some(nics) if rank == 0 => nics.name.clone(),
            Some(nics) => nics.peer_nic().0,
            None => "lo".to_owned(),
        };
        let device = match self.nics {
            Some(_) => format!("kernel:{interface}"),
            None => self.wire.device(rank, folder),
        };
        let mut command = this_program();
        command
            .env(CASE, self.case)
            .env(FOLDER, folder)
            .env(RANK, rank.to_string())
            .env(RANKS, self.ranks.to_string())
            // By its name, as it is installed: NCCL takes a path since 2.21.
            .env("NCCL_NET_PLUGIN", "devmem")
            .env("LD_LIBRARY_PATH", folder)
            .env("DEVMEM_TCP_DEVICES", device)
            .env("NCCL_SOCKET_IFNAME", interface)
            .env("NCCL_HOSTID", format!("released-{rank}"))
            .env("NCCL_DEBUG_FILE", folder.join(format!("log.{rank}")))
            .stdout(said.try_clone().expect("a descriptor"))
            .stderr(said);
        let settings = [SETTINGS, &self.settings, differs];
        command.envs(settings.into_iter().flat_map(variables));
        let mut start = || command.spawn().expect("this program can be started");
        match self.nics {
            Some(nics) if rank > 0 => nics.at_peer(start),
            _ => start(),
        }
    }

    /// Runs all ranks, which must succeed over this plugin. Returns their logs; none if the test is skipped.
    pub fn succeed(&self, test: &str) -> Vec<String> {
        let ended = self.run(test, |_| "").unwrap_or_default();
        let is_right =
            |rank: &Ended| rank.status.success() && rank.log.contains("Using network Devmem");
        assert!(ended.iter().all(is_right), "{}", self.report(&ended));
        ended.into_iter().map(|rank| rank.log).collect()
    }

    /// Returns what a failure shows.
    pub fn report(&self, ended: &[Ended]) -> String {
        let mut text = format!("{} with NCCL {}", self.case, self.version);
        for (rank, Ended { status, said, log }) in ended.iter().enumerate() {
            let begin = log.floor_char_boundary(log.len().saturating_sub(LOG_BYTES));
            write!(
                text,
                "\n--- rank {rank}: {status}\n{said}\n{}",
                &log[begin..]
            )
            .expect("text");
        }
        text
    }
}
