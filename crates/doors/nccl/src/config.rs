//! The settings, from environment variables; read once, in `init`.

mod gpus;

use std::ffi::CString;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::OnceLock;

use exchange::{DEFAULT_CHUNK, DEFAULT_STREAMS};

use crate::failure::{Code, Failure};

pub(crate) use self::gpus::{GpuChoice, Ll128, Unpack};

/// The settings; the same as long as the library is loaded, because the properties lead into them.
static CONFIG: OnceLock<Config> = OnceLock::new();

/// Speed that NCCL assumes for a device of unknown speed, in Mbit/s.
const DEFAULT_SPEED: i32 = 10_000;

/// All settings.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) devices: Vec<Device>,
    pub(crate) streams: u16,
    pub(crate) chunk: usize,
    /// Bytes of device memory to bind for receiving; 0: none.
    pub(crate) pool: usize,
    pub(crate) queues: u16,
    pub(crate) gpu: GpuChoice,
    /// Whether NCCL's kernels gather what is received.
    pub(crate) unpack: Unpack,
    /// Whether NCCL may use its protocol LL128.
    pub(crate) ll128: Ll128,
    /// Whether the other end of a UNIX wire may read what waits to be sent.
    pub(crate) shares_send_memory: bool,
    /// Seconds after which what NCCL has stopped asking about is closed.
    pub(crate) patience: NonZeroU32,
}

/// Far longer than NCCL waits between two calls about the same attempt.
const DEFAULT_PATIENCE: NonZeroU32 = NonZeroU32::new(30).unwrap();

/// A NIC that NCCL may use.
#[derive(Debug)]
pub(crate) struct Device {
    /// Unique, and valid until the library is closed, as the properties give it away.
    pub(crate) name: CString,
    pub(crate) pci_path: Option<CString>,
    /// Mbit/s.
    pub(crate) speed: i32,
    pub(crate) backend: Backend,
}

/// How to open a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// An interface of the kernel.
    Kernel(String),
    /// A NIC in user space: its link and its address with prefix length.
    User { link: String, address: String },
}

/// Reads the environment at the first call.
pub(crate) fn init() -> Result<&'static Config, Failure> {
    if let Some(config) = CONFIG.get() {
        return Ok(config);
    }
    let config = Config::read(|name| std::env::var(name).ok())?;
    Ok(CONFIG.get_or_init(|| config))
}

/// Returns the settings of an initialized plugin.
pub(crate) fn current() -> Result<&'static Config, Failure> {
    CONFIG
        .get()
        .ok_or_else(|| Failure::new(Code::Internal, "init was not called"))
}

/// Looks of the watch without a call of NCCL after which something is abandoned.
pub(crate) fn patience() -> u32 {
    CONFIG
        .get()
        .map_or(u32::MAX, |config| config.patience.get())
}

impl Config {
    /// Returns whether a device is an interface of the kernel.
    pub(crate) fn is_kernel(&self, device: usize) -> bool {
        let device = self.devices.get(device);
        device.is_some_and(|device| matches!(device.backend, Backend::Kernel(_)))
    }

