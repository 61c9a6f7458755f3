//! The NVMe/TCP target of the guest's kernel, nvmet: its configuration, and the one setting that only a host can make.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use devmem_linux::netns::NetNs;
use lab::job::PEER_NETNS;
use nvme::command::{ANY_CONTROLLER, Connect, ConnectData, Sqe};
use nvme::pdu::{
    Capsule, Cqe, Digests, FromController, Handshake, HandshakeRequest, Parsed,
    parse_from_controller,
};
use nvme::property::{self, Capabilities, Phase};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::row::Skip;
use super::traffic;

/// Where the kernel's targets are configured.
const CONFIGFS: &str = "/sys/kernel/config";
const NVMET: &str = "/sys/kernel/config/nvmet";
/// The subsystem.
pub const NQN: &str = "nqn.2014-08.org.devmem-tcp:lab";
const PORT: u16 = 4420;
/// Name of this host.
pub const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:01234567-89ab-4def-8123-456789abcdef";

/// Network namespace of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkSide {
    /// That of the other NIC.
    Peer,
    /// That of the rows.
    Here,
}

/// A running target. Its namespaces are files or block devices, from number 1 on. Dropping it ends the target.
pub struct Nvmet {
    host: IpAddr,
    side: NetworkSide,
    namespaces: usize,
}

impl Nvmet {
    /// Starts a target at `host`.
    ///
    /// # Errors
    ///
    /// [`Skip`] if the kernel has none; the kernel refuses.
    pub fn start(host: IpAddr, side: NetworkSide, disks: &[&Path]) -> anyhow::Result<Self> {
        let target = Self::prepare(host, side, disks)?;
        target.listen().context("let nvmet listen")?;
        Ok(target)
    }

    /// Prepares a target that does not listen yet.
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start).
    pub fn prepare(host: IpAddr, side: NetworkSide, disks: &[&Path]) -> anyhow::Result<Self> {
        match mount("none", CONFIGFS, "configfs", MountFlags::empty(), None) {
            Ok(()) | Err(Errno::BUSY) => {}
            Err(_) => return Err(Skip("the kernel has no configfs".to_owned()).into()),
        }
        if !Path::new(NVMET).is_dir() {
            let missing = "the kernel has no nvmet, or its module is not in the guest";
            return Err(Skip(missing.to_owned()).into());
        }
        let target = Self {
            host,
            side,
            namespaces: disks.len(),
        };
        target.configure(disks).context("configure nvmet")?;
        Ok(target)
    }

    fn configure(&self, disks: &[&Path]) -> io::Result<()> {
        fs::create_dir(subsystem())?;
        fs::write(subsystem().join("attr_allow_any_host"), "1")?;
        for (nsid, disk) in (1..).zip(disks) {
            let namespace = namespace(nsid);
            fs::create_dir(&namespace)?;
            let path = disk.as_os_str().as_encoded_bytes();
            fs::write(namespace.join("device_path"), path)?;
            if disk.is_file() {
                fs::write(namespace.join("buffered_io"), "1")?;
            }
            fs::write(namespace.join("enable"), "1")?;
        }
        fs::create_dir(port())?;
        let (address, service) = (self.host.to_string(), PORT.to_string());
        for (name, value) in [
            ("addr_trtype", "tcp"),
            ("addr_adrfam", "ipv4"),
            ("addr_traddr", &address),
            ("addr_trsvcid", &service),
        ] {
            fs::write(port().join(name), value)?;
        }
        Ok(())
    }

    /// Limits the transfer of a command to a power of two of pages (MDTS), before the port listens.
    ///
    /// # Errors
    ///
    /// [`Skip`] if the kernel has no such limit: before Linux 7.1.
    pub fn limit_transfers(&self, pages_log2: u8) -> anyhow::Result<()> {
        let limit = port().join("param_mdts");
        if !limit.exists() {
            return Err(Skip("nvmet has no limit of transfers".to_owned()).into());
        }
        fs::write(limit, pages_log2.to_string()).context("limit transfers")
    }

    /// Makes the port listen.
    pub fn listen(&self) -> io::Result<()> {
        // The socket belongs to the network namespace of the thread that makes the link.
        self.at_home(|| std::os::unix::fs::symlink(subsystem(), link()))
    }

    /// Ends the port and its connections.
    pub fn end(&self) -> io::Result<()> {
        fs::remove_file(link())
    }

    /// Takes a namespace away.
    pub fn disable(&self, nsid: usize) -> io::Result<()> {
        fs::write(namespace(nsid).join("enable"), "0")
    }

    /// Makes the target look for the size of a namespace again.
    pub fn revalidate(&self, nsid: usize) -> io::Result<()> {
        fs::write(namespace(nsid).join("revalidate_size"), "1")
    }

    /// Returns the URL of the host.
    pub fn host_url(&self) -> String {
        format!("nvme://{}:{PORT}", self.host)
    }

    /// Returns the URL of a namespace, with parameters behind an ampersand, or none.
    pub fn url(&self, nsid: usize, parameters: &str) -> String {
        format!("{}{parameters}", url(self.host, nsid))
    }

    /// Makes a namespace read-only, as a host does that sets its feature Namespace Write Protection.
    ///
    /// # Errors
    ///
    /// The target refuses.
    pub fn protect(&self, nsid: u32) -> anyhow::Result<()> {
        let mut host = self.at_home(|| Host::connect((self.host, PORT).into()))?;
        host.enable()?;
        host.command(Sqe::protect(nsid), &[])
            .context("protect the namespace")?;
        Ok(())
    }

    /// Runs `work` in the network namespace of the target.
    fn at_home<T, E>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E>
    where
        E: From<io::Error>,
    {
        if self.side == NetworkSide::Here {
            return work();
        }
        let ours = NetNs::current().map_err(io::Error::other)?;
        let peers = NetNs::open(PEER_NETNS).map_err(io::Error::other)?;
        peers.join().map_err(io::Error::other)?;
        let done = work();
        ours.join().map_err(io::Error::other)?;
        done
    }
}

