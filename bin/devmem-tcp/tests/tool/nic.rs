//! `devmem-tcp nic` between a machine with the small gVNIC driver and a wire to the test, to our stack, or to the kernel.
//! The lab has the tests with QEMU and a Linux guest.

#[path = "../common/machine.rs"]
mod machine;

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{LIMIT, Running, run, start, start_command, start_with, tool};
use devmem_linux::test_util::{in_netns, skip};
use gve_driver::{QueueOptions, TxRequest};
use machine::Machine;
use pcap_file::pcapng::{Block, PcapNgReader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;
use tempfile::TempDir;

/// Bytes of the virtio-net header before each frame.
const VNET: usize = 10;
const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// One queue pair, so that the test knows the queue of every packet.
fn one_queue() -> QueueOptions {
    QueueOptions {
        pairs: 1,
        ..QueueOptions::default()
    }
}

/// Files of one test.
struct Files(TempDir);

impl Files {
    fn new(test: &str) -> Self {
        let folder = tempfile::Builder::new().prefix(test).tempdir();
        Self(folder.unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Serves a NIC of one queue pair whose wire is a UNIX socket.
fn serve(files: &Files, options: &str) -> Running {
    let mut nic = start(&command(files, options));
    nic.until("a gVNIC 02:00:00:00:00:09");
    nic
}

fn command(files: &Files, options: &str) -> String {
    let (socket, wire) = (files.at("nic"), files.at("wire"));
    let (socket, wire) = (socket.display(), wire.display());
    format!(
        "nic --json --socket {socket} --wire unix-listen:{wire} --queues 1 --mac 02:00:00:00:00:09 {options}"
    )
}

/// Ends a NIC and returns what it reports.
fn end(nic: Running) -> Value {
    kill_process(nic.pid(), Signal::INT).unwrap();
    nic.finish().json()
}

/// The other end of a NIC's wire.
struct Wire(OwnedFd);

impl Wire {
    fn join(path: &Path) -> Self {
        // A process that another test starts has copies of our descriptors for a moment. Then the previous connection of
        // the wire still seems open, and this one is refused.
        let until = Instant::now() + LIMIT;
        loop {
            match Self::try_join(path) {
                Some(wire) => return wire,
                None => assert!(Instant::now() < until, "refused until the time limit"),
            }
        }
    }

    fn try_join(path: &Path) -> Option<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        // MTU 1500 and no offloads: complete frames, as on a cable.
        let hello = b"DMTW\x01\0\0\0\xdc\x05\0\0";
        send(&socket, hello, SendFlags::NOSIGNAL).ok()?;
        let mut theirs = [0; 12];
        match recv(&socket, &mut theirs[..], RecvFlags::empty()) {
            Ok((12, _)) => assert_eq!(theirs[..6], *b"DMTW\x01\0"),
            Ok(_) | Err(_) => return None,
        }
        Some(Self(socket))
    }

    fn send_packet(&self, packet: &[u8]) {
        assert_eq!(send(&self.0, packet, SendFlags::NOSIGNAL), Ok(packet.len()));
    }

    fn packet(&self) -> Vec<u8> {
        let limit = Timespec::try_from(LIMIT).unwrap();
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "nothing comes");
        let mut packet = vec![0; 70_000];
        let (len, _) = recv(&self.0, &mut packet[..], RecvFlags::empty()).unwrap();
        packet.truncate(len);
        packet
    }

    fn send(&self, frame: &[u8]) {
        self.send_packet(&[&[0; VNET], frame].concat());
    }

    fn frame(&self) -> Vec<u8> {
        self.packet().split_off(VNET)
    }
}

/// A frame of no known protocol.
fn frame(number: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![number; len];
    frame[..6].copy_from_slice(&GUEST_MAC);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    // Local experimental EtherType 1 (IEEE 802, 9.2.3).
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

#[test]
fn frames_go_both_ways_between_a_machine_and_the_wire() {
    let files = Files::new("both-ways");
    let nic = serve(&files, "");
    let wire = Wire::join(&files.at("wire"));
    let mut machine = Machine::start(&files.at("nic"), one_queue());
    assert_eq!(machine.config(0), 0x0042_1ae0);
    for (number, len) in [(1, 60), (2, 1514), (3, 14), (4, 700)] {
        let sent = frame(number, len);
        machine
            .driver
            .send(&mut machine.pci, 0, &TxRequest::plain(&sent))
            .unwrap();
        assert_eq!(wire.frame(), sent);
        wire.send(&sent);
        let received = machine.receive(0);
        assert_eq!(received.len(), 1);
        assert_eq!(received[0].frame(), sent);
    }
    machine.settle();
    let done = machine.driver.poll_tx(0).unwrap();
    assert_eq!(done.tags.len(), 4);
    drop(machine);
    let report = end(nic);
    assert_eq!(report["frames"]["rx_frames"], 4, "{report}");
    assert_eq!(report["frames"]["tx_frames"], 4, "{report}");
    assert_eq!(report["rx"][0]["packets"], 4, "{report}");
    assert_eq!(report["machine"]["refused_requests"], 0, "{report}");
    assert_eq!(report["device"]["adminq_refused"], 0, "{report}");
    assert!(
        !files.at("nic").exists(),
        "the sockets are removed with the process"
    );
    assert!(!files.at("wire").exists());
}

#[test]
fn machines_and_wires_can_reconnect() {
    let files = Files::new("come-and-go");
    let mut nic = serve(&files, "");
    for round in 1..=3 {
        let mut machine = Machine::start(&files.at("nic"), one_queue());
        let wire = Wire::join(&files.at("wire"));
        let sent = frame(round, 100);
        wire.send(&sent);
        assert_eq!(machine.receive(0)[0].frame(), sent);
        drop(wire);
        let wire = Wire::join(&files.at("wire"));
        machine
            .driver
            .send(&mut machine.pci, 0, &TxRequest::plain(&sent))
            .unwrap();
        assert_eq!(wire.frame(), sent);
        drop(machine);
        nic.until("the client has left");
    }
    assert_eq!(end(nic)["machine"]["clients"], 3);
}

#[test]
fn the_link_is_up_while_a_peer_is_connected() {
    const UP: u32 = 1 << 2;
    let files = Files::new("link");
    let nic = serve(&files, "");
    let mut machine = Machine::start(&files.at("nic"), one_queue());
    let status = |machine: &mut Machine| {
        let mut word = [0; 4];
        gve_driver::BarAccess::read(&mut machine.pci, 0, 0, &mut word);
        u32::from_be_bytes(word)
    };
    assert_eq!(status(&mut machine) & UP, 0);
    let wire = Wire::join(&files.at("wire"));
    machine.pci.wait_for_interrupt(2);
    assert_eq!(status(&mut machine) & UP, UP);
    drop(wire);
    machine.pci.wait_for_interrupt(2);
    assert_eq!(status(&mut machine) & UP, 0);
    end(nic);
}

#[test]
fn a_client_with_invalid_messages_is_disconnected_and_the_next_one_served() {
    let files = Files::new("nonsense");
    let mut nic = serve(&files, "");
    let mut stream = std::os::unix::net::UnixStream::connect(files.at("nic")).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&[0xff; 64]).unwrap();
    let mut rest = Vec::new();
    // Disconnected, with a reset if some of its data was not read.
    let _ = stream.read_to_end(&mut rest);
    nic.until("the client was disconnected");
    Machine::start(&files.at("nic"), one_queue());
    let report = end(nic);
    assert_eq!(report["machine"]["disconnected_clients"], 1, "{report}");
    assert_eq!(report["machine"]["clients"], 2, "{report}");
}

#[test]
fn a_machine_with_blocking_full_eventfds_does_not_block_the_device() {
    let files = Files::new("full-interrupts");
    let nic = serve(&files, "");
    let wire = Wire::join(&files.at("wire"));
    let mut machine = Machine::start(&files.at("nic"), one_queue());
    machine.pci.make_interrupts_wait();
    wire.send(&frame(1, 100));
    // The packet is written before its interrupt is raised. The device continues, answers, and serves the next machine.
    machine.receive_without_interrupt(0);
    machine.settle();
    drop(machine);
    let mut machine = Machine::start(&files.at("nic"), one_queue());
    let sent = frame(7, 100);
    wire.send(&sent);
    assert_eq!(machine.receive(0)[0].frame(), sent);
    machine.driver.enable_irq(&mut machine.pci, 1, None);
    machine.settle();
    machine.pci.make_interrupts_wait();
    wire.send(&sent);
    machine.receive_without_interrupt(0);
    // One SIGTERM ends the process, although the machine is connected and its eventfds are full.
    kill_process(nic.pid(), Signal::TERM).unwrap();
    let report = nic.finish().json();
    assert_eq!(report["machine"]["clients"], 2, "{report}");
    assert_eq!(report["machine"]["interrupts_unheard"], 0, "{report}");
}

#[test]
fn a_machine_that_reconnects_at_once_is_accepted() {
    let files = Files::new("back-at-once");
    let nic = serve(&files, "");
    const ROUNDS: u32 = 300;
    for round in 0..ROUNDS {
        let mut stream = std::os::unix::net::UnixStream::connect(files.at("nic")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // VERSION 0.0 without JSON, and posted writes that are still unread when this end is closed.
        let version = [0, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        stream.write_all(&version).unwrap();
        let mut answer = [0; 16];
        let answered = stream.read_exact(&mut answer);
        assert!(answered.is_ok(), "round {round}: {answered:?}");
        let write = [
            &[0, 0, 10, 0, 36, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0][..],
            &[8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        for _ in 0..200 {
            stream.write_all(&write).unwrap();
        }
        // Closing is not enough: a process that another test starts has a copy of this descriptor for a moment.
        stream.shutdown(Shutdown::Both).unwrap();
    }
    let report = end(nic);
    assert_eq!(report["machine"]["refused_clients"], 0, "{report}");
    assert_eq!(report["machine"]["clients"], ROUNDS, "{report}");
}

#[test]
fn connections_without_a_free_descriptor_wait_until_one_is_free() {
    let files = Files::new("no-descriptors");
    let mut nic = serve(&files, "");
    let usual = descriptors(nic.pid(), lowest_unused(nic.pid()));
    let machine = std::os::unix::net::UnixStream::connect(files.at("nic")).unwrap();
    nic.until("the virtual machine cannot be accepted");
    let wire = files.at("wire");
    let wire = std::thread::spawn(move || Wire::join(&wire));
    nic.until("the other end of the wire cannot be accepted");
    // They are tried again, without a further message.
    std::thread::sleep(Duration::from_millis(600));
    descriptors(nic.pid(), usual);
    let wire = wire.join().unwrap();
    nic.until("a virtual machine has connected");
    drop(machine);
    nic.until("the client has left");
    let mut machine = Machine::start(&files.at("nic"), one_queue());
    let sent = frame(1, 100);
    wire.send(&sent);
    assert_eq!(machine.receive(0)[0].frame(), sent);
    kill_process(nic.pid(), Signal::INT).unwrap();
    let stderr = nic.finish().stderr;
    assert_eq!(stderr.matches("cannot be accepted").count(), 2, "{stderr}");
}

/// Sets the limit on descriptors of a process; returns the previous limit.
fn descriptors(pid: Pid, most: Option<u64>) -> Option<u64> {
    let limit = Rlimit {
        current: most,
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    let before = prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    before.current
}

fn lowest_unused(pid: Pid) -> Option<u64> {
    let open = PathBuf::from(format!("/proc/{}/fd", pid.as_raw_nonzero()));
    (0..).find(|number: &u64| fs::symlink_metadata(open.join(number.to_string())).is_err())
}

#[test]
fn an_impaired_wire_loses_frames_and_counts_them() {
    let files = Files::new("impaired");
    let nic = serve(&files, "--impair loss=50%,seed=3");
    let wire = Wire::join(&files.at("wire"));
    let mut machine = Machine::start(&files.at("nic"), one_queue());
    let total = 40;
    for number in 0..total {
        wire.send(&frame(number, 100));
    }
    let mut received = 0;
    // The last frames may be lost: the counters of the device tell when all frames are processed.
    while received < 5 {
        received += machine.receive(0).len();
    }
    let report = end(nic);
    let lane = &report["impaired"]["to_device"];
    let count = |name: &str| lane[name].as_u64().unwrap();
    assert!(count("lost") > 0, "{report}");
    assert_eq!(
        count("offered"),
        count("lost") + count("delivered"),
        "{report}"
    );
    assert!(count("delivered") >= received as u64, "{report}");
}

#[test]
fn a_capture_has_every_frame_with_its_payload() {
    let files = Files::new("capture");
    let capture = files.at("frames.pcapng");
    let nic = serve(&files, &format!("--capture {}", capture.display()));
    let wire = Wire::join(&files.at("wire"));
    let mut machine = Machine::start(&files.at("nic"), one_queue());
    let [to, from] = [frame(0xa1, 300), frame(0xb2, 200)];
    wire.send(&to);
    machine.receive(0);
    machine
        .driver
        .send(&mut machine.pci, 0, &TxRequest::plain(&from))
        .unwrap();
    wire.frame();
    end(nic);
    let bytes = fs::read(&capture).unwrap();
    for frame in [to, from] {
        assert!(bytes.windows(frame.len()).any(|window| window == frame));
    }
}

#[test]
fn a_capture_on_a_full_disk_has_whole_packets_and_the_device_continues() {
    const TEST: &str = "nic::a_capture_on_a_full_disk_has_whole_packets_and_the_device_continues";
    let files = Files::new("full-disk");
    let disk = files.at("disk");
    fs::create_dir(&disk).unwrap();
    let capture = disk.join("frames.pcapng");
    let mount = format!("mount -t tmpfs -o size=1536k disk {}", disk.display());
    let mut probe = std::process::Command::new("unshare");
    probe.args(["--mount", "sh", "-c", &mount]);
    if !probe.output().is_ok_and(|probed| probed.status.success()) {
        return skip(TEST, "tun", "no tmpfs can be mounted in a namespace here");
    }
    let options = format!("--capture {}", capture.display());
    let mut command = std::process::Command::new("unshare");
    let script = format!("{mount} && exec \"$@\"");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    command.arg(tool().get_program());
    command.args(self::command(&files, &options).split_whitespace());
    let mut nic = start_command(command);
    nic.until("a gVNIC 02:00:00:00:00:09");
    let wire = Wire::join(&files.at("wire"));
    // 3 MB; there is room for half of it.
    for number in 0..2000u32 {
        wire.send(&frame(number.to_le_bytes()[0], 1514));
    }
    nic.until("No space left on device");
    let pid = nic.pid().as_raw_nonzero();
    let path = PathBuf::from(format!("/proc/{pid}/root")).join(capture.strip_prefix("/").unwrap());
    let bytes = fs::read(path).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut packets = 0u32;
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.expect("whole blocks") {
            assert_eq!(
                packet.data[14..],
                frame(packets.to_le_bytes()[0], 1514)[14..]
            );
            packets += 1;
        }
    }
    assert!(packets > 500, "{packets}");
    let mut machine = Machine::start(&files.at("nic"), one_queue());
    let sent = frame(7, 100);
    wire.send(&sent);
    assert_eq!(machine.receive(0)[0].frame(), sent);
    kill_process(nic.pid(), Signal::TERM).unwrap();
    let ended = nic.finish();
    let kept = format!("frames.pcapng has its first {packets} packets: write: No space left");
    ended.failed_with(1, &kept);
    let report: Value = serde_json::from_slice(&ended.stdout).expect("the report, all the same");
    assert_eq!(report["frames"]["rx_frames"], 2001, "{report}");
}

#[test]
fn commands_on_standard_input_reach_the_running_device() {
    let files = Files::new("control");
    let (stdin, input) = std::io::pipe().unwrap();
    let mut nic = start_with(&command(&files, "--control"), Stdio::from(stdin));
    nic.until("a gVNIC");
    let _wire = Wire::join(&files.at("wire"));
    let mut machine = Machine::start(&files.at("nic"), one_queue());
    let mut input = input;
    // Each command raises the management vector of a device with one queue pair.
    for line in ["link down", "link up", "reset"] {
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
        machine.pci.wait_for_interrupt(2);
    }
    machine.driver.reset(&mut machine.pci).unwrap();
    input.write_all(b"nonsense\nquit\n").unwrap();
    let finished = nic.finish();
    assert!(
        finished.stderr.contains("\"nonsense\" is not a command"),
        "{}",
        finished.stderr
    );
    let report = finished.json();
    assert_eq!(report["device"]["reset_requests"], 1, "{report}");
    assert_eq!(report["device"]["driver_resets"], 1, "{report}");
}

#[test]
fn sigusr1_prints_statistics_and_the_device_continues() {
    let files = Files::new("usr1");
    let mut nic = serve(&files, "");
    kill_process(nic.pid(), Signal::USR1).unwrap();
    nic.until("messages");
    Machine::start(&files.at("nic"), one_queue());
    end(nic);
}

#[test]
fn our_own_stack_is_at_the_other_end_of_the_wire() {
    let files = Files::new("stack");
    let nic = serve(&files, "");
    let wire = files.at("wire");
    let mut recv = start(&format!(
        "recv --mem-size 32M --link unix:{} --addr 10.77.0.1/24 -l --json",
        wire.display()
    ));
    recv.until("listening on");
    let mut machine = Machine::start(&files.at("nic"), one_queue());
    // ARP request of 10.77.0.2 for 10.77.0.1 (RFC 826).
    let mut ask = vec![0xff; 6];
    ask.extend(GUEST_MAC);
    ask.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    ask.extend(GUEST_MAC);
    ask.extend([10, 77, 0, 2, 0, 0, 0, 0, 0, 0, 10, 77, 0, 1]);
    machine
        .driver
        .send(&mut machine.pci, 0, &TxRequest::plain(&ask))
        .unwrap();
    let answer = loop {
        let packets = machine.receive(0);
        let frames = packets.iter().map(gve_driver::RxPacket::frame);
        // Other packets of the stack do not matter.
        if let Some(answer) = frames
            .into_iter()
            .find(|frame| frame[12..14] == [8, 6] && frame[21] == 2)
        {
            break answer;
        }
    };
    assert_eq!(answer[..6], GUEST_MAC);
    assert_eq!(answer[28..32], [10, 77, 0, 1]);
    kill_process(recv.pid(), Signal::INT).unwrap();
    recv.finish().failed_with(1, "interrupted");
    end(nic);
}

#[test]
fn a_silent_connection_does_not_block_the_wire() {
    let files = Files::new("silent");
    let nic = serve(&files, "");
    let flags = SocketFlags::CLOEXEC;
    let silent: Vec<_> = (0..3)
        .map(|_| {
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let socket = socket_with(family, kind, flags, None).unwrap();
            connect(&socket, &SocketAddrUnix::new(files.at("wire")).unwrap()).unwrap();
            socket
        })
        .collect();
    // It succeeds at once, without waiting for the silent connections to be closed.
    let wire = Wire::try_join(&files.at("wire")).expect("the one that says hello is the other end");
    for socket in &silent {
        let mut packet = [0; 16];
        let (len, _) = recv(socket, &mut packet[..], RecvFlags::empty()).unwrap_or_default();
        assert_eq!(len, 0, "closed without a hello");
    }
    drop(wire);
    end(nic);
}

#[test]
fn the_kernel_is_at_the_other_end_of_a_tap() {
    in_netns("nic::the_kernel_is_at_the_other_end_of_a_tap", || {
        let files = Files::new("tap");
        let socket = files.at("nic");
        let mut nic = start(&format!(
            "nic --json --socket {} --wire tap:gv0,10.77.0.1/24 --queues 1 --mac 02:00:00:00:00:09",
            socket.display()
        ));
        nic.until("a gVNIC");
        let mut machine = Machine::start(&socket, one_queue());
        // The kernel resolves a neighbour as soon as a socket sends to it.
        let socket = std::net::UdpSocket::bind("10.77.0.1:0").unwrap();
        socket.send_to(b"anybody there?", "10.77.0.2:9").unwrap();
        let asked = loop {
            let frames = machine.receive(0);
            let mut arp = frames
                .iter()
                .filter(|packet| packet.frame()[12..14] == [8, 6]);
            if let Some(packet) = arp.next() {
                break packet.frame();
            }
        };
        assert_eq!(asked[38..42], [10, 77, 0, 2]);
        end(nic);
    });
}

#[test]
fn invalid_options_are_refused_with_a_remedy() {
    let files = Files::new("refused");
    let at = |name: &str| files.at(name).display().to_string();
    fs::write(files.at("file"), "").unwrap();
    let cases = [
        ("--socket x --wire mem:x".to_owned(), 2, "is not a wire"),
        (
            "--socket x --wire unix:w --queues 0".to_owned(),
            2,
            "--queues 0",
        ),
        (
            "--socket x --wire unix:w --mtu 67".to_owned(),
            2,
            "--mtu 67",
        ),
        (
            "--socket x --wire unix:w --mtu 1500 --max-mtu 1400".to_owned(),
            2,
            "--max-mtu 1400",
        ),
        (
            "--socket x --wire unix:w --mac 01:00:00:00:00:01".to_owned(),
            2,
            "--mac",
        ),
        (
            "--socket x --wire unix:w --impair loss=2".to_owned(),
            2,
            "--impair",
        ),
        (
            format!("--socket {} --wire unix:w", at("file")),
            1,
            "is not a socket; choose another --socket",
        ),
        (
            format!("--socket {}/x --wire unix:w", at("none")),
            1,
            "in a folder that you may write to",
        ),
    ];
    for (options, code, text) in cases {
        run(&format!("nic {options}")).failed_with(code, text);
    }
    let first = serve(&files, "");
    let second = run(&format!(
        "nic --socket {} --wire unix:{}",
        at("nic"),
        at("other")
    ));
    second.failed_with(1, "another process is listening there; end that process");
    let wire = run(&format!(
        "nic --socket {} --wire unix-listen:{}",
        at("other"),
        at("wire")
    ));
    wire.failed_with(1, "or connect to it with unix:PATH");
    end(first);
}
