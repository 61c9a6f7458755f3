//! Converts the input to numbers and frames, and creates a device.

#![allow(dead_code, reason = "no target uses all of it")]

use std::rc::Rc;

use gve::{Config, Offload};
use gve_driver::{Driver, QueueOptions};
use wire::MacAddr;

use crate::common::Bench;
use crate::common::frames::Frame;

/// The rest of the input.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Takes a byte, `None` at the end.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Takes a byte, 0 at the end.
    pub fn or_zero(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    /// Takes two bytes.
    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.or_zero(), self.or_zero()])
    }

    /// Takes up to `len` bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Takes a frame.
    pub fn frame(&mut self) -> Frame {
        let kind = self.or_zero();
        let len = usize::from(self.word());
        let len = match kind & 8 {
            0 => len % 1400,
            _ => len.min(65_000),
        };
        let frame = match kind & 3 {
            0 => Frame::tcp4(len),
            1 => Frame::tcp6(len),
            2 => Frame::udp4(len),
            _ => Frame::udp6(len),
        };
        let frame = frame.with_port(u16::from(self.or_zero()));
        if kind & 4 == 0 { frame } else { frame.tagged() }
    }

    /// Takes the offload information of a frame: correct, or none.
    pub fn offload(&mut self, frame: &Frame) -> Offload {
        match self.or_zero() {
            0..=99 => Offload::default(),
            100..=149 => crate::common::partial(frame),
            size => frame.gso(u16::from(size) * 8),
        }
    }
}

/// Creates a device with two queue pairs, small rings and a running driver.
pub fn small_device() -> (Bench, Driver) {
    small_device_with(QueueOptions::default())
}

/// Creates a device with two queue pairs and a running driver.
pub fn small_device_with(options: QueueOptions) -> (Bench, Driver) {
    let config = Config {
        queue_pairs: 2,
        ..Config::new(MacAddr([2, 0, 0, 0, 0, 1]))
    };
    let mut bench = Bench::with(config, 6 << 20);
    let mut driver = Driver::probe(Rc::clone(&bench.ram), &mut bench).expect("a new device");
    let options = QueueOptions {
        pairs: 2,
        ..options
    };
    driver.up(&mut bench, options).expect("a new device");
    (bench, driver)
}
