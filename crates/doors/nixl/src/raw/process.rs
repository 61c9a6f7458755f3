// UNSAFETY: process_vm_readv(2), which writes to memory of this process by its address, and a value whose address others are told.

//! Memory of another process of this machine.

use rustix::process::Pid;

/// A number at an address that does not change. Who reads it there can read all memory of this process.
#[derive(Debug)]
pub(crate) struct Token(Box<u64>);

impl Token {
    pub(crate) fn new(cookie: u64) -> Self {
        Self(Box::new(cookie))
    }

    pub(crate) fn address(&self) -> u64 {
        (&raw const *self.0).expose_provenance() as u64
    }
}

/// Returns whether a process has a token with this number there, and its memory can be read: both processes have the same user, and nothing
/// (Yama, a container) forbids it.
pub(crate) fn can_read(process: Pid, token: u64, cookie: u64) -> bool {
    let Ok(address) = usize::try_from(token) else {
        return false;
    };
    let mut number = 0_u64;
    let local = libc::iovec {
        iov_base: (&raw mut number).cast(),
        iov_len: size_of::<u64>(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: size_of::<u64>(),
    };
    // SAFETY: the local vector is the number; the remote one is judged by the kernel.
    let read = unsafe {
        libc::process_vm_readv(
            process.as_raw_nonzero().get(),
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    read == 8 && number == cookie
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_its_own_token_and_no_other_number() {
        let token = Token::new(77);
        let me = rustix::process::getpid();
        assert!(can_read(me, token.address(), 77));
        assert!(!can_read(me, token.address(), 78));
        assert!(!can_read(me, 1, 77));
    }
}
