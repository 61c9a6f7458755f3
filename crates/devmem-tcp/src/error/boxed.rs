//! Errors of this library behind `dyn Error`, and inside of I/O errors: what they are.

use std::error::Error as StdError;
use std::io;

use super::{BindError, Error, ErrorKind, RecvError, Remedy, of_memory};

impl ErrorKind {
    /// Returns the kind of an error of this library behind `dyn Error`, for programs that keep errors in a box; `None` for other
    /// errors. It does not look at sources.
    ///
    /// ```
    /// use devmem_tcp::{ErrorKind, Netdev};
    ///
    /// fn open() -> Result<Netdev, Box<dyn std::error::Error>> {
    ///     Ok(Netdev::kernel("nosuch0")?)
    /// }
    ///
    /// let error = open().unwrap_err();
    /// assert_eq!(ErrorKind::of(&*error), Some(ErrorKind::NotFound));
    /// ```
    pub fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        if let Some(error) = error.downcast_ref::<Error>() {
            return Some(error.kind());
        }
        if let Some(error) = error.downcast_ref::<RecvError>() {
            return Some(error.kind());
        }
        if let Some(error) = error.downcast_ref::<BindError>() {
            return Some(error.kind());
        }
        of_memory::kind_of(error)
    }
}

impl Remedy {
    /// Returns the remedy of an error of this library or of its memory behind `dyn Error`, also inside of an I/O error; `None` for other
    /// errors. It does not look at sources.
    ///
    /// ```
    /// use devmem_tcp::{Netdev, Remedy};
    ///
    /// fn open() -> Result<Netdev, Box<dyn std::error::Error>> {
    ///     Ok(Netdev::user("mem:unnamed", "10.77.0.2")?)
    /// }
    ///
    /// let error = open().unwrap_err();
    /// let help = Remedy::of(&*error).map(|remedy| format!("; {remedy}"));
    /// eprintln!("cannot open the NIC: {error}{}", help.unwrap_or_default());
    /// ```
    pub fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        let io = error.downcast_ref::<io::Error>();
        if let Some(inner) = io.and_then(io::Error::get_ref) {
            return Self::of(inner);
        }
        if let Some(error) = error.downcast_ref::<Error>() {
            return error.remedy();
        }
        if let Some(error) = error.downcast_ref::<RecvError>() {
            return error.remedy();
        }
        if let Some(error) = error.downcast_ref::<BindError>() {
            return error.remedy();
        }
        of_memory::remedy_of(error)
    }
}

/// Takes an error of this library back out; another I/O error becomes the reason.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        let error = match error.downcast::<Self>() {
            Ok(error) => return error,
            Err(error) => error,
        };
        let error = match error.downcast::<RecvError>() {
            Ok(error) => return error.into(),
            Err(error) => error,
        };
        match error.downcast::<BindError>() {
            Ok(error) => error.into(),
            Err(foreign) => {
                let mut error = Self::of_io(foreign.to_string(), &foreign);
                error.facts_mut().foreign = Some(foreign);
                error
            }
        }
    }
}
