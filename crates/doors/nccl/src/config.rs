//! The settings, from environment variables; read once, in `init`.

use std::ffi::CString;
use std::path::Path;

use crate::failure::{Code, Failure};

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
}

/// Which GPU the pool is on, and whether memory of GPUs is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuChoice {
    /// That of the thread that opens the NIC.
    Current,
    Ordinal(u32),
    /// No memory of GPUs is taken.
    None,
}

/// Who gathers received frags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpack {
    /// NCCL's kernels: the device type UNPACK.
    ByKernels,
    /// This library.
    Here,
}

/// What NCCL must be told before its kernels can unpack, because they know only some ways to use a connection.
const UNPACK_NEEDS: &[(&str, &str)] = &[
    ("NCCL_PROTO", "Simple"),
    ("NCCL_PAT_ENABLE", "0"),
    ("NCCL_LOCAL_REGISTER", "0"),
    ("NCCL_GRAPH_REGISTER", "0"),
];

/// Whether NCCL may use its protocol LL128, by `NCCL_PROTO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ll128 {
    Excluded,
    Possible,
}

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

impl Config {
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
            streams: number(&get, "NCCL_DEVMEM_STREAMS", 2)?,
            chunk: number(&get, "NCCL_DEVMEM_CHUNK", 512 << 10)?,
            pool,
            unpack: Unpack::read(&get, pool)?,
            queues: number(&get, "NCCL_DEVMEM_QUEUES", 1)?,
            gpu: match get("NCCL_DEVMEM_GPU").as_deref().map(str::trim) {
                None => GpuChoice::Current,
                Some("none") => GpuChoice::None,
                Some(_) => GpuChoice::Ordinal(number(&get, "NCCL_DEVMEM_GPU", 0)?),
            },
            ll128: Ll128::of(&get("NCCL_PROTO").unwrap_or_default()),
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

impl Unpack {
    fn read(get: &impl Fn(&str) -> Option<String>, pool: usize) -> Result<Self, Failure> {
        match number(get, Self::VARIABLE, 0_u8)? {
            0 => return Ok(Self::Here),
            1 => {}
            other => {
                let text = format!("{} is {other}; set it to 1 or 0", Self::VARIABLE);
                return Err(Failure::new(Code::Usage, text));
            }
        }
        let is_set = |(name, value): &&(&str, &str)| {
            let found = get(name).unwrap_or_default();
            found.trim().eq_ignore_ascii_case(value)
        };
        let missing = UNPACK_NEEDS.iter().filter(|needed| !is_set(needed));
        let mut missing: Vec<_> = missing
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if pool == 0 {
            missing.push("NCCL_DEVMEM_POOL=BYTES".to_owned());
        }
        match missing.is_empty() {
            true => Ok(Self::ByKernels),
            false => Err(Failure::new(
                Code::Usage,
                format!(
                    "{}=1 needs these settings, too, on all ranks: {}",
                    Self::VARIABLE,
                    missing.join(" ")
                ),
            )),
        }
    }

    /// Also read when the library is loaded.
    pub(crate) const VARIABLE: &'static str = "NCCL_DEVMEM_UNPACK";
}

impl Ll128 {
    /// Reads a value of `NCCL_PROTO`: protocols, or `^` and those that are excluded. Newer forms, for some collectives only, exclude nothing
    /// here.
    fn of(text: &str) -> Self {
        let text = text.trim();
        let names = |text: &str| {
            let is_ll128 = |name: &str| name.trim().eq_ignore_ascii_case("LL128");
            text.split(',').any(is_ll128)
        };
        let is_excluded = match text.strip_prefix('^') {
            _ if text.is_empty() || text.contains([':', ';']) => false,
            Some(excluded) => names(excluded),
            None => !names(text),
        };
        if is_excluded {
            Self::Excluded
        } else {
            Self::Possible
        }
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
    fn unpacking_names_every_setting_that_it_lacks() {
        let read = |extra: &[(&str, &str)]| {
            let settings = [&[("NCCL_DEVMEM_UNPACK", "1")], extra].concat();
            let get = |name: &str| {
                let found = settings.iter().rfind(|(set, _)| *set == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            Config::read(get).map(|config| config.unpack)
        };
        let text = read(&[]).unwrap_err().text.unwrap();
        let all = "NCCL_PROTO=Simple NCCL_PAT_ENABLE=0 NCCL_LOCAL_REGISTER=0 NCCL_GRAPH_REGISTER=0 NCCL_DEVMEM_POOL=BYTES";
        assert!(text.ends_with(all), "{text}");
        let mut settings = UNPACK_NEEDS.to_vec();
        settings.push(("NCCL_DEVMEM_POOL", "4194304"));
        assert_eq!(read(&settings).unwrap(), Unpack::ByKernels);
        settings.push(("NCCL_PROTO", "LL,Simple"));
        let text = read(&settings).unwrap_err().text.unwrap();
        assert!(text.ends_with("all ranks: NCCL_PROTO=Simple"), "{text}");
        assert_eq!(read(&[("NCCL_DEVMEM_UNPACK", "0")]).unwrap(), Unpack::Here);
        assert!(read(&[("NCCL_DEVMEM_UNPACK", "2")]).is_err());
    }

    #[test]
    fn the_protocols_that_exclude_ll128_are_known() {
        for text in ["Simple", "LL,Simple", " simple ", "^LL128", "^LL, ll128"] {
            assert_eq!(Ll128::of(text), Ll128::Excluded, "{text}");
        }
        for text in [
            "",
            "LL128",
            "LL128,Simple",
            "^LL",
            "allreduce:Simple",
            "Simple;LL128",
        ] {
            assert_eq!(Ll128::of(text), Ll128::Possible, "{text}");
        }
    }

    #[test]
    fn a_gpu_is_current_numbered_or_none() {
        let choose = |value: Option<&str>| {
            let get = |name: &str| (name == "NCCL_DEVMEM_GPU").then(|| value.map(str::to_owned))?;
            Config::read(get).map(|config| config.gpu)
        };
        assert_eq!(choose(None).unwrap(), GpuChoice::Current);
        assert_eq!(choose(Some("none")).unwrap(), GpuChoice::None);
        assert_eq!(choose(Some("3")).unwrap(), GpuChoice::Ordinal(3));
        let refused = choose(Some("-1")).unwrap_err();
        assert!(refused.text.unwrap().contains("NCCL_DEVMEM_GPU is '-1'"));
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
