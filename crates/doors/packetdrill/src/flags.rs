//! `--so_flags`: settings of the stack.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tcp::{AckRules, Tuning};
use thiserror::Error;

use crate::sysctls::{Setting, Sysctls};

/// Settings of the stack, each with Linux's default; written `name=value`, joined by commas.
///
/// | Name | Default | Meaning |
/// |---|---|---|
/// | `mtu` | 1500 | bytes of the largest packet, 576 to 65535; IPv6 needs 1280 |
/// | `devmem` | 0 | 1: payload is received into device memory |
/// | `tso` | 1 | 0: no super-segments; each packet is one segment |
/// | `pacing` | 0 | 1: segments are spaced over the round trip, as by a `fq` qdisc |
/// | `initial_cwnd` | 10 | segments of the first flight |
/// | `acks` | linux | or drained: as the stack acknowledges outside of tests |
/// | `rmem` | 6291456 | largest receive buffer alone (third number of `tcp_rmem`) |
/// | `wmem` | 4194304 | largest send buffer alone (third number of `tcp_wmem`) |
/// | `seed` | 1 | of everything random: initial sequence numbers, ports |
/// | `sysctls` | none | `host`: the kernel's settings below are read from `/proc/sys/net/ipv4` of packetdrill's network namespace before each call that may begin a connection, except those that the flags give; or the path of another folder with such files |
/// | `tcp_sack`, `tcp_timestamps`, `tcp_window_scaling` | 1 | offered or not |
/// | `tcp_rmem`, `tcp_wmem` | `4096 131072 6291456`, `4096 16384 4194304` | sizes of buffers, three numbers with spaces; the largest receive buffer gives the window scale |
/// | `tcp_notsent_lowat` | 4294967295 | unsent bytes at which a socket without TCP_NOTSENT_LOWAT takes no more |
/// | `tcp_congestion_control` | cubic | or reno, bbr, dctcp |
/// | `tcp_syn_retries`, `tcp_synack_retries`, `tcp_retries2` | 6, 5, 15 | repetitions |
/// | `tcp_syn_linear_timeouts` | 4 | repetitions of a SYN before those, one each second |
/// | `tcp_fin_timeout` | 60 | seconds in FIN-WAIT-2 |
/// | `tcp_slow_start_after_idle` | 1 | 0: a pause leaves the congestion window alone |
/// | `tcp_invalid_ratelimit` | 500 | milliseconds between two answers to segments that carry nothing and are not acceptable |
/// | `tcp_ecn` | 2 | 0: no ECN; 1: asked for; 2: granted on request; 3 to 5: AccECN |
/// | `tcp_ecn_option` | 2 | 0: AccECN without its option |
/// | `tcp_ecn_fallback` | 1 | 0: a repeated SYN asks for ECN, too, and ECN is never given up because a path appears to drop it |
/// | `tcp_rto_max_ms` | 120000 | longest retransmission timeout |
/// | `tcp_tso_win_divisor` | 3 | divisor: a super-segment waits for window / 3 |
/// | `tcp_min_tso_segs` | 2 | segments that a super-segment may have on the slowest path |
/// | `tcp_mtu_probing` | 0 | 1: a path that drops large packets without ICMP is detected |
/// | `tcp_syncookies` | 1 | 0: never, 2: always |
/// | `tcp_frto`, `tcp_dsack`, `tcp_fack`, `tcp_reordering`, `tcp_early_retrans`, `tcp_recovery`, `tcp_pacing_ss_ratio`, `tcp_pacing_ca_ratio` | Linux's | one value only: what the stack does |
///
/// `sack`, `timestamps`, `window_scaling`, `congestion`, `syn_retries`, `synack_retries`, `retries2` and
/// `fin_timeout` are short for the kernel's names, which may also begin with `net.ipv4.`.
#[derive(Debug, Clone)]
pub struct Flags {
    pub(crate) mtu: u16,
    pub(crate) devmem: bool,
    pub(crate) tso: bool,
    pub(crate) seed: u64,
    pub(crate) sysctls: Option<PathBuf>,
    /// The kernel's settings that the flags give: files do not change them.
    given: BTreeSet<&'static str>,
    /// Settings of TCP, as Linux would act on them.
    pub(crate) tcp: tcp::Config,
}

