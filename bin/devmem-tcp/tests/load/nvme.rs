//! `load` and `store` with our NVMe target: namespaces in files, listed, loaded and stored.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use devmem_linux::test_util::in_netns;
use nvme_target::{Disk, Subsystem, Target};

use crate::common::{assert_everything_home, repeating};
use crate::{load, store};

const NQN: &str = "nqn.2014-08.org.example:disk";

fn serve(paths: &[&Path]) -> Target {
    let disk = |path: &&Path| {
        let file = File::options().read(true).write(true).open(path).unwrap();
        Arc::new(Disk::in_file(file, 12).unwrap())
    };
    let listener = TcpListener::bind("0.0.0.0:4420").expect("this is our namespace");
    let subsystem = Subsystem::new(NQN, paths.iter().map(disk).collect());
    Target::start(listener, subsystem).expect("a thread")
}

#[test]
fn a_namespace_is_listed_stored_and_loaded_over_a_bad_link() {
    const TEST: &str = "nvme::a_namespace_is_listed_stored_and_loaded_over_a_bad_link";
    in_netns(TEST, || {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (disk, other, file, copy) = (path("disk"), path("other"), path("file"), path("copy"));
        fs::write(&disk, vec![0xee; 4 << 20]).unwrap();
        fs::write(&other, vec![0; 1 << 20]).unwrap();
        let mut bytes = repeating(251, 9, 3 << 20);
        bytes[1 << 20..2 << 20].fill(0);
        fs::write(&file, &bytes).unwrap();
        let target = serve(&[&disk, &other]);
        let url = format!("nvme://10.77.0.1/{NQN}");

        let json = load("nvme://10.77.0.1").json();
        let listed = &json["subsystems"][0];
        assert_eq!(listed["url"], url, "{json}");
        assert_eq!(listed["namespaces"][0]["bytes"], 4 << 20, "{json}");
        assert_eq!(listed["namespaces"][1]["block_bytes"], 4096, "{json}");
        load(&url).failed_with(1, "has 2 namespaces: 1, 2");

        let from = file.display();
        let json = store(&format!(
            "{from} {url}?nsid=1 --at 64K --piece 256K --verify --impair loss=1%,reorder=1%,seed=3"
        ))
        .json();
        assert_eq!(json["bytes"], 3 << 20, "{json}");
        assert_eq!(json["unsent_bytes"], 1 << 20, "{json}");
        assert_eq!(
            (&json["durable"], &json["crc32c_matches"]),
            (&true.into(), &true.into())
        );
        let stored = fs::read(&disk).unwrap();
        assert!(stored[64 << 10..][..3 << 20] == bytes, "{json}");
        let is_old = |byte: &u8| *byte == 0xee;
        assert!(stored[..64 << 10].iter().all(is_old));
        assert!(stored[(3 << 20) + (64 << 10)..].iter().all(is_old));

        let to = copy.display();
        let json = load(&format!(
            "{url}?nsid=1&data-digest=1 --to {to} --range 64K-3136K"
        ))
        .json();
        assert!(fs::read(&copy).unwrap() == bytes, "{json}");
        assert_everything_home(&json);
        store(&format!("{from} {url}?nsid=1 --at 2M")).failed_with(1, "make the export larger");
        load(&format!("{url}?nsid=9")).failed_with(1, "nsid=");
        drop(target);
        load(&format!("{url}?nsid=1")).failed_with(1, "refuses the connection");
        load("nvme://10.77.0.1").failed_with(1, "10.77.0.1:4420 refuses the connection");
    });
}
