//! TCP Fast Open (RFC 7413): both sides, the peer's segments written by hand or by a second connection.

use core::time::Duration;
use std::sync::Arc;

use netmem::Payload;
use wire::{FastOpen, FastOpenForm, Instant, TcpOptions, Timestamps};

use super::harness::{OURS, SPACE, THEIRS, plain};
use crate::test_config::{TestConfig, test_link};
use crate::test_payload::{Bytes, live_runs};
use crate::test_socket::TestSocket;
use crate::*;

const MSS: u16 = 1000;

fn endpoints() -> Endpoints {
    Endpoints {
        local: ([192, 168, 0, 1], 80).into(),
        remote: ([192, 0, 2, 1], 4000).into(),
    }
}

/// A listener that allows two pending opens, and the client's cookies.
struct Stage {
    backlog: SynBacklog<Bytes>,
    cache: FastOpenCache,
    config: TestConfig,
    now: Instant,
}

impl Stage {
    fn new() -> Stage {
        let config = plain();
        let isns = IsnGenerator::new([3; 16]);
        let (shared, settings) = (Arc::clone(&config.shared), config.settings);
        let mut backlog = SynBacklog::new(shared, settings.rcv_space_initial, 8, isns, [4; 16]);
        let mut listener = FastOpenListener::new(FastOpenKeys::new([5; 16], None));
        listener.queue_len = Some(2);
        backlog.set_fast_open(listener);
        Stage {
            backlog,
            cache: FastOpenCache::default(),
            config,
            now: Instant::from_millis(1_000_000),
        }
    }

    /// A stage whose client has the server's cookie.
    fn with_cookie() -> Stage {
        let mut stage = Stage::new();
        let mut client = stage.connect(0);
        let syn = client.poll_send(stage.now).unwrap();
        let syn_ack = stage.reply(syn);
        let _ = client.on_segment(syn_ack, stage.now);
        stage.learn(&mut client);
        let reset = Segment {
            seq: OURS + 1,
            control: Control::Rst,
            ..Segment::default()
        };
        let _ = stage.listen(reset);
        stage
    }

    /// A client with `len` bytes of payload for its SYN.
    fn connect(&mut self, len: usize) -> TestSocket {
        let modes = &self.config.shared.fast_open;
        let start = self
            .cache
            .start(endpoints().local.ip(), MSS, false, modes, self.now)
            .unwrap();
        let mut client = TestSocket::connect_early(&self.config, OURS, start, self.now);
        if len > 0 {
            let payload = Bytes::pattern(OURS + 1, len);
            client.send(payload, Push::Now).unwrap();
        }
        client
    }

    fn learn(&mut self, client: &mut TestSocket) {
        let learned = client.take_learned().unwrap();
        self.cache.learn(endpoints().local.ip(), &learned);
    }

    fn listen(&mut self, segment: Segment<Bytes>) -> ListenOutcome<Bytes> {
        let incoming = Incoming {
            settings: &self.config.settings,
            link: test_link(MSS),
            path_mss: None,
            accept_queue: AcceptQueue::HasRoom,
            iss_floor: None,
        };
        self.backlog
            .on_segment(&endpoints(), segment, incoming, self.now)
    }

    fn reply(&mut self, segment: Segment<Bytes>) -> Segment<Bytes> {
        match self.listen(segment) {
            ListenOutcome::Reply(reply, _) => reply,
            other => panic!("expected a reply, got {other:?}"),
        }
    }

    fn open(&mut self, syn: Segment<Bytes>) -> TestSocket {
        match self.listen(syn) {
            ListenOutcome::Accepted(connection, disposition) => {
                assert!(disposition.established);
                TestSocket::new(*connection, self.config.settings)
            }
            other => panic!("expected a connection, got {other:?}"),
        }
    }

