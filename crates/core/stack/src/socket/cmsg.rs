//! Control messages of sendmsg; those of recvmsg are written by a
//! [`CmsgSink`](devmem_uapi::CmsgSink).

use devmem_uapi::{CmsgIter, DmabufId};

/// The memory that a sendmsg sends from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TxSource {
    /// In the caller's memory.
    Host,
    /// In a dma-buf bound for sending.
    Devmem(DmabufId),
}

/// The control buffer is malformed, or has a dma-buf message of the wrong size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadControl;

/// Parses the control buffer of a sendmsg; ignores messages of other kinds.
pub(crate) fn parse_tx(control: &[u8]) -> Result<TxSource, BadControl> {
    let mut messages = CmsgIter::new(control);
    let mut source = TxSource::Host;
    for message in messages.by_ref() {
        match message.tx_dmabuf() {
            None => {}
            Some(Some(id)) => source = TxSource::Devmem(id),
            Some(None) => return Err(BadControl),
        }
    }
    if messages.is_malformed() {
        Err(BadControl)
    } else {
        Ok(source)
    }
}

#[cfg(test)]
mod tests {
    use devmem_uapi::{CmsgWriter, sockopt};

    use super::*;

    fn control(write: impl FnOnce(&mut CmsgWriter<'_>)) -> Vec<u8> {
        let mut bytes = vec![0; 256];
        let mut writer = CmsgWriter::new(&mut bytes);
        write(&mut writer);
        let written = writer.written();
        bytes.truncate(written);
        bytes
    }

    #[test]
    fn a_plain_u32_names_the_dmabuf() {
        let bytes = control(|cmsg| cmsg.push_tx_dmabuf(DmabufId(7)).unwrap());
        assert_eq!(parse_tx(&bytes), Ok(TxSource::Devmem(DmabufId(7))));
        assert_eq!(parse_tx(&[]), Ok(TxSource::Host));
    }

    #[test]
    fn a_message_of_another_size_or_a_broken_buffer_is_bad() {
        let level = (sockopt::SOL_SOCKET, sockopt::SCM_DEVMEM_DMABUF);
        for len in [0, 3, 5, 8] {
            let bytes = control(|cmsg| cmsg.push(level.0, level.1, &vec![0; len]).unwrap());
            assert_eq!(parse_tx(&bytes), Err(BadControl), "{len}");
        }
        let mut bytes = control(|cmsg| cmsg.push_tx_dmabuf(DmabufId(7)).unwrap());
        bytes[0] = 255;
        assert_eq!(parse_tx(&bytes), Err(BadControl));
    }

    #[test]
    fn messages_of_others_are_passed_over() {
        let bytes = control(|cmsg| cmsg.push(41, 50, &[1, 2, 3]).unwrap());
        assert_eq!(parse_tx(&bytes), Ok(TxSource::Host));
    }
}
