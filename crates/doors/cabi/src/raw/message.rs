// UNSAFETY: follows the pointers of `struct msghdr` and `struct iovec`.

//! Messages and vectors of buffers.

use std::ops::Range;

use devmem_posix::abi::{MAX_RW_COUNT, MSG_FASTOPEN};
use devmem_posix::{Posix, Received, RecvArgs, SendArgs, Waiter, names_dmabuf};
use devmem_uapi::{Errno, MsgFlags, UIO_MAXIOV};
use libc::{iovec, msghdr};

use super::memory::{read, slice, slice_mut};

/// Returns the entries of a vector of buffers.
///
/// # Safety
/// `iov` is null, or `count` entries can be read there.
pub(super) unsafe fn entries(iov: *const iovec, count: usize) -> Result<Vec<iovec>, Errno> {
    if count > UIO_MAXIOV {
        return Err(Errno::EMSGSIZE);
    }
    let mut entries = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: null, or one of the entries that are valid by the contract of the caller.
        entries.push(unsafe { read(iov.wrapping_add(at)) }?);
    }
    Ok(entries)
}

/// Returns the number of bytes that a vector names, at most as many as one call moves.
fn total(entries: &[iovec]) -> Result<usize, Errno> {
    let mut sum = 0usize;
    for entry in entries {
        let len = isize::try_from(entry.iov_len).map_err(|_| Errno::EINVAL)?;
        sum = sum.saturating_add(len.unsigned_abs());
    }
    Ok(sum.min(MAX_RW_COUNT))
}

/// The call that moves bytes: sockets support both, other files only the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IoCall {
    /// read, write.
    File,
    /// recv, send and the related calls, with these flags.
    Socket(u32),
}

/// Receives into a vector of buffers.
///
/// # Safety
/// Each entry names memory that can be written and is not shared, or is null where only bytes of device memory are
/// expected.
pub(super) unsafe fn recv<W: Waiter>(
    posix: &Posix<W>,
    fd: i32,
    entries: &[iovec],
    control: &mut [u8],
    call: IoCall,
) -> Result<Received, Errno> {
    let len = total(entries)?;
    if let [entry] = entries {
        let has_memory = if entry.iov_base.is_null() { 0 } else { len };
        // SAFETY: the entry is valid by the contract of the caller; a null one means no bytes.
        let host = unsafe { slice_mut(entry.iov_base, has_memory) }?;
        return receive(posix, fd, RecvArgs { host, len, control }, call);
    }
    // What is wrong with the file is for the receive to say.
    let waiting = posix.call(|table| table.readable(fd)).unwrap_or(0).max(1);
    let with_memory = entries.iter().filter(|entry| !entry.iov_base.is_null());
    let room = total(&with_memory.copied().collect::<Vec<_>>())?;
    // Room for the available bytes, or for MAX_SCRATCH bytes if fewer are available, and never more than the entries have.
    let mut scratch = vec![0; room.min(waiting.max(MAX_SCRATCH))];
    let limit = len.min(waiting.max(MAX_SCRATCH));
    let args = RecvArgs {
        host: &mut scratch,
        len: limit,
        control,
    };
    let received = receive(posix, fd, args, call)?;
    let mut rest = scratch.get(..received.host_bytes).unwrap_or_default();
    for entry in entries.iter().filter(|entry| !entry.iov_base.is_null()) {
        let (piece, after) = rest.split_at(rest.len().min(entry.iov_len));
        // SAFETY: `iov_len` bytes are valid by the contract of the caller, and these are the first of them.
        let out = unsafe { slice_mut(entry.iov_base, piece.len()) }?;
        out.copy_from_slice(piece);
        rest = after;
    }
    Ok(received)
}

fn receive<W: Waiter>(
    posix: &Posix<W>,
    fd: i32,
    args: RecvArgs<'_>,
    call: IoCall,
) -> Result<Received, Errno> {
    match call {
        IoCall::File => posix.read(fd, args),
        IoCall::Socket(flags) => posix.recv(fd, args, flags),
    }
}

/// Size of the temporary buffer for several buffers: of a send, and of a receive when fewer bytes are available.
const MAX_SCRATCH: usize = 1 << 20;

/// The parts of a message to be sent other than its bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Head<'a> {
    pub(super) control: &'a [u8],
    /// For MSG_FASTOPEN; else not read.
    pub(super) address: &'a [u8],
}

