//! Settings about GPUs, of the plugin and of NCCL.

use super::number;
use crate::failure::{Code, Failure};

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

impl GpuChoice {
    const VARIABLE: &str = "NCCL_DEVMEM_GPU";

    pub(super) fn read(get: &impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        Ok(match get(Self::VARIABLE).as_deref().map(str::trim) {
            None => Self::Current,
            Some("none") => Self::None,
            Some(_) => Self::Ordinal(number(get, Self::VARIABLE, 0)?),
        })
    }
}

impl Unpack {
    pub(super) fn read(
        get: &impl Fn(&str) -> Option<String>,
        pool: usize,
    ) -> Result<Self, Failure> {
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
    pub(super) fn of(text: &str) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

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
}