    /// Moves to the next timer, and runs those that are due.
    fn run_timers(&mut self, client: &mut TestSocket, server: Option<&mut TestSocket>) {
        let timers = [
            client.next_timer(),
            server.as_deref().and_then(|server| server.next_timer()),
        ];
        let next = timers
            .into_iter()
            .flatten()
            .chain(self.backlog.next_timer())
            .min();
        self.now = next
            .unwrap_or(self.now)
            .max(self.now + Duration::from_millis(1));
        let _ = client.on_timer(self.now);
        if let Some(server) = server {
            let _ = server.on_timer(self.now);
        }
        while let Some((_, reply)) =
            self.backlog
                .poll_send(test_link(MSS), &self.config.settings, self.now)
        {
            let _ = client.on_segment(reply, self.now);
        }
    }
}

fn read(connection: &mut TestSocket) -> usize {
    let mut len = 0;
    while let Some(payload) = connection.recv_queue().pop(usize::MAX) {
        len += payload.len();
    }
    len
}

#[test]
fn a_cookie_is_requested_given_and_used() {
    let mut stage = Stage::new();
    let mut client = stage.connect(0);
    assert_eq!(client.write_room(), 0, "no cookie, no payload");
    let syn = client.poll_send(stage.now).unwrap();
    assert_eq!(syn.options.fast_open, Some(FastOpen::default()));
    let syn_ack = stage.reply(syn);
    let given = syn_ack.options.fast_open.unwrap().cookie;
    assert!(given.is_some());
    let _ = client.on_segment(syn_ack, stage.now);
    assert_eq!(
        client.info().fast_open_client_fail,
        ClientFail::CookieUnavailable
    );
    stage.learn(&mut client);
    let mut second = stage.connect(300);
    let syn = second.poll_send(stage.now).unwrap();
    assert_eq!(syn.options.fast_open.unwrap().cookie, given);
    assert_eq!(syn.payload.len(), 300);
}

#[test]
fn the_payload_of_a_syn_is_read_and_answered_before_the_third_segment() {
    let mut stage = Stage::with_cookie();
    let mut client = stage.connect(300);
    let mut server = stage.open(client.poll_send(stage.now).unwrap());
    assert_eq!(read(&mut server), 300);
    assert_eq!(server.info().state, StateKind::SynReceived);
    server.send(Bytes::pattern(THEIRS, 50), Push::Now).unwrap();
    let syn_ack = server.poll_send(stage.now).unwrap();
    assert_eq!(
        (syn_ack.control, syn_ack.ack),
        (Control::Syn, Some(OURS + 301))
    );
    let answer = server.poll_send(stage.now).unwrap();
    assert_eq!((answer.control, answer.payload.len()), (Control::None, 50));
    let _ = client.on_segment(syn_ack, stage.now);
    let _ = client.on_segment(answer, stage.now);
    assert_eq!((read(&mut client), client.acked_offset()), (50, 300));
    assert!(client.info().syn_data_acked && server.info().syn_data_acked);
    let ack = client.poll_send(stage.now).unwrap();
    assert_eq!((ack.seq, ack.payload.len()), (OURS + 301, 0));
    let _ = server.on_segment(ack, stage.now);
    assert_eq!(server.info().state, StateKind::Established);
}

#[test]
fn payload_that_the_syn_ack_does_not_acknowledge_is_sent_again() {
    let mut stage = Stage::with_cookie();
    let mut client = stage.connect(300);
    let mut syn = client.poll_send(stage.now).unwrap();
    // The cookie is not valid any more.
    syn.options.fast_open = Some(FastOpen::default());
    let syn_ack = stage.reply(syn);
    assert_eq!(syn_ack.ack, Some(OURS + 1));
    let _ = client.on_segment(syn_ack, stage.now);
    assert_eq!(
        client.info().fast_open_client_fail,
        ClientFail::DataNotAcked
    );
    let data = client.poll_send(stage.now).unwrap();
    assert_eq!((data.seq, data.payload.len()), (OURS + 1, 300));
    let info = client.info();
    assert_eq!((info.bytes_sent, info.bytes_retrans), (600, 300));
    assert_eq!((info.retrans, info.snd_cwnd), (1, 10));
    let mut server = stage.open(data);
    assert_eq!(read(&mut server), 300);
}