    /// Reads the settings from `get`, which returns the value of an environment variable.
    pub(crate) fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let devices = get("DEVMEM_TCP_DEVICES").unwrap_or_default();
        let devices = devices.split(',').filter(|text| !text.trim().is_empty());
        let speed = number(&get, "NCCL_DEVMEM_SPEED", 0)?;
        let devices: Vec<_> = devices
            .map(|text| Device::parse(text.trim(), speed))
            .collect::<Result<_, _>>()?;
        for (index, device) in devices.iter().enumerate() {
            if devices[..index]
                .iter()
                .any(|other| other.name == device.name)
            {
                let name = device.name.to_string_lossy();
                return Err(Failure::new(
                    Code::Usage,
                    format!("DEVMEM_TCP_DEVICES names the device {name} twice; write it once"),
                ));
            }
        }
        let pool = number(&get, "NCCL_DEVMEM_POOL", 0)?;
        Ok(Self {
            devices,
            streams: number(&get, "NCCL_DEVMEM_STREAMS", DEFAULT_STREAMS)?,
            chunk: number(&get, "NCCL_DEVMEM_CHUNK", DEFAULT_CHUNK)?,
            pool,
            unpack: Unpack::read(&get, pool)?,
            queues: number(&get, "NCCL_DEVMEM_QUEUES", 1)?,
            gpu: GpuChoice::read(&get)?,
            ll128: Ll128::of(&get("NCCL_PROTO").unwrap_or_default()),
            shares_send_memory: shares_send_memory(&get("NCCL_DEVMEM_SHARE").unwrap_or_default())?,
            patience: number(&get, "NCCL_DEVMEM_PATIENCE", DEFAULT_PATIENCE)?,
        })
    }

    /// Returns the settings in one line, for the log.
    pub(crate) fn line(&self) -> String {
        let names = self
            .devices
            .iter()
            .map(|device| device.name.to_string_lossy());
        let names: Vec<_> = names.collect();
        match names.is_empty() {
            true => {
                "no devices; set DEVMEM_TCP_DEVICES, as kernel:eth1 or user:tap:dm0:10.77.0.2/24"
                    .to_owned()
            }
            false => format!(
                "devices {}; streams {}, chunk {}, pool {}, queues {}",
                names.join(" "),
                self.streams,
                self.chunk,
                self.pool,
                self.queues
            ),
        }
    }
}

fn shares_send_memory(text: &str) -> Result<bool, Failure> {
    match text.trim() {
        "" | "none" => Ok(false),
        "send" => Ok(true),
        _ => Err(Failure::new(
            Code::Usage,
            format!("NCCL_DEVMEM_SHARE is '{text}'; write send, or unset it"),
        )),
    }
}

fn number<T: std::str::FromStr>(
    get: impl Fn(&str) -> Option<String>,
    name: &str,
    default: T,
) -> Result<T, Failure> {
    match get(name) {
        None => Ok(default),
        Some(text) => text.trim().parse().map_err(|_| {
            Failure::new(
                Code::Usage,
                format!("{name} is '{text}', which is no number that it can have; unset it for the default"),
            )
        }),
    }
}

impl Device {
    fn parse(text: &str, speed: i32) -> Result<Self, Failure> {
        let wrong = || {
            Failure::new(
                Code::Usage,
                format!(
                    "DEVMEM_TCP_DEVICES has '{text}', which names no device; write kernel:INTERFACE or \
                     user:LINK:ADDRESS/LENGTH, such as kernel:eth1, user:tap:dm0:10.77.0.2/24, \
                     user:unix:/run/wire:[fd77::2]/64"
                ),
            )
        };
        let (backend, name) = match text.split_once(':').ok_or_else(wrong)? {
            ("kernel", interface) if !interface.is_empty() && !interface.contains('/') => {
                (Backend::Kernel(interface.to_owned()), interface.to_owned())
            }
            ("user", rest) => {
                let (link, address) = split_address(rest).ok_or_else(wrong)?;
                let name = format!("{link}-{address}").replace([':', '/'], "-");
                (Backend::User { link, address }, name)
            }
            _ => return Err(wrong()),
        };
        let sysfs = match &backend {
            Backend::Kernel(interface) => Some(Path::new("/sys/class/net").join(interface)),
            Backend::User { .. } => None,
        };
        let told = sysfs.as_ref().and_then(|sysfs| {
            let speed = std::fs::read_to_string(sysfs.join("speed")).ok()?;
            speed.trim().parse::<i32>().ok()
        });
        // The kernel gives -1 for an unknown speed, and 10 for a TAP.
        let told = told.filter(|speed| *speed > 10).unwrap_or(DEFAULT_SPEED);
        let pci_path = sysfs.and_then(|sysfs| {
            let path = std::fs::canonicalize(sysfs.join("device")).ok()?;
            // The last component of a PCI device is its bus id; a virtual device has none.
            let is_pci = path.join("vendor").exists() && path.join("config").exists();
            is_pci.then(|| CString::new(path.into_os_string().into_encoded_bytes()).ok())?
        });
        Ok(Self {
            name: CString::new(name).map_err(|_| wrong())?,
            pci_path,
            speed: if speed > 0 { speed } else { told },
            backend,
        })
    }
}

