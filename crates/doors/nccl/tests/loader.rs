//! The caller's side in Rust (`nccl_load`), with the built plugin: what guests of the lab do, in one process that connects to itself over
//! the kernel's loopback. The plugin reads its settings from the environment, so each test starts itself again with others.

use std::env;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use devmem_linux::dmabuf::{CpuAccess, DmabufFd};
use devmem_linux::test_util::{GuestHas, built_library, skip_outside_guest};
use nccl_load::{Plugin, PluginError, Request, Tested};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const DEVICES: &str = "DEVMEM_TCP_DEVICES";

/// Runs `work` in a process in which the plugin uses `devices`.
fn with_devices(test: &str, devices: &str, work: fn()) {
    if env::var_os(DEVICES).is_some() {
        return work();
    }
    let me = env::current_exe().unwrap();
    let mut command = Command::new(me);
    command.args(["--exact", test, "--nocapture"]);
    let output = command.env(DEVICES, devices).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    for skipped in said.lines().filter(|line| line.starts_with("SKIP")) {
        // The harness captures what println! writes.
        writeln!(std::io::stderr(), "{skipped}").expect("stderr is open");
    }
    assert!(output.status.success(), "{said}");
}

fn load() -> Result<Plugin, PluginError> {
    Plugin::load(&built_library("libnccl_net_devmem.so"))
}

fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(start.elapsed() < PATIENCE, "nothing happens");
        std::thread::yield_now();
    }
}

fn finish(request: Request<'_>) -> usize {
    let mut pending = Some(request);
    until(|| match pending.take()?.test().unwrap() {
        Tested::Done(bytes) => Some(bytes),
        Tested::Pending(request) => {
            pending = Some(request);
            None
        }
    })
}

#[test]
fn a_message_crosses_from_dma_buf_to_dma_buf() {
    const TEST: &str = "a_message_crosses_from_dma_buf_to_dma_buf";
    with_devices(TEST, "kernel:lo", || {
        let plugin = load().unwrap();
        assert_eq!(plugin.devices().unwrap(), 1);
        let (mut handle, listener) = plugin.listen().unwrap();
        let (mut to, mut from) = (None, None);
        until(|| {
            to = to.take().or_else(|| plugin.connect(&mut handle).unwrap());
            from = from.take().or_else(|| listener.accept().unwrap());
            (to.is_some() && from.is_some()).then_some(())
        });
        let (to, from) = (to.unwrap(), from.unwrap());
        // No memory is needed for this: /dev/null is no dma-buf.
        let no_memory = std::fs::File::open("/dev/null").unwrap();
        let refused = to.register(no_memory.as_fd(), 4096).unwrap_err();
        assert!(
            refused.to_string().starts_with("reg_mr_dma_buf: "),
            "{refused}"
        );
        match DmabufFd::udmabuf(8192) {
            Err(refused) => skip_outside_guest(TEST, GuestHas::Udmabuf, &refused.to_string()),
            Ok(memory) => {
                let view = memory.cpu_view(CpuAccess::Write).unwrap();
                view.copy_in(0, &[7; 3000]).unwrap();
                view.end().unwrap();
                let source = to.register(memory.as_fd(), 4096).unwrap();
                let target = from.register(memory.as_fd(), 8192).unwrap();
                let receiving = until(|| from.receive(&target, 4096..8192).unwrap());
                let sending = until(|| to.send(&source, 0..3000).unwrap());
                assert_eq!((finish(receiving), finish(sending)), (3000, 3000));
                let mut received = [0; 3001];
                let view = memory.cpu_view(CpuAccess::Read).unwrap();
                view.copy_out(4096, &mut received).unwrap();
                assert_eq!((received[2999], received[3000]), (7, 0));
                assert!(to.send(&source, 4000..5000).is_err(), "not registered");
                let other = to.send(&target, 0..1).unwrap_err();
                assert!(matches!(other, PluginError::OtherComm), "{other}");
            }
        }
        to.close().unwrap();
        from.close().unwrap();
        drop(listener);
        plugin.unload().unwrap();
        let notes = nccl_load::take_notes().join("\n");
        assert!(notes.contains("a communicator is closed"), "{notes}");
    });
}

#[test]
fn a_refused_setting_has_the_reason_of_the_plugin() {
    const TEST: &str = "a_refused_setting_has_the_reason_of_the_plugin";
    with_devices(TEST, "nonsense", || {
        let refused = load().unwrap_err().to_string();
        assert!(refused.starts_with("init: invalid usage: "), "{refused}");
        assert!(refused.contains("nonsense"), "{refused}");
    });
}