#[test]
fn the_syn_ack_of_an_early_open_promises_the_whole_window_behind_the_payload() {
    for len in [0, 300] {
        let mut stage = Stage::with_cookie();
        let syn = stage.connect(len).poll_send(stage.now).unwrap();
        let mut server = stage.open(syn);
        let syn_ack = server.poll_send(stage.now).unwrap();
        assert_eq!(syn_ack.ack, Some(OURS + 1 + len));
        assert_eq!(u32::from(syn_ack.window), SPACE, "{len}");
    }
}

#[test]
fn a_fin_in_the_syn_ack_ends_the_peers_stream() {
    let mut stage = Stage::with_cookie();
    let mut client = stage.connect(300);
    let _ = client.poll_send(stage.now).unwrap();
    let syn_ack = Segment {
        seq: THEIRS,
        ack: Some(OURS + 301),
        control: Control::Syn,
        fin_after_syn: true,
        window: 5000,
        payload: Bytes::pattern(THEIRS + 1, 20),
        ..Segment::default()
    };
    let _ = client.on_segment(syn_ack, stage.now);
    assert_eq!(client.state(), StateKind::CloseWait);
    assert_eq!(read(&mut client), 20);
    assert!(client.is_at_end());
    let ack = client.poll_send(stage.now).unwrap();
    assert_eq!(ack.ack, Some(THEIRS + 22));
}

#[test]
fn a_repeated_syn_has_neither_payload_nor_option() {
    let mut stage = Stage::with_cookie();
    let mut client = stage.connect(300);
    let first = client.poll_send(stage.now).unwrap();
    stage.now = client.next_timer().unwrap();
    let _ = client.on_timer(stage.now);
    let second = client.poll_send(stage.now).unwrap();
    assert_eq!((second.control, second.payload.len()), (Control::Syn, 0));
    assert_eq!(second.options.fast_open, None);
    // Only the first one had been delivered: its SYN-ACK was lost.
    let mut server = stage.open(first);
    let _ = server.poll_send(stage.now);
    let _ = server.on_segment(second, stage.now);
    let again = server.poll_send(stage.now).unwrap();
    assert_eq!((again.control, again.ack), (Control::Syn, Some(OURS + 301)));
    let _ = client.on_segment(again, stage.now);
    assert_eq!(
        (client.state(), client.acked_offset()),
        (StateKind::Established, 300)
    );
}

#[test]
fn an_ack_of_more_than_the_syn_had_is_refused() {
    let mut stage = Stage::with_cookie();
    let mut client = stage.connect(300);
    let _ = client.poll_send(stage.now).unwrap();
    let syn_ack = Segment {
        seq: THEIRS,
        ack: Some(OURS + 302),
        control: Control::Syn,
        ..Segment::default()
    };
    let _ = client.on_segment(syn_ack.clone(), stage.now);
    assert_eq!(client.poll_send(stage.now).unwrap().control, Control::Rst);
    assert_eq!(client.state(), StateKind::SynSent);
    let partial = Segment {
        ack: Some(OURS + 101),
        window: 5000,
        ..syn_ack
    };
    let _ = client.on_segment(partial, stage.now);
    let rest = client.poll_send(stage.now).unwrap();
    assert_eq!((rest.seq, rest.payload.len()), (OURS + 101, 200));
    assert!(rest.payload.is_pattern(rest.seq));
}

