//! What connects the ranks of a test, which are processes: `judge` and `released` share it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gvnic_server::plan::{Lateness, WireEnd, WirePlan, WirePort};

/// Environment variables of a cable: the folder with its ends, and what it does to packets.
const CABLE: &str = "NCCL_TEST_CABLE";
const IMPAIRMENT: &str = "NCCL_TEST_IMPAIRMENT";

/// Longer than any case takes, on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// What connects the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// The kernel's loopback, with its TCP on both sides.
    Loopback,
    /// Two stacks in user space on a cable with these impairments.
    Cable(&'static str),
    /// Two stacks in user space on a wire that shares memory.
    Shared,
    /// A stack in user space, and the kernel's, at the ends of the TAP of this number.
    #[allow(dead_code, reason = "only the judge makes TAPs")]
    Tap(u8),
    /// Two stacks in user space, with packet sockets on the ends of the veth pair of this number.
    #[allow(dead_code, reason = "only the judge makes veth pairs")]
    Packet(u8),
}

/// A process that ends when its test is over.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Wire {
    /// Returns the NIC of a rank, as `DEVMEM_TCP_DEVICES` has it.
    pub fn device(self, rank: usize, folder: &Path) -> String {
        let end = rank + 1;
        let unix = |link: &str, file: &str| {
            let file = folder.join(file);
            format!("user:{link}:{}:10.77.0.{end}/24", file.display())
        };
        match (self, rank) {
            (Self::Loopback, _) => "kernel:lo".to_owned(),
            (Self::Cable(_), _) => unix("unix", &format!("end{end}")),
            (Self::Shared, 0) => unix("unix-listen", "wire"),
            (Self::Shared, _) => unix("unix", "wire"),
            (Self::Tap(number), 0) => format!("user:tap:judge{number}:10.99.{number}.2/24"),
            (Self::Tap(number), _) => format!("kernel:judge{number}"),
            (Self::Packet(number), _) => {
                format!("user:packet:judge{number}{end}:10.98.{number}.{end}/24")
            }
        }
    }

    /// Starts the cable, if this is one.
    pub fn start_cable(self, folder: &Path) -> Option<Running> {
        let Self::Cable(impairment) = self else {
            return None;
        };
        let mut command = this_program();
        command.env(CABLE, folder).env(IMPAIRMENT, impairment);
        let cable = Running(command.spawn().expect("this program can be started"));
        ends(folder).iter().for_each(|end| wait_for(end));
        Some(cable)
    }

    /// Waits, after the start of a rank, until the next one can be started.
    pub fn wait_for_rank(self, rank: usize, folder: &Path) {
        // The second rank connects to the socket of the first one.
        if self == Self::Shared && rank == 0 {
            wait_for(&folder.join("wire"));
        }
    }
}

/// Returns the command that starts this program again.
pub fn this_program() -> Command {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

fn ends(folder: &Path) -> [PathBuf; 2] {
    ["end1", "end2"].map(|end| folder.join(end))
}

/// Plays a cable until the test kills it, if a test has started this program as one.
pub fn play_cable() {
    let Some(folder) = std::env::var_os(CABLE) else {
        return;
    };
    let impairment = std::env::var(IMPAIRMENT).expect("the test sets it");
    let end = |end| WireEnd {
        port: WirePort::Listen(end),
        netns: None,
    };
    let plan = WirePlan {
        ends: ends(Path::new(&folder)).map(end),
        mtu: 1500,
        impairment: impairment.parse().expect("impairments"),
        limit: Some(LIMIT),
        json: false,
        lateness: Lateness::CatchesUp,
    };
    let ended = gvnic_server::cable::run(&plan);
    panic!("the cable ended before the test: {ended:?}");
}

/// Waits until a process has made a file.
pub fn wait_for(file: &Path) {
    let begun = Instant::now();
    while !file.exists() {
        assert!(begun.elapsed() < LIMIT, "{} was not made", file.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}
