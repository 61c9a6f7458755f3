//! Checks of kernel, privileges and exporters.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use devmem_uapi::{DmabufToken, Errno, FragToken, netdev as uapi};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::{Check, CheckState};
use crate::dmabuf::{DmabufFd, ExportError, dma_heaps, udmabuf_limits};
use crate::netlink::GenericSocket;
use crate::sys;

/// The relevant options of a kernel configuration.
const OPTIONS: [&str; 6] = [
    "CONFIG_NET_DEVMEM",
    "CONFIG_PAGE_POOL",
    "CONFIG_PAGE_POOL_STATS",
    "CONFIG_UDMABUF",
    "CONFIG_DMABUF_HEAPS",
    "CONFIG_DMABUF_HEAPS_SYSTEM",
];
/// Limit on the size of a configuration, which is a few hundred kilobytes of text.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// The kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelFacts {
    /// Its release: `6.18.2`.
    pub release: String,
    /// Where its configuration was read, if anywhere.
    pub config_source: Option<String>,
    /// The values of the relevant options: `y`, `m`, or `n`. Empty if the configuration could not be read.
    pub config: BTreeMap<&'static str, String>,
}

impl KernelFacts {
    pub(super) fn read() -> Self {
        let release = rustix::system::uname();
        let release = release.release().to_string_lossy().into_owned();
        let config = kernel_config(&release);
        Self {
            config_source: config.as_ref().map(|(source, _)| source.clone()),
            config: config.map_or_else(BTreeMap::new, |(_, text)| options(&text)),
            release,
        }
    }
}

/// Finds the configuration that the kernel was built with.
fn kernel_config(release: &str) -> Option<(String, String)> {
    let files = [
        format!("/boot/config-{release}"),
        format!("/lib/modules/{release}/config"),
    ];
    for path in files {
        let read = fs::File::open(&path).and_then(|file| {
            let mut text = String::new();
            file.take(CONFIG_BYTES_MAX).read_to_string(&mut text)?;
            Ok(text)
        });
        if let Ok(text) = read {
            return Some((path, text));
        }
    }
    const COMPRESSED: &str = "/proc/config.gz";
    if !Path::new(COMPRESSED).exists() {
        return None;
    }
    let gzip = Command::new("gzip")
        .args(["-dc", COMPRESSED])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let text = gzip.ok().filter(|out| out.status.success())?.stdout;
    Some((COMPRESSED.to_owned(), String::from_utf8(text).ok()?))
}

fn options(config: &str) -> BTreeMap<&'static str, String> {
    let value = |option: &str| {
        let mut lines = config.lines().filter_map(|line| line.split_once('='));
        let set = lines.find(|(name, _)| *name == option);
        set.map_or("n", |(_, value)| value).to_owned()
    };
    OPTIONS.map(|option| (option, value(option))).into()
}

/// Checks the kernel and the privileges of this process.
pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![sockets()];
    checks.extend(netdev_family());
    checks.push(capability());
    checks.push(descriptors());
    checks.push(completions_limit());
    checks
}

/// Checks whether TCP sockets support `SO_DEVMEM_DONTNEED`, by returning a token that was never lent.
fn sockets() -> Check {
    const NAME: &str = "devmem_sockets";
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    let socket = match socket {
        Ok(socket) => socket,
        Err(errno) => {
            return Check::new(NAME, CheckState::Unknown, format!("no TCP socket: {errno}"));
        }
    };
    let nobodys = [DmabufToken::one(FragToken(u32::MAX))];
    match sys::message::dontneed(socket.as_fd(), &nobodys) {
        Ok(_) => Check::new(NAME, CheckState::Good, "TCP sockets support device memory"),
        Err(Errno::ENOPROTOOPT) => Check::new(
            NAME,
            CheckState::Missing,
            "TCP sockets do not support device memory",
        )
        .remedy("use Linux 6.12 or later with CONFIG_NET_DEVMEM, or the user-space backend"),
        Err(errno) => Check::new(NAME, CheckState::Unknown, errno.to_string()),
    }
}

/// Checks with generic netlink which bindings the kernel supports.
fn netdev_family() -> Vec<Check> {
    let commands = [
        ("bind_rx", uapi::CMD_BIND_RX, "6.12"),
        ("bind_tx", uapi::CMD_BIND_TX, "6.16"),
    ];
    let family = GenericSocket::open(uapi::FAMILY_NAME).map(|socket| socket.family().clone());
    let check = |(name, command, since): (&'static str, u8, &str)| match &family {
        Ok(family) if family.has(command) => {
            Check::new(name, CheckState::Good, "the kernel supports the request")
        }
        Ok(_) => Check::new(
            name,
            CheckState::Missing,
            "the kernel does not support the request",
        )
        .remedy(format!("use Linux {since} or later")),
        Err(error) => Check::new(name, CheckState::Missing, error.to_string())
            .remedy(format!("use Linux {since} or later")),
    };
    commands.map(check).into()
}

/// `CAP_NET_ADMIN` (linux include/uapi/linux/capability.h).
const CAP_NET_ADMIN: u32 = 12;

