//! Control buffers: parsed from any bytes, and written and parsed again.
//!
//! Input: the control buffer; the same bytes are then used as instructions for a writer.

use devmem_uapi::{Cmsg, CmsgIter, CmsgSink, CmsgWriter, DevmemCmsg, SockExtendedErr, cmsg_len};

/// Checks the guarantees of [`CmsgIter`] and [`CmsgWriter`].
pub fn run(data: &[u8]) {
    read(data);
    write_and_read(data);
}

fn read(control: &[u8]) {
    let mut end = 0;
    for cmsg in CmsgIter::new(control) {
        let data = offset_in(control, cmsg.data);
        assert!(
            data >= end + cmsg_len(0),
            "a message begins inside of the one before"
        );
        end = data + cmsg.data.len();
        assert!(end <= control.len());
        let _ = cmsg.tx_dmabuf();
        let _ = DevmemCmsg::parse(&cmsg).map(|devmem| devmem.payload_len());
        let _ = SockExtendedErr::parse(&cmsg);
    }
}

/// Writes messages until there is no room, and parses exactly those again.
fn write_and_read(instructions: &[u8]) {
    let Some((&size, rest)) = instructions.split_first() else {
        return;
    };
    let mut buffer = vec![0xa5_u8; usize::from(size)];
    let mut writer = CmsgWriter::new(&mut buffer);
    let mut expected: Vec<(i32, i32, &[u8])> = Vec::new();
    let mut rest = rest;
    while let [level, ty, len, after @ ..] = rest {
        let (data, after) = after.split_at(usize::from(*len).min(after.len()));
        let (level, ty) = (i32::from(*level), i32::from(*ty));
        let before = (writer.written(), writer.room());
        match writer.push(level, ty, data) {
            Ok(()) => expected.push((level, ty, data)),
            Err(_) => assert_eq!(
                (writer.written(), writer.room()),
                before,
                "a refused message changed the buffer"
            ),
        }
        rest = after;
    }
    let written = writer.written();
    assert!(written <= buffer.len());
    let mut iter = CmsgIter::new(&buffer[..written]);
    let found: Vec<_> = iter
        .by_ref()
        .map(|Cmsg { level, ty, data }| (level, ty, data))
        .collect();
    assert_eq!(found, expected);
    assert!(!iter.is_malformed());
    assert!(
        buffer[written..].iter().all(|&byte| byte == 0xa5),
        "wrote beyond the reported length"
    );
}

fn offset_in(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr() - whole.as_ptr().addr()
}