/// Sends a vector of buffers, or of ranges of the dma-buf that `control` names.
///
/// # Safety
/// Each entry names memory that can be read and is not changed meanwhile, unless `control` makes offsets of them.
pub(super) unsafe fn send<W: Waiter>(
    posix: &Posix<W>,
    fd: i32,
    entries: &[iovec],
    head: Head<'_>,
    call: IoCall,
) -> Result<usize, Errno> {
    let Head { control, .. } = head;
    let total = total(entries)?;
    if let IoCall::Socket(flags) = call
        && names_dmabuf(control)
    {
        let ranges: Vec<Range<usize>> = entries.iter().map(range).collect::<Result<_, _>>()?;
        let args = SendArgs {
            host: &[],
            ranges: &ranges,
            control,
            address: head.address,
        };
        return posix.send(fd, args, flags);
    }
    if let [entry] = entries {
        // SAFETY: the caller vouches for the entry.
        let host = unsafe { slice(entry.iov_base, entry.iov_len) }?;
        return send_bytes(posix, fd, host, &[], head, call);
    }
    let (most, pieces) = match call {
        // One send has one completion, which names the pages of each entry.
        IoCall::Socket(flags) if flags & MsgFlags::ZEROCOPY.bits() != 0 => {
            (MAX_RW_COUNT, pieces(entries))
        }
        // A vector of any length takes little memory, and a call that does not wait gathers little more than it sends.
        _ => (MAX_SCRATCH, Vec::new()),
    };
    let (mut call, mut sent) = (call, 0);
    loop {
        // SAFETY: the caller vouches for each entry.
        let gathered = unsafe { gather(entries, sent, most) };
        let more = gathered.and_then(|gathered| {
            let more = send_bytes(posix, fd, &gathered, &pieces, head, call)?;
            Ok((more, more == gathered.len()))
        });
        let (more, is_all) = match more {
            Err(_) if sent > 0 => return Ok(sent),
            more => more?,
        };
        sent += more;
        if !is_all || sent >= total {
            return Ok(sent);
        }
        // The first bytes have opened the connection.
        if let IoCall::Socket(flags) = &mut call {
            *flags &= !MSG_FASTOPEN;
        }
    }
}

fn send_bytes<W: Waiter>(
    posix: &Posix<W>,
    fd: i32,
    host: &[u8],
    pieces: &[Range<usize>],
    head: Head<'_>,
    call: IoCall,
) -> Result<usize, Errno> {
    match call {
        IoCall::File => posix.write(fd, host),
        IoCall::Socket(flags) => {
            let args = SendArgs {
                host,
                ranges: pieces,
                control: head.control,
                address: head.address,
            };
            posix.send(fd, args, flags)
        }
    }
}

/// Copies the bytes of a vector behind the first `skip`, at most `most` of them.
///
/// # Errors
/// ENOMEM; EFAULT for an entry that is null.
///
/// # Safety
/// Each entry names memory that can be read and is not changed meanwhile, or is null.
pub(super) unsafe fn gather(entries: &[iovec], skip: usize, most: usize) -> Result<Vec<u8>, Errno> {
    let most = total(entries)?.saturating_sub(skip).min(most);
    let mut gathered = Vec::new();
    gathered
        .try_reserve_exact(most)
        .map_err(|_| Errno::ENOMEM)?;
    let mut skip = skip;
    for entry in entries {
        // SAFETY: the caller vouches for each entry.
        let bytes = unsafe { slice(entry.iov_base, entry.iov_len) }?;
        let rest = bytes.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(bytes.len());
        let room = most - gathered.len();
        gathered.extend_from_slice(rest.get(..room).unwrap_or(rest));
    }
    Ok(gathered)
}

/// Returns the ranges of the entries of a vector within all of its bytes.
fn pieces(entries: &[iovec]) -> Vec<Range<usize>> {
    let mut end = 0_usize;
    let piece = |entry: &iovec| {
        let start = end;
        end = end.saturating_add(entry.iov_len);
        start..end
    };
    entries.iter().map(piece).collect()
}

/// Reads an entry as an offset and a length.
fn range(entry: &iovec) -> Result<Range<usize>, Errno> {
    let start = entry.iov_base.addr();
    let end = start.checked_add(entry.iov_len).ok_or(Errno::EFAULT)?;
    Ok(start..end)
}

/// Returns the control buffer of a message, to be written.
///
/// # Safety
/// As [`slice_mut`].
pub(super) unsafe fn control_to_write<'a>(msg: &msghdr) -> Result<&'a mut [u8], Errno> {
    // A null pointer means no buffer, with any length (linux `put_cmsg`).
    let len = match msg.msg_control.is_null() {
        true => 0,
        false => msg.msg_controllen,
    };
    // SAFETY: the caller vouches for it.
    unsafe { slice_mut(msg.msg_control, len) }
}

/// Returns the control buffer of a message, to be read only: threads may share it, and it may lie in read-only memory.
///
/// # Safety
/// As [`slice()`].
pub(super) unsafe fn control_to_read<'a>(msg: &msghdr) -> Result<&'a [u8], Errno> {
    // SAFETY: the caller vouches for it.
    unsafe { slice(msg.msg_control, msg.msg_controllen) }
}