/// Why `--so_flags` were refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FlagsError {
    /// No such setting.
    #[error("no setting is called {0:?}; there are {NAMES}")]
    Unknown(String),
    /// A setting that is not of the form `name=value`.
    #[error("{0:?} is not of the form name=value")]
    Form(String),
    /// A setting with a value that it does not have.
    #[error("{name} cannot be {value:?}; give {range}")]
    Value {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: String,
        /// What may be given.
        range: &'static str,
    },
}

/// Linux's largest send buffer (third number of `tcp_wmem`).
const WMEM_MAX: usize = 4 << 20;

const NAMES: &str = "mtu, devmem, tso, pacing, initial_cwnd, acks, rmem, wmem, seed, sysctls, and the kernel's names \
                     (tcp_sack=0)";

/// Short names, each with the kernel's name.
const SHORT: &[(&str, &str)] = &[
    ("sack", "tcp_sack"),
    ("timestamps", "tcp_timestamps"),
    ("window_scaling", "tcp_window_scaling"),
    ("congestion", "tcp_congestion_control"),
    ("syn_retries", "tcp_syn_retries"),
    ("synack_retries", "tcp_synack_retries"),
    ("retries2", "tcp_retries2"),
    ("fin_timeout", "tcp_fin_timeout"),
];

impl Default for Flags {
    fn default() -> Self {
        Self {
            mtu: 1500,
            devmem: false,
            tso: true,
            seed: 1,
            sysctls: None,
            given: BTreeSet::new(),
            tcp: tcp::Config {
                settings: tcp::Settings {
                    snd_buf_max: WMEM_MAX,
                    ..tcp::Settings::default()
                },
                mtu_probing: false,
                tuning: Tuning::LINUX,
                ..tcp::Config::default()
            },
        }
    }
}

impl Flags {
    /// Returns the settings of TCP: those that the flags give, the others as `sysctls` has them now.
    pub(crate) fn tcp_over(&self, sysctls: &Sysctls) -> tcp::Config {
        sysctls.over(&self.tcp, &self.given)
    }

    /// Reads the text of `--so_flags`.
    ///
    /// # Errors
    /// [`FlagsError`], with what may be given.
    pub fn parse(text: &str) -> Result<Self, FlagsError> {
        let mut flags = Self::default();
        for setting in text
            .split(',')
            .map(str::trim)
            .filter(|setting| !setting.is_empty())
        {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| FlagsError::Form(setting.to_owned()))?;
            flags.set(name.trim(), value.trim())?;
        }
        Ok(flags)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), FlagsError> {
        let tcp = &mut self.tcp;
        match name {
            "mtu" => self.mtu = number("mtu", value, 576, "576 to 65535")?,
            "devmem" => self.devmem = switch("devmem", value)?,
            "tso" => self.tso = switch("tso", value)?,
            "pacing" => tcp.pacing = switch("pacing", value)?,
            "initial_cwnd" => tcp.initial_cwnd = number("initial_cwnd", value, 1, "1 to 65535")?,
            "rmem" => {
                tcp.settings.rcv_buf_max = number("rmem", value, 4096, "4096 bytes or more")?;
                self.given.insert("tcp_rmem");
            }
            "wmem" => {
                let bytes: u32 = number("wmem", value, 4096, "4096 bytes or more")?;
                tcp.settings.snd_buf_max = bytes as usize;
                self.given.insert("tcp_wmem");
            }
            "seed" => self.seed = number("seed", value, 0, "a number")?,
            "sysctls" if value.is_empty() => {
                return Err(FlagsError::Value {
                    name: "sysctls",
                    value: value.to_owned(),
                    range: "host or a folder",
                });
            }
            "sysctls" => self.sysctls = Some(PathBuf::from(value)),
            "acks" => {
                tcp.tuning.acks = choice("acks", value, "linux or drained", |value| match value {
                    "linux" => Some(AckRules::Linux),
                    "drained" => Some(AckRules::Drained),
                    _ => None,
                })?;
            }
            _ => return self.set_sysctl(name, value),
        }
        Ok(())
    }

    fn set_sysctl(&mut self, name: &str, value: &str) -> Result<(), FlagsError> {
        let short = SHORT.iter().find(|(short, _)| *short == name);
        let setting = Setting::called(short.map_or(name, |(_, kernels)| kernels))
            .ok_or_else(|| FlagsError::Unknown(name.to_owned()))?;
        match setting.apply(&mut self.tcp, value) {
            true => {
                self.given.insert(setting.name);
                Ok(())
            }
            false => Err(FlagsError::Value {
                name: setting.name,
                value: value.to_owned(),
                range: setting.range,
            }),
        }
    }
}

