//! The kernel's settings under the kernel's names, from the text of `--so_flags` or from files such as those of
//! `/proc/sys/net/ipv4`.
//!
//! packetdrill runs a script's first command after it has loaded this library, and others between the calls, so the
//! files are read again before each call that may begin a connection.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tcp::{CongestionKind, EcnPolicy, FastOpenKeys, FastOpenModes, SuperSegments, SynCookies};

/// Folder of the settings in Linux.
const HOST: &str = "/proc/sys/net/ipv4";

/// Stores the value of a setting; false if the stack does not support it.
type Apply = fn(&mut tcp::Config, &str) -> bool;

/// One setting of the kernel.
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    /// The accepted values in words, for error messages.
    pub(crate) range: &'static str,
    apply: Apply,
}

macro_rules! settings {
    ($($name:literal, $range:literal, $apply:expr;)*) => {
        &[$(Setting { name: $name, range: $range, apply: $apply },)*]
    };
}

/// Every setting that scripts use. Where the stack has only one behaviour, only its value is accepted.
#[rustfmt::skip]
pub(crate) const SETTINGS: &[Setting] = settings! {
    "tcp_sack", "0 or 1", |c, v| switch(&mut c.sack, v);
    "tcp_timestamps", "0 to 2", |c, v| put(&mut c.timestamps, number(v, 0, 2).map(|n: u8| n > 0));
    "tcp_window_scaling", "0 or 1", |c, v| switch(&mut c.window_scaling, v);
    "tcp_rmem", "three sizes in bytes", |c, v| sizes(v).map(|[_, start, most]| {
        c.settings.rcv_buf_max = most;
        c.rcv_buf_start = start;
    }).is_some();
    "tcp_wmem", "three sizes in bytes", |c, v| sizes(v).map(|[_, _, most]| c.settings.snd_buf_max = most as usize).is_some();
    "tcp_notsent_lowat", "0 to 4294967295", |c, v| put(&mut c.notsent_lowat, number(v, 0, u32::MAX).map(Some));
    "tcp_congestion_control", "cubic, reno, bbr or dctcp", |c, v| put(&mut c.settings.congestion, congestion(v));
    "tcp_syn_retries", "1 to 255", |c, v| put(&mut c.settings.syn_retries, number(v, 1, 255));
    "tcp_syn_linear_timeouts", "0 to 127", |c, v| put(&mut c.timers.syn_linear_timeouts, number(v, 0, 127));
    "tcp_synack_retries", "1 to 255", |c, v| put(&mut c.timers.syn_ack_retries, number(v, 1, 255));
    "tcp_retries2", "1 to 255", |c, v| put(&mut c.timers.data_retries, number(v, 1, 255));
    "tcp_fin_timeout", "seconds", |c, v| put(&mut c.settings.fin_wait_2_timeout, number(v, 0, 65_535).map(Duration::from_secs));
    "tcp_slow_start_after_idle", "0 or 1", |c, v| switch(&mut c.slow_start_after_idle, v);
    "tcp_invalid_ratelimit", "milliseconds", |c, v| put(&mut c.acks.invalid_interval, millis(v));
    "tcp_rto_max_ms", "1000 to 120000", |c, v| put(&mut c.timers.rto_max, number(v, 1000, 120_000).map(Duration::from_millis));
    "tcp_tso_win_divisor", "0 to 255", |c, v| put(&mut c.tso_win_divisor, number(v, 0, 255));
    "tcp_min_tso_segs", "1 to 255", |c, v| put(&mut c.tuning.super_segments, number(v, 1, 255).map(|least| SuperSegments::AutoSized { least }));
    "tcp_pacing_ss_ratio", "200", |_, v| v == "200";
    "tcp_pacing_ca_ratio", "120", |_, v| v == "120";
    "tcp_syncookies", "0 to 2", |c, v| put(&mut c.syn_cookies, match v {
        "0" => Some(SynCookies::Never),
        "1" => Some(SynCookies::WhenFull),
        "2" => Some(SynCookies::Always),
        _ => None,
    });
    "tcp_fastopen", "a number of bits", |c, v| put(&mut c.fast_open.modes, bits(v).map(FastOpenModes));
    "tcp_fastopen_key", "one or two keys of four words", |c, v| put(&mut c.fast_open.keys, keys(v).map(Some));
    "tcp_fastopen_blackhole_timeout_sec", "seconds", |c, v| put(&mut c.fast_open.blackhole_timeout, number(v, 0, 65_535).map(Duration::from_secs));
    "tcp_ecn", "0 to 5", |c, v| put(&mut c.ecn.policy, v.parse().ok().and_then(EcnPolicy::from_sysctl));
    "tcp_ecn_fallback", "0 or 1", |c, v| switch(&mut c.ecn.fallback, v);
    "tcp_ecn_option", "0 or 2", |c, v| put(&mut c.ecn.accecn_option, match v {
        "0" => Some(false),
        "2" => Some(true),
        _ => None,
    });
    "tcp_mtu_probing", "0 or 1", |c, v| switch(&mut c.mtu_probing, v);
    "tcp_frto", "1 or 2", |_, v| v == "1" || v == "2";
    "tcp_dsack", "1", |_, v| v == "1";
    "tcp_fack", "0", |_, v| v == "0";
    "tcp_reordering", "3", |_, v| v == "3";
    "tcp_early_retrans", "3 or 4", |_, v| v == "3" || v == "4";
    "tcp_recovery", "1", |_, v| v == "1";
};