#[test]
fn pending_opens_are_limited_and_a_reset_one_counts_for_a_minute() {
    let mut stage = Stage::with_cookie();
    let syn = stage.connect(10).poll_send(stage.now).unwrap();
    let mut first = stage.open(syn.clone());
    let second = stage.open(syn.clone());
    // The third SYN gets an ordinary handshake, without a cookie.
    let syn_ack = stage.reply(syn.clone());
    assert_eq!(
        (syn_ack.ack, syn_ack.options.fast_open),
        (Some(OURS + 1), None)
    );
    let reset = Segment {
        seq: OURS + 11,
        control: Control::Rst,
        ..Segment::default()
    };
    assert!(first.on_segment(reset.clone(), stage.now).closed);
    drop((first, second));
    let _ = stage.listen(Segment {
        seq: OURS + 1,
        ..reset
    });
    let third = stage.open(syn.clone());
    assert!(matches!(
        stage.listen(syn.clone()),
        ListenOutcome::Reply(..)
    ));
    stage.now = stage.now + Duration::from_secs(61);
    let _ = stage.listen(Segment {
        seq: OURS + 1,
        control: Control::Rst,
        ..Segment::default()
    });
    drop((stage.open(syn), third));
    assert_eq!(live_runs(), 0);
}

#[test]
fn a_changed_key_gives_a_new_cookie_and_takes_the_old_one() {
    let mut stage = Stage::with_cookie();
    let rotated = FastOpenKeys::new([6; 16], Some([5; 16]));
    stage.backlog.fast_open_mut().unwrap().keys = rotated;
    let mut client = stage.connect(10);
    let syn = client.poll_send(stage.now).unwrap();
    let old = syn.options.fast_open.unwrap();
    let mut server = stage.open(syn);
    let syn_ack = server.poll_send(stage.now).unwrap();
    let new = syn_ack.options.fast_open.unwrap();
    assert!(new.cookie.is_some() && new != old);
    let _ = client.on_segment(syn_ack, stage.now);
    stage.learn(&mut client);
    let next = stage.connect(0).poll_send(stage.now).unwrap();
    assert_eq!(next.options.fast_open, Some(new));
}

#[test]
fn the_experimental_form_is_tried_once_and_answered_in_kind() {
    let mut stage = Stage::new();
    let mut forms = Vec::new();
    for _ in 0..3 {
        let mut client = stage.connect(0);
        let syn = client.poll_send(stage.now).unwrap();
        forms.push(syn.options.fast_open.unwrap().form);
        // A server without Fast Open.
        let syn_ack = Segment {
            seq: THEIRS,
            ack: Some(OURS + 1),
            control: Control::Syn,
            ..Segment::default()
        };
        let _ = client.on_segment(syn_ack, stage.now);
        stage.learn(&mut client);
    }
    let (standard, experimental) = (FastOpenForm::Standard, FastOpenForm::Experimental);
    assert_eq!(forms, [standard, experimental, standard]);
    let mut syn = stage.connect(0).poll_send(stage.now).unwrap();
    syn.options.fast_open = Some(FastOpen {
        cookie: None,
        form: experimental,
    });
    let answer = stage.reply(syn).options.fast_open.unwrap();
    assert!(answer.form == experimental && answer.cookie.is_some());
}

#[test]
fn without_fast_open_the_payload_of_a_syn_is_ignored() {
    let mut stage = Stage::with_cookie();
    let syn = stage.connect(10).poll_send(stage.now).unwrap();
    stage.backlog.fast_open_mut().unwrap().queue_len = None;
    let syn_ack = stage.reply(syn);
    assert_eq!(
        (syn_ack.ack, syn_ack.options.fast_open),
        (Some(OURS + 1), None)
    );
}

