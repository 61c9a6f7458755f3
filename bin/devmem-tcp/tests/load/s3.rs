//! Objects of `tests/s3_store.py`, an S3-compatible store that checks signatures and has checksums of all kinds.

use std::process::{Command, Stdio};

use devmem_linux::test_util::in_netns;
use serde_json::Value;

use super::{Killed, has};
use crate::common::{Finished, assert_everything_home, start_command, tool};

/// Starts the store; it is killed at the end.
fn store() -> Killed {
    let mut python = Command::new("python3");
    python
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_store.py"))
        .stderr(Stdio::null());
    Killed::once_listening(python.spawn().expect("it was found before"), 8000)
}

/// Loads an object with this secret key.
fn load_by(secret: &str, object: &str, options: &[&str]) -> Finished {
    let mut command = tool();
    command.args("load --peer-addr 10.77.0.1/24 --piece 100K --json".split(' '));
    command.args(options).arg(format!("s3://models/{object}"));
    command.env_remove("http_proxy");
    command.env("AWS_ENDPOINT_URL", "http://10.77.0.1:8000");
    command.env("AWS_ACCESS_KEY_ID", "key");
    command.env("AWS_SECRET_ACCESS_KEY", secret);
    start_command(command).finish()
}

fn load(object: &str, options: &[&str]) -> Finished {
    load_by("sec/ret", object, options)
}

#[test]
fn an_object_of_a_store_that_checks_signatures_is_loaded() {
    const TEST: &str = "s3::an_object_of_a_store_that_checks_signatures_is_loaded";
    if !has(TEST, "python3") {
        return;
    }
    in_netns(TEST, || {
        let _store = store();
        let json = load("a b", &["--verify=xxh3"]).json();
        assert_eq!(json["bytes"], 1_024_000, "{json}");
        // That of the reference implementation.
        assert_eq!(json["xxh3"], "eb1713fb5109680b", "{json}");
        assert_eq!(json["url"], "http://10.77.0.1:8000/models/a%20b", "{json}");
        assert_everything_home(&json);
        // The store tells its checksum only to those who ask for it.
        let json = load("a b", &["--verify"]).json();
        assert_eq!(json["crc32c"], "640a73c9", "{json}");
        assert_eq!(json["crc32c_matches"], true, "{json}");
        load_by("wrong", "a b", &["--verify"]).failed_with(1, "403 SignatureDoesNotMatch");
    });
}

/// The checksums of the object, each computed by another program: the CRCs by `awscrt`, the library of Amazon's clients, the others by coreutils.
const KINDS: [(&str, &str, &str); 5] = [
    ("crc32c", "CRC-32C", "640a73c9"),
    ("crc64nvme", "CRC-64/NVME", "c5e1f8a7d57d72fb"),
    ("crc32", "CRC-32", "a9f6c9ae"),
    (
        "sha256",
        "SHA-256",
        "062af9ccd890ba3d067ca7150278bcc420069bd82f6e41161029303dfd6d661e",
    ),
    ("sha1", "SHA-1", "781f3728c6df701b599ae622b12df883885b346d"),
];

#[test]
fn each_kind_of_checksum_of_an_object_is_compared() {
    const TEST: &str = "s3::each_kind_of_checksum_of_an_object_is_compared";
    if !has(TEST, "python3") {
        return;
    }
    in_netns(TEST, || {
        let _store = store();
        let folder = tempfile::tempdir().unwrap();
        for (object, kind, value) in KINDS {
            let json = load(object, &["--verify"]).json();
            let sum = &json["server_checksum"];
            assert_eq!(
                (&sum["kind"], &sum["parts"]),
                (&kind.into(), &0.into()),
                "{json}"
            );
            assert_eq!(
                (&sum["loaded"], &sum["stored"]),
                (&value.into(), &value.into()),
                "{json}"
            );
            assert_eq!(sum["matches"], true, "{json}");
            // The CRC-32C is always told.
            assert_eq!(json["crc32c"], "640a73c9", "{json}");

            // A file with another checksum does not get its name.
            let file = folder.path().join(object);
            let to = ["--verify", "--to", file.to_str().unwrap()];
            let refused = load(&format!("{object}-wrong"), &to);
            refused.failed_with(
                1,
                &format!("than the server's file: the {kind} is {value}, and the server has "),
            );
            assert!(!file.exists(), "{object}");
            load(object, &to).json();
            assert_eq!(std::fs::metadata(&file).unwrap().len(), 1_024_000);
        }
    });
}

#[test]
fn the_checksum_of_the_checksums_of_parts_is_compared_part_by_part() {
    const TEST: &str = "s3::the_checksum_of_the_checksums_of_parts_is_compared_part_by_part";
    if !has(TEST, "python3") {
        return;
    }
    in_netns(TEST, || {
        let _store = store();
        for (object, kind, _) in KINDS {
            let json = load(&format!("{object}-parts"), &["--verify"]).json();
            let sum = &json["server_checksum"];
            assert_eq!(
                (&sum["kind"], &sum["parts"]),
                (&kind.into(), &3.into()),
                "{json}"
            );
            assert_eq!(
                (&sum["matches"], &sum["loaded"]),
                (&true.into(), &sum["stored"]),
                "{json}"
            );
            assert_eq!(
                json["crc32c_matches"],
                Value::Null,
                "it is not of the bytes: {json}"
            );

            let refused = load(&format!("{object}-parts-wrong"), &["--verify"]);
            refused.failed_with(
                1,
                "(bytes 300000 to 900000, part 2, are the first wrong ones)",
            );
        }
        let json = load("sha256-parts-untold", &["--verify"]).json();
        let why = "the server has the SHA-256 of the checksums of 3 parts, and does not tell where they begin";
        assert_eq!(json["not_compared"], why, "{json}");
        assert_eq!(json["server_checksum"], Value::Null, "{json}");
    });
}