impl Setting {
    /// Returns the setting of this name, which may begin with `net.ipv4.`.
    pub(crate) fn called(name: &str) -> Option<&'static Self> {
        let name = name.strip_prefix("net.ipv4.").unwrap_or(name);
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// Stores a value; false if the stack does not support it.
    pub(crate) fn apply(&self, config: &mut tcp::Config, value: &str) -> bool {
        (self.apply)(config, value)
    }
}

/// A folder with one file for each setting, read before each call that may begin a connection.
#[derive(Debug)]
pub(crate) struct Sysctls {
    folder: PathBuf,
    /// Settings whose values were refused: each is reported once.
    refused: Mutex<BTreeSet<&'static str>>,
}

impl Sysctls {
    /// Returns the settings of `place`: `host`, or a folder.
    pub(crate) fn new(place: &Path) -> Self {
        let folder = match place == Path::new("host") {
            true => PathBuf::from(HOST),
            false => place.to_owned(),
        };
        Self {
            folder,
            refused: Mutex::default(),
        }
    }

    /// Returns `base` with the values of the files, except of the settings in `given`. A setting without a
    /// file keeps its value; so does one whose file has a value that the stack does not support, which is printed once.
    pub(crate) fn over(&self, base: &tcp::Config, given: &BTreeSet<&'static str>) -> tcp::Config {
        let mut config = base.clone();
        for setting in SETTINGS
            .iter()
            .filter(|setting| !given.contains(setting.name))
        {
            let Ok(value) = std::fs::read_to_string(self.folder.join(setting.name)) else {
                continue;
            };
            if !setting.apply(&mut config, value.trim()) {
                self.refuse(setting, value.trim());
            }
        }
        config
    }

    fn refuse(&self, setting: &Setting, value: &str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.insert(setting.name) {
            eprintln!(
                "libdevmem_packetdrill: {} is {value:?} which the stack does not support; it supports {}",
                setting.name, setting.range
            );
        }
    }
}

fn put<T>(field: &mut T, value: Option<T>) -> bool {
    value.map(|value| *field = value).is_some()
}

fn switch(field: &mut bool, value: &str) -> bool {
    put(field, number(value, 0, 1).map(|n: u8| n == 1))
}

fn number<T: std::str::FromStr + PartialOrd>(value: &str, least: T, most: T) -> Option<T> {
    let number = value.parse().ok()?;
    (number >= least && number <= most).then_some(number)
}

fn millis(value: &str) -> Option<Duration> {
    number(value, 0, 86_400_000).map(Duration::from_millis)
}

/// Reads a number, hexadecimal if it begins with 0x.
fn bits(value: &str) -> Option<u32> {
    match value.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => value.parse().ok(),
    }
}

