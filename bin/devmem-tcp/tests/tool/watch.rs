//! `--watch`: the live view on a pseudoterminal.

use std::io::Read;
use std::process::{Child, ExitStatus};

use devmem_linux::test_util::{in_netns, skip, wait_or_kill};

use crate::common::{LIMIT, hang_up, has_tap, tool};
use tool::pty::Pty;

/// A run of the tool on a terminal.
struct Watched {
    pty: Pty,
    child: Child,
}

/// Starts the tool; `None`: the test is skipped.
fn watch(test: &str, line: &str) -> Option<Watched> {
    let pty = Pty::open(100, 40);
    let mut command = tool();
    command.args(line.split_whitespace());
    let Some(child) = pty.start(&command) else {
        skip(test, "tun", "no setsid(1) on this machine");
        return None;
    };
    Some(Watched { pty, child })
}

impl Watched {
    /// Waits for a text on the screen; returns the screen.
    #[track_caller]
    fn until(&mut self, text: &str) -> String {
        let has = |screen: &[String]| screen.iter().any(|line| line.contains(text));
        self.pty.until(text, has).join("\n")
    }

    /// Waits for the end; returns the status, stdout, and what the terminal got behind the live view.
    fn finish(mut self) -> (ExitStatus, String, String) {
        self.pty.read_to_end();
        let status = self.child.wait().unwrap();
        let mut stdout = String::new();
        let mut pipe = self.child.stdout.take().unwrap();
        pipe.read_to_string(&mut stdout).unwrap();
        assert!(!self.pty.is_raw(), "the terminal is not restored");
        let output = String::from_utf8_lossy(&self.pty.output).into_owned();
        let (_, after) = output
            .rsplit_once("\x1b[?1049l")
            .expect("the view has ended");
        (status, stdout, after.to_owned())
    }
}

#[test]
fn a_demo_is_shown_live_until_q() {
    const TEST: &str = "watch::a_demo_is_shown_live_until_q";
    if !has_tap(TEST) {
        return;
    }
    let Some(mut demo) = watch(TEST, "demo --bytes 900G --watch") else {
        return;
    };
    let screen = demo.until("ESTABLISHED");
    assert!(demo.pty.is_raw());
    for text in [
        "devmem-tcp demo  into device memory, 10.77.0.2:5201",
        "bit/s now",
        " of 900 GiB",
        "net_iovs  4096 of 64 KiB: ",
        " in page pools, ",
        "tokens    ",
        "queue packets ",
        "peer ",
    ] {
        assert!(screen.contains(text), "no {text:?} on\n{screen}");
    }
    demo.pty.press("q");
    let (status, _, after) = demo.finish();
    assert_eq!(status.code(), Some(1), "{after}");
    assert!(after.contains("devmem-tcp: interrupted"), "{after}");
}

#[test]
fn the_table_follows_when_the_transfer_ends() {
    const TEST: &str = "watch::the_table_follows_when_the_transfer_ends";
    if !has_tap(TEST) {
        return;
    }
    let Some(demo) = watch(TEST, "demo --bytes 64M --watch --json") else {
        return;
    };
    let (status, stdout, after) = demo.finish();
    assert!(status.success(), "{after}");
    let report: serde_json::Value = serde_json::from_str(&stdout).expect("one JSON object");
    assert_eq!(report["verified_bytes"], 64 << 20);
    assert!(after.contains("every byte, in device memory"), "{after}");
}

#[test]
fn the_key_q_ends_a_receiver_that_waits() {
    const TEST: &str = "watch::the_key_q_ends_a_receiver_that_waits";
    in_netns(TEST, || {
        let Some(mut recv) = watch(TEST, "recv --peer-addr 10.77.0.1/24 -k --watch") else {
            return;
        };
        recv.until("no open connection");
        recv.pty.press("xq");
        let (status, _, after) = recv.finish();
        assert!(status.success(), "{after}");
        assert!(after.contains("0 B"), "the table follows: {after}");
    });
}

#[test]
fn the_terminal_is_not_shared_with_the_payload() {
    const TEST: &str = "watch::the_terminal_is_not_shared_with_the_payload";
    let Some(mut send) = watch(TEST, "send 10.77.0.1 --watch") else {
        return;
    };
    send.until("they cannot be the input; --input-file FILE");
    assert_eq!(send.child.wait().unwrap().code(), Some(2));
}

#[test]
fn the_run_ends_with_its_terminal() {
    const TEST: &str = "watch::the_run_ends_with_its_terminal";
    if !has_tap(TEST) {
        return;
    }
    if hang_up().is_none() {
        return skip(
            TEST,
            "SIGHUP",
            "it is ignored, as by nohup, and the tool goes on then",
        );
    }
    let Some(mut demo) = watch(TEST, "demo --bytes 900G --watch") else {
        return;
    };
    demo.until("ESTABLISHED");
    let Watched { pty, mut child } = demo;
    drop(pty);
    let status = wait_or_kill(&mut child, LIMIT).expect("the run ends");
    assert!(!status.success());
}

#[test]
fn ctrl_c_interrupts_a_sender() {
    const TEST: &str = "watch::ctrl_c_interrupts_a_sender";
    if !has_tap(TEST) {
        return;
    }
    let Some(mut demo) = watch(TEST, "demo --direction tx --bytes 900G --watch") else {
        return;
    };
    let screen = demo.until("10.77.0.1:5201  ");
    assert!(screen.contains("chunks"), "{screen}");
    assert!(screen.contains(" packets as "), "{screen}");
    demo.pty.press("\x03");
    let (status, _, after) = demo.finish();
    assert_eq!(status.code(), Some(1), "{after}");
    assert!(after.contains("devmem-tcp: interrupted"), "{after}");
}
