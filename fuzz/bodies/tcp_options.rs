//! TCP options from any bytes.
//!
//! Input: the bytes between the fixed header and the payload. A header has room for 40 bytes; the parser must accept any
//! number.

use wire::TcpOptions;

/// Checks the guarantees of [`TcpOptions::parse`] and [`TcpOptions::emit`].
pub fn run(data: &[u8]) {
    let Ok(options) = TcpOptions::parse(data) else {
        return;
    };
    let mut out = [0xa5_u8; 44];
    let len = options.emit(&mut out);
    assert_eq!(len, options.emit_len());
    assert!(len <= 40 && len.is_multiple_of(4), "{len} bytes of options");
    assert!(
        out[len..].iter().all(|&byte| byte == 0xa5),
        "wrote beyond the returned length {len}"
    );

    // The emitted options are the parsed ones; only SACK blocks and Fast Open may be left out for lack of room.
    let again = TcpOptions::parse(&out[..len]).expect("our own options parse");
    let TcpOptions {
        mss,
        window_scale,
        sack_permitted,
        timestamps,
        accecn,
        sack,
        fast_open,
    } = again;
    assert_eq!(mss, options.mss);
    assert_eq!(window_scale, options.window_scale);
    assert_eq!(sack_permitted, options.sack_permitted);
    assert_eq!(timestamps, options.timestamps);
    assert_eq!(accecn.is_some(), options.accecn.is_some());
    match fast_open {
        Some(_) => assert_eq!(fast_open, options.fast_open),
        // It takes 20 bytes at most.
        None => assert!(
            options.fast_open.is_none() || len > 20,
            "Fast Open was left out although there was room"
        ),
    }
    if let (Some(written), Some(read)) = (accecn, options.accecn) {
        // A counter of the other order includes those before it.
        for (written, read) in [
            (written.ect1, read.ect1),
            (written.ce, read.ce),
            (written.ect0, read.ect0),
        ] {
            assert!(written == read || read.is_none(), "{written:?} {read:?}");
        }
    }
    assert!(options.sack.as_slice().starts_with(sack.as_slice()));
    if sack != options.sack {
        let head = if sack.is_empty() { 4 } else { 0 };
        assert!(
            len + head + 8 > 40,
            "a block was left out although there was room"
        );
    }
}
