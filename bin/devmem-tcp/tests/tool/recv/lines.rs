//! What `recv` prints for people while it runs.

use std::net::SocketAddr;

use rustix::process::Signal;

use super::{recv_addr, send, signal};
use crate::common::{repeating, start, start_recv};
use devmem_linux::test_util::in_netns;

#[test]
fn keep_listening_prints_a_line_for_each_connection_and_for_its_last_interval() {
    const TEST: &str =
        "recv::lines::keep_listening_prints_a_line_for_each_connection_and_for_its_last_interval";
    in_netns(TEST, || {
        let mut recv = start_recv("-k -i 3600 -v 7 --json");
        let kib = [7 * 64, 7 * 32];
        for kib in kib {
            send(recv_addr(), &repeating(7, 0, kib << 10));
            // The interval, far from full, ends with the only connection.
            recv.until("bit/s\n");
        }
        signal(&recv, Signal::TERM);
        let finished = recv.finish();
        assert_eq!(finished.json()["connections"], 2);
        let lines = |word: &str| -> Vec<String> {
            let lines = finished.stderr.lines().map(str::trim);
            lines
                .filter(|line| line.contains(word))
                .map(str::to_owned)
                .collect()
        };
        let ended = lines("every byte verified");
        let intervals: Vec<_> = lines("bit/s")
            .into_iter()
            .filter(|line| line.contains(" s  "))
            .collect();
        assert_eq!(
            (ended.len(), intervals.len()),
            (2, 2),
            "{}",
            finished.stderr
        );
        for ((ended, interval), kib) in ended.iter().zip(&intervals).zip(kib) {
            let size = format!("{kib} KiB");
            assert!(
                ended.starts_with(&format!("connection  {size} from 10.77.0.1:")),
                "{ended}"
            );
            assert!(interval.contains(&size), "{interval}");
        }
        assert!(intervals[0].starts_with("0.0-"), "{intervals:?}");
    });
}

#[test]
fn without_keep_listening_only_the_table_is_printed() {
    in_netns(
        "recv::lines::without_keep_listening_only_the_table_is_printed",
        || {
            let recv = start_recv("-v 7");
            send(recv_addr(), &repeating(7, 0, 7000));
            let finished = recv.finish();
            assert_eq!(finished.code, Some(0));
            assert!(
                !finished.stderr.contains("connection  "),
                "{}",
                finished.stderr
            );
            assert!(
                finished.stderr.contains("drops  none"),
                "{}",
                finished.stderr
            );
        },
    );
}

#[test]
fn a_kernels_end_without_an_address_is_warned_of_with_the_command_that_adds_one() {
    const TEST: &str =
        "recv::lines::a_kernels_end_without_an_address_is_warned_of_with_the_command_that_adds_one";
    in_netns(TEST, || {
        let mut recv = start("recv --mem-size 32M -l --json");
        recv.until("`ip address add 10.77.0.1/24 dev dm0`");
        recv.until("listening on");
        signal(&recv, Signal::TERM);
        let finished = recv.finish();
        assert_eq!(finished.interrupted_json()["bytes"], 0);

        let recv = start_recv("-k --json");
        signal(&recv, Signal::TERM);
        let finished = recv.finish();
        assert!(!finished.stderr.contains("address"), "{}", finished.stderr);
    });
}

#[test]
fn the_line_of_a_connection_fits_a_narrow_terminal() {
    in_netns(
        "recv::lines::the_line_of_a_connection_fits_a_narrow_terminal",
        || {
            let mut command = crate::common::tool();
            command.args("recv --mem-size 32M --peer-addr 10.77.0.1/24 -k -v 7".split(' '));
            command
                .env("COLUMNS", "40")
                .stdin(std::process::Stdio::null());
            let mut recv = crate::common::start_command(command);
            recv.until("listening on");
            let to: SocketAddr = recv_addr();
            send(to, &repeating(7, 0, 70_000));
            recv.until("verified");
            signal(&recv, Signal::TERM);
            let finished = recv.finish();
            let is_note = |line: &&str| line.starts_with("devmem-tcp: ");
            for line in finished.stderr.lines().filter(|line| !is_note(line)) {
                assert!(
                    line.chars().count() <= 40,
                    "{line:?} in:\n{}",
                    finished.stderr
                );
            }
        },
    );
}
