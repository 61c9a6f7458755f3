// UNSAFETY: calls the functions of a plugin with pointers to memory of this file's callers.

//! listen, connect, accept.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::{Code, HANDLE_BYTES, Handle, Plugin, Pointer, at, call, judged};

impl Plugin {
    pub fn listen(&self, device: c_int) -> Result<(Handle, Pointer), Code> {
        let mut handle = Box::new([0; HANDLE_BYTES]);
        let mut listening = null_mut();
        let (to, out) = (handle.as_mut_ptr().cast::<c_void>(), &raw mut listening);
        if self.version >= 11 {
            let types = self.context.0;
            call!(
                self,
                LISTEN,
                (*mut c_void, c_int, *mut c_void, *mut *mut c_void),
                (types, device, to, out)
            )?;
        } else {
            call!(
                self,
                LISTEN,
                (c_int, *mut c_void, *mut *mut c_void),
                (device, to, out)
            )?;
        }
        Ok((handle, Pointer(listening)))
    }

    pub fn connect(&self, device: c_int, handle: &mut Handle) -> Result<Option<Pointer>, Code> {
        // What the plugin must overwrite.
        let mut sending = std::ptr::dangling_mut::<c_void>();
        let to = handle.as_mut_ptr().cast::<c_void>();
        let out = &raw mut sending;
        let none: *mut *mut c_void = null_mut();
        let mut config: c_int = -1;
        let config: *mut c_void = (&raw mut config).cast();
        match self.version {
            8 | 9 => call!(
                self,
                CONNECT,
                (c_int, *mut c_void, *mut *mut c_void, *mut *mut c_void),
                (device, to, out, none)
            )?,
            10 => call!(
                self,
                CONNECT,
                (
                    c_int,
                    *mut c_void,
                    *mut c_void,
                    *mut *mut c_void,
                    *mut *mut c_void
                ),
                (device, config, to, out, none)
            )?,
            _ => call!(
                self,
                CONNECT,
                (
                    *mut c_void,
                    c_int,
                    *mut c_void,
                    *mut *mut c_void,
                    *mut *mut c_void
                ),
                (self.context.0, device, to, out, none)
            )?,
        }
        Ok(Pointer(sending).some())
    }

    pub fn accept(&self, listening: Pointer) -> Result<Option<Pointer>, Code> {
        let mut receiving = std::ptr::dangling_mut::<c_void>();
        call!(
            self,
            ACCEPT,
            (*mut c_void, *mut *mut c_void, *mut *mut c_void),
            (listening.0, &raw mut receiving, null_mut())
        )?;
        Ok(Pointer(receiving).some())
    }
}
