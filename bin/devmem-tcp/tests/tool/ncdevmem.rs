//! `ncdevmem` without a NIC: names, flags, refusals, exit codes. `lab_nic.rs` has the tests with a NIC.

mod devmem_py;

use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::common::{Finished, run, start_command, tool};
use devmem_linux::netif::Interface;
use devmem_linux::test_util::in_netns;

/// Runs the tool under another name, as a link to it would.
fn run_as(name: &str, line: &str) -> Finished {
    let mut command = tool();
    command.arg0(name).args(line.split_whitespace());
    command.stdin(Stdio::null());
    start_command(command).finish()
}

#[test]
fn the_program_name_selects_it_and_so_does_the_subcommand() {
    for finished in [
        run_as("ncdevmem", "-l"),
        run_as("/tmp/abcdefghncdevmem", "-l"),
        run("ncdevmem -l"),
    ] {
        finished.failed_with(1, "ncdevmem: Missing -f argument");
        assert!(finished.stdout.is_empty());
    }
    assert_eq!(run_as("devmem-tcp", "-l").code, Some(2));
}

#[test]
fn help_has_every_flag() {
    for finished in [run_as("ncdevmem", "-h"), run("ncdevmem -h")] {
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let text = String::from_utf8(finished.stdout).unwrap();
        for flag in "fsplcvtqznLbh".chars() {
            assert!(text.contains(&format!("\n  -{flag} ")), "-{flag}: {text}");
        }
    }
}

#[test]
fn wrong_flags_end_with_1_and_words_that_scripts_know() {
    let cases = [
        ("", "Missing -f argument"),
        ("-f nosuch0", "nosuch0"),
        ("-f lo", "couldn't detect number of queues"),
        ("-f lo -t 1", "Both -t and -q are required"),
        ("-f lo -l -s 127.0.0.1 -p 5201 -t 1", "Missing -q argument"),
        ("-f lo -l -s 127.0.0.1 -t 1 -q 1", "Missing -p argument"),
        ("-f lo -l -c 127.0.0.1 -p 5201", "Missing -s argument"),
        ("-f lo -W", "unknown option: W"),
        ("-f lo -b 5000", "rx_page_size must be a power of 2"),
    ];
    for (line, text) in cases {
        run(&format!("ncdevmem {line}")).failed_with(1, text);
    }
}

#[test]
fn unsupported_interfaces_are_refused_and_not_changed() {
    const TEST: &str = "ncdevmem::unsupported_interfaces_are_refused_and_not_changed";
    in_netns(TEST, || {
        Interface::create_veth_pair("nc0", "nc1").unwrap();
        let server = run("ncdevmem -f nc0 -l -s 192.0.2.1 -p 5201 -t 1 -q 1 -v 7");
        server.failed_with(1, "nc0 (veth) cannot be prepared: ");
        let index = Interface::by_name("nc0").unwrap().index();
        assert!(
            server
                .stderr
                .starts_with(&format!("using ifindex={index}\n")),
            "{}",
            server.stderr
        );

        // Without udmabuf the run fails before the bind request.
        let prepared = run("ncdevmem -f nc0 -l -s 192.0.2.1 -p 5201 -t 1 -q 1 -n");
        assert_eq!(prepared.code, Some(1));
        let client = run("ncdevmem -f nc0 -s 192.0.2.1 -p 5201");
        assert_eq!(client.code, Some(1));
        let probe = run("ncdevmem -f nc0 -t 1 -q 1");
        assert_eq!(probe.code, Some(1));
        for (finished, refused) in [
            (prepared, "Failed to bind: bind-rx on nc0 queue 1 refused: "),
            (client, "Failed to bind: bind-tx on nc0 refused: "),
            (probe, "nc0 (veth) cannot be prepared: "),
        ] {
            let said = &finished.stderr;
            assert!(
                said.contains(refused) || said.contains("Failed to allocate memory buffer"),
                "{said}"
            );
        }
    });
}
