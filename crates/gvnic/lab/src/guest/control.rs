//! The port to the host: a guest sends the command's output, files, and how it all ended, in frames.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;

use super::wait::wait_for;
use crate::frame::{self, FrameKind, MAX_FRAME_BYTES};
use crate::job::CONTROL_PORT;

/// The folder of virtio console ports.
const PORTS: &str = "/sys/class/virtio-ports";

/// The port.
#[derive(Debug)]
pub struct Control(Mutex<File>);

impl Control {
    /// Finds and opens it, when the file systems are mounted.
    ///
    /// # Errors
    ///
    /// There is none: the kernel lacks the driver.
    pub fn open() -> anyhow::Result<Self> {
        let ports = wait_for("the control port", || {
            let ports = fs::read_dir(PORTS).ok()?;
            let named = ports.flatten().find(|port| {
                fs::read_to_string(port.path().join("name"))
                    .is_ok_and(|name| name.trim() == CONTROL_PORT)
            });
            let device = Path::new("/dev").join(named?.file_name());
            device.exists().then_some(device)
        })
        .with_context(|| match Path::new(PORTS).exists() {
            true => "QEMU has no port of that name",
            false => "this kernel has no virtio console: it lacks CONFIG_VIRTIO_CONSOLE=y or CONFIG_VIRTIO_PCI=y",
        })?;
        let port = File::options().read(true).write(true).open(&ports);
        let port = port.with_context(|| format!("open {}", ports.display()))?;
        Ok(Self(Mutex::new(port)))
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one frame.
    ///
    /// # Errors
    ///
    /// The host is gone.
    pub fn say(&self, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
        frame::write(&mut *self.lock(), kind, payload)
    }

    /// Returns the port to read from, while others send.
    ///
    /// # Errors
    ///
    /// There are too many open files.
    pub fn reader(&self) -> io::Result<File> {
        self.lock().try_clone()
    }

    /// Sends what is read to its end, as frames of a kind.
    pub fn pass_on(&self, kind: FrameKind, from: Option<impl Read>) {
        let Some(mut from) = from else { return };
        let mut buffer = vec![0; MAX_FRAME_BYTES];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if self.say(kind, &buffer[..count]).is_err() {
                return;
            }
        }
    }

    /// Sends a file, or why it cannot be read.
    ///
    /// # Errors
    ///
    /// The host is gone.
    pub fn send_file(&self, index: usize, path: &str) -> io::Result<()> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) => {
                return self.say(FrameKind::FileError, format!("{path}: {error}").as_bytes());
            }
        };
        self.say(FrameKind::File, index.to_string().as_bytes())?;
        let mut buffer = vec![0; MAX_FRAME_BYTES];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => self.say(FrameKind::FileBytes, &buffer[..count])?,
                Err(error) => {
                    return self.say(FrameKind::FileError, format!("{path}: {error}").as_bytes());
                }
            }
        }
    }
}