fn capability() -> Check {
    const NAME: &str = "cap_net_admin";
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let initial = fs::read_to_string("/proc/self/uid_map").map(|map| is_initial(&map));
    match (effective(&status), initial.unwrap_or(false)) {
        (Some(caps), true) if caps & (1 << CAP_NET_ADMIN) != 0 => {
            Check::new(NAME, CheckState::Good, "held in the initial user namespace")
        }
        (Some(caps), false) if caps & (1 << CAP_NET_ADMIN) != 0 => {
            Check::new(NAME, CheckState::Mendable, "held only in a user namespace")
                .remedy("before Linux 7.2, bind outside of the container")
        }
        (Some(_), _) => Check::new(
            NAME,
            CheckState::Mendable,
            "not held: set-up and bind-rx require it",
        )
        .remedy("run as root, or: setcap cap_net_admin+ep PROGRAM"),
        (None, _) => Check::new(NAME, CheckState::Unknown, "not found in /proc/self/status"),
    }
}

fn effective(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Returns whether the map is that of the initial user namespace, which maps every user to itself.
fn is_initial(uid_map: &str) -> bool {
    let words: Vec<_> = uid_map.split_whitespace().collect();
    words == ["0", "0", "4294967295"]
}

fn descriptors() -> Check {
    const NAME: &str = "open_files";
    /// Enough for the sockets, bindings and dma-bufs of a small program.
    const ENOUGH: u64 = 256;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < ENOUGH => Check::new(
            NAME,
            CheckState::Mendable,
            format!("at most {limit} descriptors"),
        )
        .remedy("ulimit -n 65536"),
        Some(limit) => Check::new(
            NAME,
            CheckState::Good,
            format!("at most {limit} descriptors"),
        ),
        None => Check::new(NAME, CheckState::Good, "no limit"),
    }
}

/// Zero-copy sends are charged against `optmem_max` until their completions are read.
fn completions_limit() -> Check {
    const NAME: &str = "optmem_max";
    const PATH: &str = "/proc/sys/net/core/optmem_max";
    /// The kernel's default since 6.7. With the smaller default of older kernels, sends soon failed with `ENOBUFS`.
    const ENOUGH: u64 = 128 << 10;
    let limit = fs::read_to_string(PATH).ok();
    match limit.and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(limit) if limit < ENOUGH => Check::new(
            NAME,
            CheckState::Mendable,
            format!("{limit} bytes: few zero-copy sends can be in flight"),
        )
        .remedy("sysctl net.core.optmem_max=1048576"),
        Some(limit) => Check::new(NAME, CheckState::Good, format!("{limit} bytes")),
        // The file does not exist in a network namespace other than the initial one.
        None => Check::new(NAME, CheckState::Unknown, format!("{PATH} cannot be read")),
    }
}

/// Tries each exporter with one page.
pub(super) fn exporters() -> Vec<Check> {
    let page = rustix::param::page_size();
    /// Limits of a terabyte and more are not reported.
    const NO_LIMIT_MB: u64 = 1 << 20;
    let limits = udmabuf_limits().filter(|limits| limits.size_limit_mb < NO_LIMIT_MB);
    let limits = limits.map_or_else(String::new, |limits| {
        format!(", at most {} MiB each", limits.size_limit_mb)
    });
    let mut checks = vec![tried("udmabuf", DmabufFd::udmabuf(page), &limits)];
    let heaps = dma_heaps();
    if heaps.is_empty() {
        checks.push(tried("dma_heap", DmabufFd::heap("system", page), ""));
    }
    for heap in heaps {
        let made = DmabufFd::heap(&heap, page);
        checks.push(tried("dma_heap", made, &format!(" ({heap})")));
    }
    checks
}

fn tried(name: &'static str, made: Result<DmabufFd, ExportError>, suffix: &str) -> Check {
    match made {
        Ok(_) => Check::new(name, CheckState::Good, format!("works{suffix}")),
        Err(error) => {
            let check = Check::new(
                name,
                CheckState::Missing,
                format!("{}{suffix}", error.cause),
            );
            match error.cause.hint {
                Some(hint) => check.remedy(hint),
                None => check,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_from_a_configuration() {
        let config = "# CONFIG_UDMABUF is not set\nCONFIG_NET_DEVMEM=y\nCONFIG_DMABUF_HEAPS=m\n";
        let options = options(config);
        assert_eq!(options["CONFIG_NET_DEVMEM"], "y");
        assert_eq!(options["CONFIG_DMABUF_HEAPS"], "m");
        assert_eq!(options["CONFIG_UDMABUF"], "n");
        assert_eq!(options.len(), OPTIONS.len());
    }

    #[test]
    fn capabilities_are_read_and_an_invalid_status_file_is_unknown() {
        assert_eq!(
            effective("Name:\tx\nCapEff:\t0000000000001000\n"),
            Some(0x1000)
        );
        assert_eq!(effective("CapEff:\tzz\n"), None);
        assert_eq!(effective(""), None);
    }

    #[test]
    fn the_initial_user_namespace_is_distinguished_from_others() {
        assert!(is_initial("         0          0 4294967295\n"));
        assert!(!is_initial("         0       1000          1\n"));
        assert!(!is_initial(""));
    }
}