#[test]
fn both_sides_may_open_at_once_with_payload() {
    let mut stage = Stage::with_cookie();
    let mut client = stage.connect(300);
    let _ = client.poll_send(stage.now).unwrap();
    let syn = Segment {
        seq: THEIRS,
        control: Control::Syn,
        window: 5000,
        payload: Bytes::pattern(THEIRS + 1, 20),
        ..Segment::default()
    };
    let _ = client.on_segment(syn, stage.now);
    assert_eq!(client.state(), StateKind::SynReceived);
    let syn_ack = client.poll_send(stage.now).unwrap();
    assert_eq!(
        (syn_ack.control, syn_ack.ack),
        (Control::Syn, Some(THEIRS + 1))
    );
    let theirs = Segment {
        seq: THEIRS,
        ack: Some(OURS + 1),
        control: Control::Syn,
        window: 5000,
        ..Segment::default()
    };
    let _ = client.on_segment(theirs, stage.now);
    assert_eq!(client.state(), StateKind::Established);
    let data = std::iter::from_fn(|| client.poll_send(stage.now)).find(|s| !s.payload.is_empty());
    assert_eq!(
        data.map(|data| (data.seq, data.payload.len())),
        Some((OURS + 1, 300))
    );
}

/// Carries segments between a client and a listener; each is lost with a probability of 1 in 4.
fn lossy_open(seed: u64) {
    let mut stage = Stage::with_cookie();
    let mut client = stage.connect(900);
    let mut server: Option<TestSocket> = None;
    let mut random = crate::test_random::Random::new(seed);
    let (mut sent, mut read_by_server, mut read_by_client, mut answered) = (900, 0, 0, false);
    for _ in 0..400 {
        while let Some(segment) = client.poll_send(stage.now) {
            if random.below(4) == 0 {
                continue;
            }
            match &mut server {
                Some(server) => drop(server.on_segment(segment, stage.now)),
                None => match stage.listen(segment) {
                    ListenOutcome::Accepted(connection, _) => {
                        server = Some(TestSocket::new(*connection, stage.config.settings))
                    }
                    ListenOutcome::Reply(reply, _) => drop(client.on_segment(reply, stage.now)),
                    ListenOutcome::Dropped(_) => {}
                },
            }
        }
        if let Some(server) = &mut server {
            read_by_server += read(server);
            if read_by_server > 0 && !answered {
                server
                    .send(Bytes::pattern(THEIRS, 2000), Push::Now)
                    .unwrap();
                answered = true;
            }
            while let Some(segment) = server.poll_send(stage.now) {
                if random.below(4) != 0 {
                    let _ = client.on_segment(segment, stage.now);
                }
            }
        }
        read_by_client += read(&mut client);
        if sent == 900 && client.state() == StateKind::Established {
            client
                .send(Bytes::pattern(OURS + 901, 3000), Push::Now)
                .unwrap();
            sent += 3000;
        }
        if (read_by_server, read_by_client) == (3900, 2000) {
            return;
        }
        stage.run_timers(&mut client, server.as_mut());
    }
    panic!("seed {seed}: read {read_by_server} and {read_by_client} bytes");
}

#[test]
fn every_byte_arrives_once_over_a_lossy_path() {
    for seed in 0..200 {
        lossy_open(seed);
    }
}

#[test]
fn a_syn_ack_that_echoes_no_timestamp_of_ours_draws_a_reset() {
    let config = plain().with(|c| c.shared_mut().timestamps = true);
    let (now, later) = (Instant::from_millis(1000), Instant::from_millis(1100));
    let mut client = TestSocket::connect(&config, OURS, now);
    let syn = client.poll_send(now).unwrap();
    let sent = syn.options.timestamps.unwrap().value;
    let syn_ack = |echo| Segment {
        seq: THEIRS,
        ack: Some(OURS + 1),
        control: Control::Syn,
        window: 5000,
        options: TcpOptions {
            timestamps: Some(Timestamps { value: 7, echo }),
            ..TcpOptions::default()
        },
        ..Segment::default()
    };
    for echo in [sent.wrapping_sub(1), sent.wrapping_add(101)] {
        let _ = client.on_segment(syn_ack(echo), later);
        let reset = client.poll_send(later).unwrap();
        assert_eq!((reset.control, reset.seq), (Control::Rst, OURS + 1));
        assert_eq!(client.state(), StateKind::SynSent);
    }
    let _ = client.on_segment(syn_ack(sent.wrapping_add(100)), later);
    assert_eq!(client.state(), StateKind::Established);
}
