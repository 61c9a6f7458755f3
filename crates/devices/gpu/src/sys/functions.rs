//! The functions that the libraries of all vendors have, with their parameters.
//!
// UNSAFETY: pointers from a library become functions with the parameters that are declared here.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::platform::Version;

/// CUresult, hipError_t.
pub type Status = c_int;
/// A device.
pub type RawDevice = c_int;
/// An address of device memory. HIP declares pointers: they are passed alike.
pub type DevicePtr = u64;
/// A stream.
pub type RawStream = *mut c_void;
/// An event.
pub type RawEvent = *mut c_void;

/// The status of a call without an error.
pub const SUCCESS: Status = 0;

/// The status of a library that is not initialised in this process: `initialise` did so in the process that this one was forked
/// from.
pub(crate) const NOT_INITIALIZED: Status = 3;

/// Exports memory: room for a descriptor, address, bytes, kind of handle, flags.
pub type MemExport = unsafe extern "C" fn(*mut c_int, DevicePtr, usize, c_int, u64) -> Status;

/// Exports the allocation that a range is in: address, bytes, room for a descriptor and for the offset of the range.
pub type AllocationExport = unsafe extern "C" fn(DevicePtr, usize, *mut c_int, *mut u64) -> Status;

/// The function by which a library exports memory.
#[derive(Clone, Copy, Debug)]
pub enum Export {
    /// It exports a range, with the flags to try in this order.
    Range(Function<MemExport>, &'static [u64]),
    /// It exports the allocation that a range is in.
    Allocation(Function<AllocationExport>),
}

/// A function in the table of a vendor.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    /// Its symbol.
    pub symbol: &'static CStr,
    /// The version of the interface that brought it with these parameters.
    pub since: Version,
}

impl Name {
    /// Returns the name of a function that `major.minor` of the interface brought.
    pub const fn new(symbol: &'static CStr, major: u32, minor: u32) -> Self {
        let since = Version(major, minor);
        Self { symbol, since }
    }

    /// Returns the symbol as text.
    pub fn text(self) -> &'static str {
        self.symbol.to_str().unwrap_or_default()
    }
}

/// A function of a library.
#[derive(Clone, Copy, Debug)]
pub struct Function<F> {
    /// Its name, for errors.
    pub name: &'static str,
    /// The function.
    pub call: F,
}

/// Declares functions of a library: `Names, Table; field(parameters);...` makes a structure of their names, and one of the
/// functions.
#[macro_export]
macro_rules! function_table {
    ($names:ident, $table:ident; $($(#[doc = $doc:literal])* $field:ident ($($arg:ty),*);)*) => {
        /// The names of functions.
        #[derive(Clone, Copy, Debug)]
        pub struct $names {
            $($(#[doc = $doc])* pub $field: $crate::driver::Name,)*
        }

        /// Functions of a library.
        #[derive(Clone, Copy, Debug)]
        pub struct $table {
            $(
                $(#[doc = $doc])*
                pub $field: $crate::driver::Function<unsafe extern "C" fn($($arg),*) -> $crate::driver::Status>,
            )*
        }

        impl $table {
            /// Finds all functions.
            ///
            /// # Errors
            ///
            /// The error of `find` for the first one that is missing.
            ///
            /// # Safety
            ///
            /// `find` returns functions of a library that is never unloaded, and those that `names` names have the parameters
            /// of the fields.
            pub unsafe fn find(
                names: &$names,
                find: impl Fn($crate::driver::Name) -> Result<*mut c_void, $crate::LoadError>,
            ) -> Result<Self, $crate::LoadError> {
                Ok(Self {
                    $($field: {
                        let found = find(names.$field)?;
                        // SAFETY: the function of this name has these parameters, by the contract.
                        let call = unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) -> $crate::driver::Status,
                            >(found)
                        };
                        $crate::driver::Function { name: names.$field.text(), call }
                    },)*
                })
            }
        }
    };
}

// For files of this crate: the path of the exported macro leads through the root, which imports all of them.
pub(crate) use function_table;

function_table! {
    Names, Functions;
    /// Initialises the library: flags, 0.
    init(c_uint);
    /// Names an error: the error, room for the name.
    error_name(Status, *mut *const c_char);
    /// Counts the devices.
    device_count(*mut c_int);
    /// Names a device: room, its bytes, device.
    device_name(*mut c_char, c_int, RawDevice);
    /// Returns the bytes of a device's memory.
    device_memory(*mut usize, RawDevice);
    /// Returns an attribute: room, number, device.
    device_attribute(*mut c_int, c_int, RawDevice);
    /// Returns the PCI address of a device: room, its bytes, device.
    device_pci(*mut c_char, c_int, RawDevice);
    /// Returns the least and the greatest priority.
    stream_priorities(*mut c_int, *mut c_int);
    /// Allocates memory: room for the address, bytes.
    mem_alloc(*mut DevicePtr, usize);
    /// Frees memory.
    mem_free(DevicePtr);
    /// Registers host memory: address, bytes, flags.
    host_register(*mut c_void, usize, c_uint);
    /// Ends a registration.
    host_unregister(*mut c_void);
    /// Allocates host memory: room for the address, bytes, flags.
    host_alloc(*mut *mut c_void, usize, c_uint);
    /// Frees host memory.
    host_free(*mut c_void);
    /// Returns the device's address of host memory: room, address, flags.
    host_address(*mut DevicePtr, *mut c_void, c_uint);
    /// Creates a stream: room, flags, priority.
    stream_create(*mut RawStream, c_uint, c_int);
    /// Destroys a stream.
    stream_destroy(RawStream);
    /// Waits for all work of a stream.
    stream_synchronize(RawStream);
    /// Makes a stream wait for an event: stream, event, flags.
    stream_wait(RawStream, RawEvent, c_uint);
    /// Creates an event: room, flags.
    event_create(*mut RawEvent, c_uint);
    /// Destroys an event.
    event_destroy(RawEvent);
    /// Records an event in a stream.
    event_record(RawEvent, RawStream);
    /// Tells whether an event is done.
    event_query(RawEvent);
    /// Waits for an event.
    event_synchronize(RawEvent);
    /// Copies to the device: destination, source, bytes, stream.
    copy_in(DevicePtr, *const c_void, usize, RawStream);
    /// Copies from the device: destination, source, bytes, stream.
    copy_out(*mut c_void, DevicePtr, usize, RawStream);
    /// Copies within the device: destination, source, bytes, stream.
    copy_within(DevicePtr, DevicePtr, usize, RawStream);
    /// Sets an attribute of an address: value, number, address.
    pointer_set(*const c_void, c_int, DevicePtr);
}
