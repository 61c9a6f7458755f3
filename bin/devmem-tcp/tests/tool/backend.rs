//! `recv` and `send` with `--backend`: the choice, refusals, and that an unsupported NIC is not changed.
//! `lab_nic.rs` has the tests with a NIC that supports device memory.

use crate::common::{Finished, run, start};
use devmem_linux::netif::Interface;
use devmem_linux::test_util::in_netns;

#[track_caller]
fn assert_said(finished: &Finished, text: &str) {
    assert!(
        finished.stderr.contains(text),
        "no {text:?} in: {}",
        finished.stderr
    );
}

#[test]
fn the_kernel_backend_on_an_unsupported_interface_is_refused_with_the_missing_features() {
    const TEST: &str = "backend::the_kernel_backend_on_an_unsupported_interface_is_refused_with_the_missing_features";
    in_netns(TEST, || {
        let (mut veth, _peer) = Interface::create_veth_pair("k0", "k1").unwrap();
        let no_address = run("recv --backend kernel --if k0 -l");
        no_address.failed_with(1, "k0 has no address; ip address add ADDR/LEN dev k0");
        veth.add_address("192.0.2.1".parse().unwrap(), 24).unwrap();
        veth.set_up().unwrap();
        let dry_run = run("recv --backend kernel --if k0 --dry-run");
        dry_run.failed_with(3, "k0 (veth) cannot be prepared: ");
        assert!(dry_run.stdout.is_empty());
        for line in [
            "recv --backend kernel --if k0 -l",
            "recv --backend kernel --if k0 -l --configured",
            "send --backend kernel --if k0 192.0.2.2",
        ] {
            let refused = run(line);
            assert_eq!(refused.code, Some(3), "{line}: {}", refused.stderr);
            assert_eq!(refused.stdout, b"", "{line}");
            // The NIC before the memory.
            assert_said(&refused, "k0 cannot ");
            assert!(
                !refused.stderr.contains("udmabuf"),
                "{line}: {}",
                refused.stderr
            );
        }
        run("recv --backend kernel --if nosuch0").failed_with(1, "there is no interface nosuch0");
        // Nor can its queues be leased, whatever the kernel.
        let lease = run("lease k0 --pod netns=pid:1,addr=10.99.0.9,port=5201 --dry-run");
        lease.failed_with(3, "k0 (veth) cannot be prepared: ");
        assert!(lease.stdout.is_empty());
    });
}

#[test]
fn auto_chooses_the_user_backend_without_kernel_support_and_prints_the_reason() {
    const TEST: &str =
        "backend::auto_chooses_the_user_backend_without_kernel_support_and_prints_the_reason";
    in_netns(TEST, || {
        let mut recv =
            start("recv --mem-size 32M --if lo --addr 10.77.0.2/24 --peer-addr 10.77.0.1/24");
        recv.until("only it supports --peer-addr");
        recv.until("listening on 10.77.0.2:5201 over tap:dm0");
        rustix::process::kill_process(recv.pid(), rustix::process::Signal::TERM).unwrap();
        recv.finish().failed_with(1, "interrupted");

        let mut recv = start("recv --mem-size 32M --if lo --addr 10.77.0.2/24");
        recv.until("the user backend: lo cannot receive into device memory: ");
        recv.until("over tap:dm0");
        rustix::process::kill_process(recv.pid(), rustix::process::Signal::INT).unwrap();
        recv.finish().failed_with(1, "interrupted");

        let dry_run = run("recv --if lo --dry-run --addr 10.77.0.2/24");
        dry_run.failed_with(
            3,
            "--dry-run: the user backend does not change the settings of a NIC",
        );
        assert_said(
            &dry_run,
            "the user backend: lo cannot receive into device memory: ",
        );
        run("send --if nosuch0 10.77.0.1").failed_with(1, "there is no interface nosuch0");
    });
}
