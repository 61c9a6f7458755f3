use super::*;

#[test]
fn names_that_the_kernel_would_refuse_are_refused_without_a_system_call() {
    for name in [
        "",
        ".",
        "..",
        "a/b",
        "a:b",
        "a b",
        "sixteen-bytes-xx",
        "dm%s",
        "dm%d%d",
    ] {
        let error = TapOptions::new(name).open().unwrap_err();
        assert_eq!(
            error,
            TapError::BadName {
                name: name.to_owned()
            }
        );
    }
    for name in ["dm0", "dm%d", "fifteen-bytes-x"] {
        assert_eq!(check_name(name), Ok(()));
    }
}

#[test]
fn a_tap_with_no_queue_or_too_many_is_refused() {
    for queues in [0, 257] {
        let options = TapOptions {
            queues,
            ..TapOptions::new("dm0")
        };
        assert!(matches!(options.open(), Err(TapError::Queues { .. })));
    }
}

#[test]
fn every_errno_of_attaching_has_a_cause() {
    let tap = Some(TunKind::Tap);
    let cases = [
        (Errno::PERM, tap, "no permission to attach to TAP dm0"),
        (Errno::BUSY, tap, "TAP dm0 is in use by another process"),
        (Errno::INVAL, None, "dm0 exists and is not a TAP"),
        (
            Errno::INVAL,
            Some(TunKind::Tun),
            "dm0 is a TUN, which has no Ethernet frames",
        ),
        (
            Errno::INVAL,
            tap,
            "dm0 is a TAP with one queue, and 4 were requested",
        ),
    ];
    for (errno, kind, text) in cases {
        let error = TapError::attach("dm0", errno, kind, 4);
        assert_eq!(error.to_string(), text);
        assert!(error.remedy().is_some());
    }
}
