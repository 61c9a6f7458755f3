// UNSAFETY: calls the functions of a plugin with pointers to memory of this file's callers.

//! Memory, sends, receives, tests, and the end of communicators.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::{Code, Plugin, Pointer, at, call, judged};

type Void = *mut c_void;
type Pointers = *mut Void;
type Ints = *mut c_int;
type Sizes = *mut usize;

impl Plugin {
    /// Registers host memory.
    pub fn register(&self, comm: Pointer, memory: &mut [u8]) -> Result<Pointer, Code> {
        self.register_as(comm, memory, 1)
    }

    /// Registers memory as a type of NCCL.
    pub fn register_as(
        &self,
        comm: Pointer,
        memory: &mut [u8],
        kind: c_int,
    ) -> Result<Pointer, Code> {
        let mut handle = null_mut();
        call!(
            self,
            REG,
            (*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void),
            (
                comm.0,
                memory.as_mut_ptr().cast(),
                memory.len(),
                kind,
                &raw mut handle
            )
        )?;
        Ok(Pointer(handle))
    }

    /// Registers memory of a GPU by its address.
    pub fn register_address(
        &self,
        comm: Pointer,
        address: u64,
        size: usize,
    ) -> Result<Pointer, Code> {
        let mut handle = null_mut();
        let base = std::ptr::without_provenance_mut(address as usize);
        call!(
            self,
            REG,
            (*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void),
            (comm.0, base, size, 2, &raw mut handle)
        )?;
        Ok(Pointer(handle))
    }

    /// Registers `size` bytes at `address`, which begin at `offset` of a dma-buf.
    pub fn register_fd(
        &self,
        comm: Pointer,
        (address, size): (u64, usize),
        (fd, offset): (c_int, u64),
    ) -> Result<Pointer, Code> {
        let mut handle = null_mut();
        let base = std::ptr::without_provenance_mut(address as usize);
        call!(
            self,
            REG_DMABUF,
            (
                *mut c_void,
                *mut c_void,
                usize,
                c_int,
                u64,
                c_int,
                *mut *mut c_void
            ),
            (comm.0, base, size, 2, offset, fd, &raw mut handle)
        )?;
        Ok(Pointer(handle))
    }

    pub fn deregister(&self, comm: Pointer, handle: Pointer) -> Result<(), Code> {
        call!(self, DEREG, (*mut c_void, *mut c_void), (comm.0, handle.0))
    }

    /// `None`: not now.
    pub fn send(
        &self,
        comm: Pointer,
        memory: (*const u8, usize),
        tag: c_int,
        handle: Option<Pointer>,
    ) -> Result<Option<Pointer>, Code> {
        let mut request = std::ptr::dangling_mut::<c_void>();
        let (data, size) = (memory.0.cast_mut().cast::<c_void>(), memory.1);
        let handle = handle.unwrap_or(Pointer::NULL).0;
        let out = &raw mut request;
        match self.version {
            8 => call!(
                self,
                ISEND,
                (
                    *mut c_void,
                    *mut c_void,
                    c_int,
                    c_int,
                    *mut c_void,
                    *mut *mut c_void
                ),
                (
                    comm.0,
                    data,
                    c_int::try_from(size).expect("fits"),
                    tag,
                    handle,
                    out
                )
            )?,
            9 => call!(
                self,
                ISEND,
                (
                    *mut c_void,
                    *mut c_void,
                    usize,
                    c_int,
                    *mut c_void,
                    *mut *mut c_void
                ),
                (comm.0, data, size, tag, handle, out)
            )?,
            _ => call!(
                self,
                ISEND,
                (
                    *mut c_void,
                    *mut c_void,
                    usize,
                    c_int,
                    *mut c_void,
                    *mut c_void,
                    *mut *mut c_void
                ),
                (comm.0, data, size, tag, handle, null_mut(), out)
            )?,
        }
        Ok(Pointer(request).some())
    }