/// Reads a key for Fast Open, and after a comma the key before it.
fn keys(value: &str) -> Option<FastOpenKeys> {
    let mut keys = value.split(',').map(key);
    let (primary, backup) = (keys.next()??, keys.next());
    let backup = match backup {
        Some(key) => Some(key?),
        None => None,
    };
    keys.next()
        .is_none()
        .then_some(FastOpenKeys::new(primary, backup))
}

/// Reads a key as the kernel writes it: four words of 32 bits, each kept with its lowest byte first.
fn key(value: &str) -> Option<[u8; 16]> {
    let mut words = value.split('-');
    let mut key = [0; 16];
    for bytes in key.as_chunks_mut::<4>().0 {
        *bytes = u32::from_str_radix(words.next()?, 16).ok()?.to_le_bytes();
    }
    words.next().is_none().then_some(key)
}

fn congestion(value: &str) -> Option<CongestionKind> {
    match value {
        "cubic" => Some(CongestionKind::Cubic),
        "reno" => Some(CongestionKind::NewReno),
        "bbr" => Some(CongestionKind::Bbr),
        "dctcp" => Some(CongestionKind::Dctcp),
        _ => None,
    }
}

/// Reads the smallest, the default and the largest size of a buffer.
fn sizes(value: &str) -> Option<[u32; 3]> {
    let sizes: Vec<u32> = value
        .split_whitespace()
        .map(|size| number(size, 1, i32::MAX.unsigned_abs()))
        .collect::<Option<_>>()?;
    let sizes: [u32; 3] = sizes.try_into().ok()?;
    sizes.is_sorted().then_some(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_read_each_time_and_what_cannot_be_changes_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path();
        let sysctls = Sysctls::new(folder);
        let base = tcp::Config::default();
        let none = BTreeSet::new();
        let over = sysctls.over(&base, &none);
        assert_eq!(format!("{over:?}"), format!("{base:?}"));
        std::fs::write(folder.join("tcp_sack"), "0\n").unwrap();
        std::fs::write(folder.join("tcp_rmem"), "4096\t30000\t9000000\n").unwrap();
        std::fs::write(folder.join("tcp_congestion_control"), "vegas\n").unwrap();
        let config = sysctls.over(&base, &none);
        assert!(!config.sack);
        assert_eq!(
            (config.rcv_buf_start, config.settings.rcv_buf_max),
            (30_000, 9_000_000)
        );
        assert_eq!(config.settings.congestion, base.settings.congestion);
        std::fs::write(folder.join("tcp_sack"), "1\n").unwrap();
        assert!(sysctls.over(&base, &none).sack);
    }

    #[test]
    fn what_the_flags_give_is_not_read_from_files() {
        let scratch = tempfile::tempdir().unwrap();
        let sysctls = Sysctls::new(scratch.path());
        for (name, value) in [
            ("tcp_ecn", "2"),
            ("tcp_rmem", "4096 8192 8192"),
            ("tcp_sack", "0"),
        ] {
            std::fs::write(scratch.path().join(name), value).unwrap();
        }
        let flags = crate::Flags::parse("tcp_ecn=3,rmem=100000").unwrap();
        let config = flags.tcp_over(&sysctls);
        assert_eq!(Some(config.ecn.policy), EcnPolicy::from_sysctl(3));
        assert_eq!(config.settings.rcv_buf_max, 100_000);
        assert!(!config.sack, "the flags do not give it");
    }

    #[test]
    fn every_setting_refuses_what_is_no_value_of_it() {
        for setting in SETTINGS {
            let mut config = tcp::Config::default();
            for value in ["", "x", "-1", "1 2 3 4", "99999999999"] {
                assert!(
                    !setting.apply(&mut config, value),
                    "{} {value:?}",
                    setting.name
                );
            }
            assert_eq!(
                format!("{config:?}"),
                format!("{:?}", tcp::Config::default())
            );
        }
    }

    #[test]
    fn names_may_be_written_as_sysctl_writes_them() {
        assert_eq!(
            Setting::called("net.ipv4.tcp_sack").map(|s| s.name),
            Some("tcp_sack")
        );
        assert!(Setting::called("sack").is_none());
    }
}