/// Splits `LINK:ADDRESS/LENGTH`; an IPv6 address is in brackets. The link may contain colons.
fn split_address(text: &str) -> Option<(String, String)> {
    let (link, address) = match text
        .strip_suffix(']')
        .or_else(|| text.contains("]/").then_some(text))
    {
        Some(_) => {
            let (link, address) = text.rsplit_once(":[")?;
            (link, address.replace(']', ""))
        }
        None => {
            let (link, address) = text.rsplit_once(':')?;
            (link, address.to_owned())
        }
    };
    let is_complete = link.contains(':') && address.contains('/');
    is_complete.then(|| (link.to_owned(), address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(devices: &str) -> Result<Config, Failure> {
        Config::read(|name| (name == "DEVMEM_TCP_DEVICES").then(|| devices.to_owned()))
    }

    #[test]
    fn devices_of_both_backends_are_read() {
        let text = "kernel:nosuch1, user:tap:dm0:10.77.0.2/24,user:unix:/run/a:b:[fd77::2]/64";
        let config = read(text).unwrap();
        let backends: Vec<_> = config
            .devices
            .iter()
            .map(|device| device.backend.clone())
            .collect();
        let user = |link: &str, address: &str| Backend::User {
            link: link.to_owned(),
            address: address.to_owned(),
        };
        assert_eq!(
            backends,
            [
                Backend::Kernel("nosuch1".to_owned()),
                user("tap:dm0", "10.77.0.2/24"),
                user("unix:/run/a:b", "fd77::2/64"),
            ]
        );
        assert!(
            config
                .devices
                .iter()
                .all(|device| device.speed == DEFAULT_SPEED)
        );
        assert!(
            config
                .devices
                .iter()
                .all(|device| device.pci_path.is_none())
        );
    }

    #[test]
    fn what_waits_to_be_sent_is_shared_only_if_that_is_written() {
        let shares = |text: Option<&str>| {
            let get =
                |name: &str| (name == "NCCL_DEVMEM_SHARE").then(|| text.map(str::to_owned))?;
            Config::read(get).map(|config| config.shares_send_memory)
        };
        assert!(!shares(None).unwrap() && !shares(Some("none")).unwrap());
        assert!(shares(Some("send")).unwrap());
        let refused = shares(Some("yes")).unwrap_err();
        assert_eq!(refused.code, Code::Usage);
    }

    #[test]
    fn what_names_no_device_is_refused_with_what_to_write() {
        for text in [
            "eth1",
            "kernel:",
            "kernel:a/b",
            "user:tap:dm0",
            "user:10.77.0.2/24",
            "tap:dm0:1.2.3.4/5",
        ] {
            let failure = read(text).expect_err(text);
            assert_eq!(failure.code, Code::Usage, "{text}");
            assert!(failure.text.unwrap().contains("write kernel:INTERFACE"));
        }
    }

    #[test]
    fn a_device_has_one_name() {
        let failure = read("kernel:eth1,kernel:eth1").unwrap_err();
        assert!(failure.text.unwrap().contains("twice"));
    }

    #[test]
    fn a_wrong_number_is_the_users_mistake() {
        let failure =
            Config::read(|name| (name == "NCCL_DEVMEM_STREAMS").then(|| "many".to_owned()));
        let failure = failure.unwrap_err();
        assert_eq!(failure.code, Code::Usage);
        assert!(
            failure
                .text
                .unwrap()
                .contains("NCCL_DEVMEM_STREAMS is 'many'")
        );
    }
}