    /// `None`: not now. Each part is an address, a length and a tag.
    pub fn receive(
        &self,
        comm: Pointer,
        parts: &[(*mut u8, usize, c_int)],
        handle: Option<Pointer>,
        mark: usize,
    ) -> Result<Option<Pointer>, Code> {
        // Since version 9 NCCL leaves a mark here for memory that the GPU polls.
        let mut request = std::ptr::without_provenance_mut(mark);
        let mut data: Vec<*mut c_void> = parts.iter().map(|part| part.0.cast()).collect();
        let mut sizes: Vec<usize> = parts.iter().map(|part| part.1).collect();
        let mut ints: Vec<c_int> = sizes.iter().map(|size| *size as c_int).collect();
        let mut tags: Vec<c_int> = parts.iter().map(|part| part.2).collect();
        let mut handles = vec![handle.unwrap_or(Pointer::NULL).0; parts.len()];
        let n = parts.len() as c_int;
        let (data, tags, handles) = (data.as_mut_ptr(), tags.as_mut_ptr(), handles.as_mut_ptr());
        let out = &raw mut request;
        match self.version {
            8 => call!(
                self,
                IRECV,
                (Void, c_int, Pointers, Ints, Ints, Pointers, Pointers),
                (comm.0, n, data, ints.as_mut_ptr(), tags, handles, out)
            )?,
            9 => call!(
                self,
                IRECV,
                (Void, c_int, Pointers, Sizes, Ints, Pointers, Pointers),
                (comm.0, n, data, sizes.as_mut_ptr(), tags, handles, out)
            )?,
            _ => call!(
                self,
                IRECV,
                (
                    Void, c_int, Pointers, Sizes, Ints, Pointers, Pointers, Pointers
                ),
                (
                    comm.0,
                    n,
                    data,
                    sizes.as_mut_ptr(),
                    tags,
                    handles,
                    null_mut(),
                    out
                )
            )?,
        }
        Ok(Pointer(request).some())
    }

    /// Flushes; the plugin may say that nothing is to be flushed.
    pub fn flush(
        &self,
        comm: Pointer,
        data: *mut u8,
        handle: Pointer,
    ) -> Result<Option<Pointer>, Code> {
        let mut request = std::ptr::dangling_mut::<c_void>();
        let (mut data, mut size, mut handle) = (data.cast::<c_void>(), 8, handle.0);
        call!(
            self,
            IFLUSH,
            (
                *mut c_void,
                c_int,
                *mut *mut c_void,
                *mut c_int,
                *mut *mut c_void,
                *mut *mut c_void
            ),
            (
                comm.0,
                1,
                &raw mut data,
                &raw mut size,
                &raw mut handle,
                &raw mut request
            )
        )?;
        Ok(Pointer(request).some())
    }

    /// Tests a request of `n` parts. `None`: not done.
    pub fn test(&self, request: Pointer, n: usize) -> Result<Option<Vec<usize>>, Code> {
        let mut done: c_int = -1;
        // A guard behind the sizes finds a plugin that writes too many.
        let mut sizes = vec![-1; n + 1];
        call!(
            self,
            TEST,
            (*mut c_void, *mut c_int, *mut c_int),
            (request.0, &raw mut done, sizes.as_mut_ptr())
        )?;
        assert_eq!(sizes.pop(), Some(-1), "more sizes than parts");
        match done {
            0 => {
                assert!(
                    sizes.iter().all(|size| *size == -1),
                    "sizes before it is done"
                );
                Ok(None)
            }
            1 => {
                let sizes = sizes
                    .into_iter()
                    .map(|size| usize::try_from(size).expect("a size"));
                Ok(Some(sizes.collect()))
            }
            other => panic!("done is {other}"),
        }
    }

    pub fn close_send(&self, comm: Pointer) -> Result<(), Code> {
        call!(self, CLOSE_SEND, (*mut c_void), (comm.0))
    }

    pub fn close_receive(&self, comm: Pointer) -> Result<(), Code> {
        call!(self, CLOSE_RECV, (*mut c_void), (comm.0))
    }

    pub fn close_listen(&self, listening: Pointer) -> Result<(), Code> {
        call!(self, CLOSE_LISTEN, (*mut c_void), (listening.0))
    }
}
