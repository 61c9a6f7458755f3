//! How the stub behaves, and the log of its calls.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write;

/// The plan of the environment variable `STUB_GPU`: entries `key=value`, separated by commas.
#[derive(Debug)]
pub(crate) struct Plan {
    /// `driver=12080`: what cuDriverGetVersion returns, and hipRuntimeGetVersion.
    pub(crate) driver: Option<i32>,
    /// `devices=2`.
    pub(crate) devices: i32,
    /// `polls=3`: an event is done when it has been queried this number of times.
    pub(crate) polls: u32,
    /// `dmabuf=0`: memory is not exported.
    pub(crate) dmabuf: bool,
    /// `udmabuf=1`: exported memory is a dma-buf of the kernel (/dev/udmabuf), which its NICs can use; otherwise a memory file.
    pub(crate) udmabuf: bool,
    /// `managed=1`: memory moves between device and host.
    pub(crate) managed: bool,
    /// `reuse=1`: an address is given again when its memory was freed.
    pub(crate) reuse: bool,
    /// `memory=1048576`: bytes of each device.
    pub(crate) memory: usize,
    /// `copies=0`: copies move no bytes, as those of a GPU cost the CPU nothing; for measurements.
    pub(crate) copies: bool,
    /// `lost=2`: the device is lost after this number of submissions.
    pub(crate) lost: Option<usize>,
    /// `no=cuMemcpyBatchAsync`: functions that are not found.
    missing: Vec<String>,
    /// `fail=cuMemAlloc:2`: functions that fail, with the number of the error.
    failing: Vec<(String, i32)>,
    log: Option<File>,
}

impl Plan {
    /// Reads the environment.
    ///
    /// # Panics
    ///
    /// When an entry is not understood: the test is wrong.
    pub(crate) fn of_environment() -> Self {
        let mut plan = Plan {
            driver: None,
            devices: 1,
            polls: 0,
            dmabuf: true,
            udmabuf: false,
            managed: false,
            reuse: false,
            memory: 16 << 30,
            copies: true,
            lost: None,
            missing: Vec::new(),
            failing: Vec::new(),
            log: env::var_os("STUB_GPU_LOG").map(|path| {
                let opened = OpenOptions::new().append(true).create(true).open(path);
                opened.expect("the log can be opened")
            }),
        };
        let text = env::var("STUB_GPU").unwrap_or_default();
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            let (key, value) = entry.split_once('=').expect("key=value");
            plan.set(key, value);
        }
        plan
    }

    fn set(&mut self, key: &str, value: &str) {
        let number = || value.parse::<usize>().expect("a number");
        match key {
            "driver" => self.driver = Some(number() as i32),
            "devices" => self.devices = number() as i32,
            "polls" => self.polls = number() as u32,
            "dmabuf" => self.dmabuf = value != "0",
            "udmabuf" => self.udmabuf = value != "0",
            "managed" => self.managed = value != "0",
            "reuse" => self.reuse = value != "0",
            "memory" => self.memory = number(),
            "copies" => self.copies = value != "0",
            "lost" => self.lost = Some(number()),
            "no" => self.missing.push(value.to_owned()),
            "fail" => {
                let (name, code) = value.split_once(':').expect("name:code");
                self.failing
                    .push((name.to_owned(), code.parse().expect("a number")));
            }
            other => panic!("STUB_GPU has no {other}"),
        }
    }

    /// Returns whether a function can be found.
    pub(crate) fn has(&self, name: &str) -> bool {
        !self.missing.iter().any(|missing| missing == name)
    }

    /// Returns the error of a function that is to fail.
    pub(crate) fn failure(&self, name: &str) -> Option<i32> {
        let found = self.failing.iter().find(|(failing, _)| failing == name);
        found.map(|(_, code)| *code)
    }

    /// Appends a line to the log.
    pub(crate) fn log(&mut self, line: &str) {
        if let Some(log) = &mut self.log {
            // By one call: several processes may append to it.
            let line = format!("{line}\n");
            log.write_all(line.as_bytes())
                .expect("the log can be written");
        }
    }
}