impl Drop for Nvmet {
    fn drop(&mut self) {
        // In reverse; what was not made is not there.
        let _ = fs::remove_file(link());
        let _ = fs::remove_dir(port());
        for nsid in 1..=self.namespaces {
            let _ = self.disable(nsid);
            let _ = fs::remove_dir(namespace(nsid));
        }
        let _ = fs::remove_dir(subsystem());
    }
}

/// Returns the URL of a namespace of a target at `host`.
pub fn url(host: IpAddr, nsid: usize) -> String {
    format!("nvme://{host}:{PORT}/{NQN}?nsid={nsid}")
}

/// The admin queue of a host, over the kernel's sockets: commands without data, one after another.
struct Host(TcpStream);

impl Host {
    fn connect(to: std::net::SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(to).context("connect to the target")?;
        traffic::limit(&stream)?;
        let mut host = Self(stream);
        host.0.write_all(&Handshake::request(HandshakeRequest {
            version: 0,
            alignment: 0,
            digests: Digests::default(),
            most_transfers: 0,
        }))?;
        let FromController::Handshake(_) = host.read()? else {
            bail!("the target does not answer the handshake");
        };
        let data = ConnectData {
            host_id: [1; 16],
            controller_id: ANY_CONTROLLER,
            subsystem_nqn: NQN.to_owned(),
            host_nqn: HOST_NQN.to_owned(),
        };
        let connect = Connect {
            queue: 0,
            entries: 32,
            without_flow_control: false,
            keep_alive_ms: 0,
        };
        host.command(Sqe::connect(connect), &data.to_bytes())
            .context("connect the admin queue")?;
        Ok(host)
    }

    fn enable(&mut self) -> anyhow::Result<()> {
        let cap = self.command(Sqe::property_get(property::CAP, true), &[])?;
        let enabled = property::enabled(Capabilities::of(cap.result.get()));
        self.command(Sqe::property_set(property::CC, enabled), &[])?;
        let csts = self.command(Sqe::property_get(property::CSTS, false), &[])?;
        // nvmet is ready when the command has ended.
        ensure!(
            Phase::of(csts.result.get() as u32) == Phase::Ready,
            "the controller is not ready"
        );
        Ok(())
    }

    fn command(&mut self, sqe: Sqe, data: &[u8]) -> anyhow::Result<Cqe> {
        let mut bytes = Vec::new();
        Capsule::write_all(&sqe.named(1), data, Digests::default(), &mut bytes);
        self.0.write_all(&bytes)?;
        let FromController::Response(cqe) = self.read()? else {
            bail!("the target sends something other than a response");
        };
        ensure!(
            cqe.status().is_success(),
            "the target answers: {}",
            cqe.status()
        );
        Ok(cqe)
    }

    fn read(&mut self) -> anyhow::Result<FromController> {
        let mut bytes = Vec::new();
        loop {
            match parse_from_controller(&bytes, Digests::default()) {
                Ok(Parsed::Whole(pdu)) => return Ok(pdu),
                Ok(Parsed::More(more)) => {
                    let before = bytes.len();
                    bytes.resize(before + more, 0);
                    self.0.read_exact(&mut bytes[before..])?;
                }
                Err(error) => bail!("a PDU of the target: {}", error.problem),
            }
        }
    }
}

fn subsystem() -> PathBuf {
    Path::new(NVMET).join("subsystems").join(NQN)
}

fn namespace(nsid: usize) -> PathBuf {
    subsystem().join("namespaces").join(nsid.to_string())
}

fn port() -> PathBuf {
    Path::new(NVMET).join("ports/1")
}

fn link() -> PathBuf {
    port().join("subsystems").join(NQN)
}