fn choice<T>(
    name: &'static str,
    value: &str,
    range: &'static str,
    choose: impl FnOnce(&str) -> Option<T>,
) -> Result<T, FlagsError> {
    choose(value).ok_or_else(|| FlagsError::Value {
        name,
        value: value.to_owned(),
        range,
    })
}

fn switch(name: &'static str, value: &str) -> Result<bool, FlagsError> {
    choice(name, value, "0 or 1", |value| match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    })
}

fn number<T: std::str::FromStr + PartialOrd>(
    name: &'static str,
    value: &str,
    least: T,
    range: &'static str,
) -> Result<T, FlagsError> {
    choice(name, value, range, |value| {
        value.parse().ok().filter(|number| *number >= least)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_the_rest_is_as_in_linux() {
        let flags =
            Flags::parse("mtu=1280, devmem=1,sack=0,congestion=reno,fin_timeout=5").unwrap();
        assert_eq!((flags.mtu, flags.devmem, flags.tso), (1280, true, true));
        assert!(!flags.tcp.sack && flags.tcp.timestamps);
        assert_eq!(flags.tcp.settings.congestion, tcp::CongestionKind::NewReno);
        assert_eq!(flags.tcp.settings.fin_wait_2_timeout.as_secs(), 5);
        assert_eq!(flags.tcp.initial_cwnd, 10);
        let ecn = Flags::parse("tcp_ecn=1,tcp_ecn_fallback=0").unwrap().tcp;
        assert_eq!(
            (ecn.ecn.policy, ecn.ecn.fallback),
            (tcp::EcnPolicy::Request, false)
        );
        let nothing = Flags::parse("").unwrap();
        assert_eq!(format!("{nothing:?}"), format!("{:?}", Flags::default()));
        assert_eq!(nothing.tcp.tuning, Tuning::LINUX);
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_can() {
        for (text, says) in [
            ("mtu=500", "mtu cannot be \"500\"; give 576 to 65535"),
            ("tcp_ecn=9", "tcp_ecn cannot be \"9\"; give 0 to 5"),
            ("devmem", "\"devmem\" is not of the form name=value"),
            ("devmem=2", "devmem cannot be \"2\"; give 0 or 1"),
            ("tcp_dsack=0", "tcp_dsack cannot be \"0\"; give 1"),
            ("sysctls=", "sysctls cannot be \"\"; give host or a folder"),
            ("acks=bsd", "acks cannot be \"bsd\"; give linux or drained"),
        ] {
            assert_eq!(Flags::parse(text).unwrap_err().to_string(), says);
        }
        let unknown = Flags::parse("speed=9").unwrap_err().to_string();
        assert!(
            unknown.starts_with("no setting is called \"speed\"; there are mtu"),
            "{unknown}"
        );
    }
}
