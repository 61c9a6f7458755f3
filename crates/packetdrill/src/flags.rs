//! `--so_flags`: what a script may want to be otherwise than by default.

use std::time::Duration;

use tcp::{AckStyle, CongestionKind, EcnPolicy};
use thiserror::Error;

/// Settings of the stack, each with Linux's default; written `name=value`, joined by commas.
///
/// | Name | Default | Meaning |
/// |---|---|---|
/// | `mtu` | 1500 | bytes of the largest packet, 576 to 65535; IPv6 needs 1280 |
/// | `devmem` | 0 | 1: payload is received into device memory |
/// | `tso` | 1 | 0: no super-segments; each packet is one segment |
/// | `sack`, `timestamps`, `window_scaling` | 1 | offered or not (linux `tcp_sack` and so on) |
/// | `tcp_ecn` | 2 | 0: no ECN; 1: asked for; 2: granted to who asks; 3 to 5: AccECN (linux `tcp_ecn`) |
/// | `tcp_ecn_option` | 2 | 0: AccECN without its option |
/// | `tcp_ecn_fallback` | 1 | 0: a repeated SYN asks, too |
/// | `initial_cwnd` | 10 | segments of the first flight |
/// | `congestion` | cubic | or reno |
/// | `acks` | linux | or drained: as the stack acknowledges outside of tests |
/// | `rmem` | 6291456 | largest receive buffer, which gives the window scale (third number of `tcp_rmem`) |
/// | `wmem` | 4194304 | largest send buffer (third number of `tcp_wmem`) |
/// | `syn_retries`, `synack_retries`, `retries2` | 6, 5, 15 | repetitions (linux `tcp_syn_retries` and so on) |
/// | `fin_timeout` | 60 | seconds in FIN-WAIT-2 |
/// | `seed` | 1 | of everything random: initial sequence numbers, ports |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    pub(crate) mtu: u16,
    pub(crate) devmem: bool,
    pub(crate) tso: bool,
    pub(crate) seed: u64,
    pub(crate) tcp: tcp::Config,
}

/// What `--so_flags` cannot say.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FlagsError {
    /// No such setting.
    #[error("no setting is called {0:?}; there are {NAMES}")]
    Unknown(String),
    /// It is no `name=value`.
    #[error("{0:?} is not of the form name=value")]
    Form(String),
    /// It cannot have this value.
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

const NAMES: &str = "mtu, devmem, tso, sack, timestamps, window_scaling, tcp_ecn, tcp_ecn_option, tcp_ecn_fallback, initial_cwnd, \
                     congestion, acks, rmem, wmem, syn_retries, synack_retries, retries2, fin_timeout and seed";

impl Default for Flags {
    fn default() -> Self {
        Self {
            mtu: 1500,
            devmem: false,
            tso: true,
            seed: 1,
            tcp: tcp::Config {
                ack_style: AckStyle::Linux,
                push_super_segments: true,
                ..tcp::Config::default()
            },
        }
    }
}

impl Flags {
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
            "sack" => tcp.sack = switch("sack", value)?,
            "timestamps" => tcp.timestamps = switch("timestamps", value)?,
            "window_scaling" => tcp.window_scaling = switch("window_scaling", value)?,
            "tcp_ecn" => {
                tcp.ecn = choice("tcp_ecn", value, "0 to 5", |value| {
                    value.parse().ok().and_then(EcnPolicy::from_sysctl)
                })?;
            }
            "tcp_ecn_option" => {
                tcp.accecn_option =
                    choice("tcp_ecn_option", value, "0 or 2", |value| match value {
                        "0" => Some(false),
                        "2" => Some(true),
                        _ => None,
                    })?;
            }
            "tcp_ecn_fallback" => tcp.ecn_fallback = switch("tcp_ecn_fallback", value)?,
            "initial_cwnd" => tcp.initial_cwnd = number("initial_cwnd", value, 1, "1 to 65535")?,
            "rmem" => tcp.rcv_buf_max = number("rmem", value, 4096, "4096 bytes or more")?,
            "wmem" => {
                let bytes: u32 = number("wmem", value, 4096, "4096 bytes or more")?;
                tcp.snd_buf_max = bytes as usize;
            }
            "syn_retries" => tcp.syn_retries = number("syn_retries", value, 1, "1 to 255")?,
            "synack_retries" => {
                tcp.syn_ack_retries = number("synack_retries", value, 1, "1 to 255")?;
            }
            "retries2" => tcp.data_retries = number("retries2", value, 1, "1 to 255")?,
            "fin_timeout" => {
                let seconds: u16 = number("fin_timeout", value, 0, "seconds")?;
                tcp.fin_wait_2_timeout = Duration::from_secs(seconds.into());
            }
            "seed" => self.seed = number("seed", value, 0, "a number")?,
            "congestion" => {
                tcp.congestion =
                    choice("congestion", value, "cubic or reno", |value| match value {
                        "cubic" => Some(CongestionKind::Cubic),
                        "reno" => Some(CongestionKind::NewReno),
                        _ => None,
                    })?;
            }
            "acks" => {
                tcp.ack_style = choice("acks", value, "linux or drained", |value| match value {
                    "linux" => Some(AckStyle::Linux),
                    "drained" => Some(AckStyle::Drained),
                    _ => None,
                })?;
            }
            _ => return Err(FlagsError::Unknown(name.to_owned())),
        }
        Ok(())
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
        assert_eq!(flags.tcp.congestion, CongestionKind::NewReno);
        assert_eq!(flags.tcp.fin_wait_2_timeout, Duration::from_secs(5));
        assert_eq!(flags.tcp.initial_cwnd, 10);
        let ecn = Flags::parse("tcp_ecn=1,tcp_ecn_fallback=0").unwrap().tcp;
        assert_eq!((ecn.ecn, ecn.ecn_fallback), (EcnPolicy::Request, false));
        assert_eq!(Flags::parse(""), Ok(Flags::default()));
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_can() {
        for (text, says) in [
            ("mtu=500", "mtu cannot be \"500\"; give 576 to 65535"),
            ("tcp_ecn=9", "tcp_ecn cannot be \"9\"; give 0 to 5"),
            ("devmem", "\"devmem\" is not of the form name=value"),
            ("devmem=2", "devmem cannot be \"2\"; give 0 or 1"),
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
