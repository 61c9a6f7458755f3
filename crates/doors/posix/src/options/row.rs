//! One socket option as a row of a table.

use std::ops::RangeInclusive;

use devmem_uapi::Errno;

use super::values::{byte_or_int, int};
use super::{Effect, Options};
use crate::sockaddr::Family;

/// Input of getsockopt.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) options: &'a Options,
    pub(super) family: Family,
    /// Settings used where the socket sets none.
    pub(super) base: &'a tcp::Config,
}

/// Numbers that an option accepts.
#[derive(Debug)]
pub(super) enum Check {
    /// All of them.
    Any,
    /// Those of a range; EINVAL for others.
    In(RangeInclusive<i32>),
    /// Those that a function accepts; otherwise its errno.
    By(fn(i32) -> Result<(), Errno>),
}

impl Check {
    /// A switch that is 0 or 1 and nothing else.
    pub(super) const SWITCH: Self = Self::In(0..=1);

    fn check(&self, number: i32) -> Result<i32, Errno> {
        match self {
            Self::Any => {}
            Self::In(range) if range.contains(&number) => {}
            Self::In(_) => return Err(Errno::EINVAL),
            Self::By(check) => check(number)?,
        }
        Ok(number)
    }
}

/// Stores a checked number.
type Store = fn(&mut Options, i32);

/// How setsockopt decodes, checks and stores its bytes.
#[derive(Debug)]
enum Set {
    /// setsockopt does not support the option.
    Never,
    /// As an int; further bytes are ignored.
    Int(Check, Store),
    /// As an int, or as a single byte where the value is shorter.
    ByteOrInt(Check, Store),
    /// Decoded by a function.
    Bytes(fn(&mut Options, &[u8]) -> Result<(), Errno>),
}

/// What getsockopt returns.
#[derive(Debug)]
enum Get {
    /// getsockopt does not support the option.
    Never,
    Int(fn(View<'_>) -> i32),
    Bytes(fn(View<'_>) -> Vec<u8>),
}

/// One socket option.
#[derive(Debug)]
pub(super) struct Row {
    level: i32,
    name: i32,
    set: Set,
    apply: fn(&Options) -> Effect,
    get: Get,
}

impl Row {
    /// Returns a row that neither call supports yet.
    pub(super) const fn new(level: i32, name: i32) -> Self {
        Self {
            level,
            name,
            set: Set::Never,
            apply: |_| Effect::None,
            get: Get::Never,
        }
    }

    /// Makes setsockopt accept an int.
    pub(super) const fn int(mut self, check: Check, store: Store) -> Self {
        self.set = Set::Int(check, store);
        self
    }

    /// Makes setsockopt accept a byte or an int.
    pub(super) const fn byte_or_int(mut self, check: Check, store: Store) -> Self {
        self.set = Set::ByteOrInt(check, store);
        self
    }

    /// Makes setsockopt pass its bytes to `store`.
    pub(super) const fn bytes(
        mut self,
        store: fn(&mut Options, &[u8]) -> Result<(), Errno>,
    ) -> Self {
        self.set = Set::Bytes(store);
        self
    }

    /// Sets the effect on the stack once the value is stored; none without this.
    pub(super) const fn apply(mut self, effect: fn(&Options) -> Effect) -> Self {
        self.apply = effect;
        self
    }

    /// Makes getsockopt return an int.
    pub(super) const fn get_int(mut self, get: fn(View<'_>) -> i32) -> Self {
        self.get = Get::Int(get);
        self
    }

    /// Makes getsockopt return other bytes.
    pub(super) const fn get_bytes(mut self, get: fn(View<'_>) -> Vec<u8>) -> Self {
        self.get = Get::Bytes(get);
        self
    }

    /// Returns level and name.
    pub(super) const fn name(&self) -> (i32, i32) {
        (self.level, self.name)
    }

    /// Returns whether setsockopt supports it.
    pub(super) const fn is_settable(&self) -> bool {
        !matches!(self.set, Set::Never)
    }

    /// Decodes, checks and stores a value. Returns its effect.
    ///
    /// # Errors
    /// EINVAL: the value is too short; the errno of the check; ENOPROTOOPT if it cannot be set.
    pub(super) fn set(&self, options: &mut Options, value: &[u8]) -> Result<Effect, Errno> {
        match &self.set {
            Set::Never => return Err(Errno::ENOPROTOOPT),
            Set::Int(check, store) => store(options, check.check(int(value)?)?),
            Set::ByteOrInt(check, store) => store(options, check.check(byte_or_int(value)?)?),
            Set::Bytes(store) => store(options, value)?,
        }
        Ok((self.apply)(options))
    }

    /// Returns the value's bytes.
    ///
    /// # Errors
    /// ENOPROTOOPT if it cannot be read.
    pub(super) fn get(&self, view: View<'_>) -> Result<Vec<u8>, Errno> {
        match self.get {
            Get::Never => Err(Errno::ENOPROTOOPT),
            Get::Int(get) => Ok(get(view).to_ne_bytes().to_vec()),
            Get::Bytes(get) => Ok(get(view)),
        }
    }
}
