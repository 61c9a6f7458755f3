//! The drawing, on a terminal in memory; and the terminal after a panic.

use std::process::Command;
use std::time::Duration;

use devmem_linux::test_util::skip;
use devmem_tcp::RxQueueId;
use devmem_tcp::stats::{PoolStats, QueueStats, TxStats};
use devmem_tcp::tcp::TcpInfo;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::draw::draw;
use super::sample::{ConnectionSample, Memory, QueueSample, Sample};
use super::screen::Screen;
use crate::pty::Pty;

/// Returns the text of the screen on which a sample is drawn.
fn drawn(sample: &Sample, columns: u16, rows: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(frame, sample)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let cells = buffer.content().chunks(usize::from(columns));
    let lines = cells.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>());
    lines
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

fn receiving() -> Sample {
    let info = TcpInfo::default();
    let peer = "10.77.0.1:40000".parse().unwrap();
    let mut pool = PoolStats::default();
    (pool.held, pool.in_use, pool.recycled) = (90, 30, 1024);
    let mut host = QueueStats::default();
    host.pool = Some(pool);
    let mut stats = host;
    stats.queue = RxQueueId(1);
    stats.packets = 4321;
    stats.split_packets = Some(4300);
    Sample {
        title: "recv  10.77.0.2:5201 over tap:dm0".to_owned(),
        bytes: 1 << 30,
        total: Some(4 << 30),
        rate: 12.5e9,
        elapsed: Duration::from_secs(2),
        average: Duration::from_secs(2),
        history: vec![1, 5000, 12_500],
        memory: Some(Memory {
            niov_bytes: 64 << 10,
            total: 4096,
            home: 4000,
            tokens_lent: 17,
            tokens_returned: 4_300,
        }),
        queues: vec![
            // Host memory: not counted as net_iovs.
            QueueSample {
                stats: host,
                rate: 0.0,
            },
            QueueSample {
                stats,
                rate: 12.5e9,
            },
        ],
        connections: vec![ConnectionSample::receiving(peer, 1 << 30, 12.5e9, &info)],
        drops: vec![("tcp_duplicate", 3)],
        messages: vec!["devmem-tcp: a note".to_owned()],
        ..Sample::default()
    }
}

#[test]
fn a_receiver_shows_rate_memory_tokens_queues_and_windows() {
    let text = drawn(&receiving(), 100, 30);
    for expected in [
        "devmem-tcp recv  10.77.0.2:5201 over tap:dm0   q ends",
        "12.5 Gbit/s now, 4.3 Gbit/s on average, 1 GiB in 2.0 s",
        "25 % of 4 GiB",
        "net_iovs  4096 of 64 KiB: 4000 free, 66 in page pools, 30 in packets or lent",
        "tokens    17 lent, 4300 returned",
        "2 % of the memory in use",
        "queue packets   split     bytes      Gbit/s pool has in use recycled",
        "1     4321      4300      0 B        12.5   90       30     1024",
        "10.77.0.1:40000       CLOSED      1.0 GiB    12.5   0 B",
        "not delivered  3 tcp_duplicate",
        "devmem-tcp: a note",
    ] {
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
}

#[test]
fn a_sender_shows_its_windows_and_chunks_and_no_memory() {
    let info = TcpInfo::default();
    let peer = "10.77.0.1:5201".parse().unwrap();
    let connection = ConnectionSample::sending(peer, 5 << 20, 1e9, &info, (3, 64));
    let mut tx = TxStats::default();
    (tx.packets, tx.frames, tx.busy) = (10, 450, 2);
    let text = drawn(
        &Sample {
            connections: vec![connection],
            tx: Some(tx),
            ..Sample::default()
        },
        100,
        30,
    );
    assert!(text.contains(" 3/64"), "{text}");
    assert!(
        text.contains("sent      10 packets as 450 frames, the link was busy 2 times"),
        "{text}"
    );
    assert!(!text.contains("net_iovs"), "{text}");
}

#[test]
fn every_size_of_terminal_is_drawn() {
    for (columns, rows) in [(1, 1), (3, 40), (40, 10), (300, 5), (80, 24)] {
        drawn(&receiving(), columns, rows);
        drawn(&Sample::default(), columns, rows);
    }
}

/// Set in the process that panics.
const INNER: &str = "DEVMEM_TEST_PANICS";

#[test]
fn a_panic_restores_the_terminal_and_is_readable() {
    const TEST: &str = "watch::tests::a_panic_restores_the_terminal_and_is_readable";
    if std::env::var_os(INNER).is_some() {
        let _screen = Screen::open().expect("this process has a terminal");
        panic!("the test panics on purpose");
    }
    let mut pty = Pty::open(80, 24);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([TEST, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(INNER, "1");
    let Some(mut child) = pty.start(&command) else {
        return skip(TEST, "tun", "no setsid(1) on this machine");
    };
    pty.read_to_end();
    assert!(!child.wait().unwrap().success());
    let output = String::from_utf8_lossy(&pty.output).into_owned();
    let [enters, leaves, message] =
        ["\x1b[?1049h", "\x1b[?1049l", "panics on purpose"].map(|text| output.find(text));
    assert!(enters.is_some() && enters < leaves, "{output:?}");
    assert!(leaves < message, "{output:?}");
    assert!(!pty.is_raw());
}
