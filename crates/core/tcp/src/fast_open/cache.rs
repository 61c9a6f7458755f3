//! What peers' SYN-ACKs have told: cookies, MSS, and whether the path drops Fast Open.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use wire::{FastOpen, FastOpenCookie, FastOpenForm, Instant};

use super::config::{FastOpenConfig, FastOpenModes};
use super::start::{FastOpenStart, Learned};

/// Most peers that are remembered; the one that was added first is forgotten (linux keeps them in the TCP metrics cache).
const PEERS_MAX: usize = 1024;

/// Room for options that the SYN's payload leaves in a packet (linux `MAX_TCP_OPTION_SPACE`).
const OPTION_SPACE: u16 = 40;

/// Most doublings of the time without Fast Open (linux `tcp_fastopen_active_should_disable`).
const DOUBLINGS_MAX: u32 = 6;

/// What is known about one peer.
#[derive(Debug, Clone, Copy, Default)]
struct Peer {
    mss: Option<u16>,
    cookie: Option<FastOpenCookie>,
    form: FastOpenForm,
    attempt: Attempt,
}

/// Form of the next request for a cookie: a peer that ignored one form is asked with the other, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Attempt {
    #[default]
    Standard,
    Experimental,
    /// Both were ignored.
    StandardAgain,
}

/// The client's memory of Fast Open: cookies of peers, and pauses after black holes.
#[derive(Debug, Default)]
pub struct FastOpenCache {
    peers: BTreeMap<IpAddr, Peer>,
    order: VecDeque<IpAddr>,
    /// When the last black hole was seen, and how many in a row.
    black_hole: Option<(Instant, u32)>,
}

impl FastOpenCache {
    /// Returns what a SYN to `peer` carries; `mss` is the link's, which counts where the peer's is not known, as in linux. `None`: nothing, Fast Open is not in use now.
    ///
    /// `no_cookie`: the program does not want one (TCP_FASTOPEN_NO_COOKIE).
    #[must_use]
    pub fn start(
        &self,
        peer: IpAddr,
        mss: u16,
        no_cookie: bool,
        config: &FastOpenConfig,
        now: Instant,
    ) -> Option<FastOpenStart> {
        if !config.modes.contains(FastOpenModes::CLIENT) || self.is_paused(config, now) {
            return None;
        }
        let known = self.peers.get(&peer).copied().unwrap_or_default();
        let mss = known.mss.unwrap_or(mss).min(mss);
        let data_max = mss.saturating_sub(OPTION_SPACE);
        if no_cookie || config.modes.contains(FastOpenModes::CLIENT_NO_COOKIE) {
            return Some(FastOpenStart {
                option: None,
                data_max,
            });
        }
        let form = match (known.cookie, known.attempt) {
            (None, Attempt::Experimental) => FastOpenForm::Experimental,
            (None, _) => FastOpenForm::Standard,
            (Some(_), _) => known.form,
        };
        Some(FastOpenStart {
            option: Some(FastOpen {
                cookie: known.cookie,
                form,
            }),
            data_max: known.cookie.map_or(0, |_| data_max),
        })
    }

    /// Takes what a SYN-ACK of `peer` has told (linux `tcp_rcv_fastopen_synack`).
    pub fn learn(&mut self, peer: IpAddr, learned: &Learned) {
        let Learned {
            mss,
            option,
            sent,
            retransmitted,
        } = *learned;
        let cookie = option.filter(|_| sent.option.is_some());
        let asked = sent.option.filter(|_| !retransmitted && sent.data_max == 0);
        let known = self.entry(peer);
        known.mss = mss.or(known.mss);
        match (cookie, asked) {
            (
                Some(FastOpen {
                    cookie: Some(cookie),
                    form,
                }),
                _,
            ) => {
                known.cookie = Some(cookie);
                known.form = form;
            }
            (_, Some(asked)) if known.cookie.is_none() => {
                known.attempt = match asked.form {
                    FastOpenForm::Standard if known.attempt == Attempt::Standard => {
                        Attempt::Experimental
                    }
                    _ => Attempt::StandardAgain,
                };
            }
            _ => {}
        }
    }

    fn entry(&mut self, peer: IpAddr) -> &mut Peer {
        if !self.peers.contains_key(&peer) {
            if self.order.len() >= PEERS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.peers.remove(&oldest);
            }
            self.order.push_back(peer);
        }
        self.peers.entry(peer).or_default()
    }

    /// Notes a connection that had used Fast Open and timed out as if the path drops its packets (linux
    /// `tcp_fastopen_active_disable`).
    pub fn on_black_hole(&mut self, now: Instant) {
        let times = self.black_hole.map_or(0, |(_, times)| times);
        self.black_hole = Some((now, times.saturating_add(1)));
    }

    /// Notes a connection that Fast Open opened, and that ended in order.
    pub fn on_success(&mut self) {
        self.black_hole = None;
    }

    fn is_paused(&self, config: &FastOpenConfig, now: Instant) -> bool {
        self.black_hole.is_some_and(|(since, times)| {
            let doublings = times.saturating_sub(1).min(DOUBLINGS_MAX);
            let pause: Duration = config.blackhole_timeout.saturating_mul(1 << doublings);
            now < since + pause
        })
    }
}
