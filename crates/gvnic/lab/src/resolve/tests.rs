use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use super::*;
use crate::apt::{Apt, AptSource};

#[test]
fn a_line_of_uris_is_parsed_with_epoch_and_tilde() {
    let line = "'http://archive/pool/q.deb' qemu-system-x86_1%3a11.1.3+ds-1%7ebpo13+1_amd64.deb 10377056 SHA256:ab";
    let package = parse_uri_line(line).unwrap();
    assert_eq!(package.name, "qemu-system-x86");
    assert_eq!(package.version, "1:11.1.3+ds-1~bpo13+1");
    assert_eq!(package.bytes, 10_377_056);
    for other in [
        "Reading package lists...",
        "'x' y",
        "'x' a_b_c.deb",
        "'x' a_1%_amd64.deb 1 x",
        "'x' a_1%zz_amd64.deb 1 x",
        "'x' a_1%é_amd64.deb 1 x",
        "",
    ] {
        assert_eq!(parse_uri_line(other), None, "{other}");
    }
}

#[test]
fn a_suite_that_only_adds_to_another_follows_that_one() {
    let of = |suites: &str| {
        let suites: Vec<String> = suites.split(' ').map(str::to_owned).collect();
        with_bases(&suites).join(" ")
    };
    for (given, all) in [
        ("trixie", "trixie"),
        ("sid", "sid"),
        ("experimental", "sid experimental"),
        ("unstable experimental", "unstable experimental"),
        ("rc-buggy", "sid rc-buggy"),
        ("trixie-backports", "trixie trixie-backports"),
        ("trixie trixie-backports", "trixie trixie-backports"),
        ("trixie-backports trixie", "trixie-backports trixie"),
        (
            "bookworm-backports-sloppy bookworm-proposed-updates",
            "bookworm bookworm-backports-sloppy bookworm-proposed-updates",
        ),
    ] {
        assert_eq!(of(given), all);
    }
}

#[test]
fn the_dependencies_that_apt_misses_are_found() {
    let said = "Some packages could not be installed.\n\nThe following packages have unmet dependencies:\n \
        image : PreDepends: base (>= 4.17~) but it is not installable\n         Depends: dracut but it is not installable or\n\
        \x20                 initrd but it is not installable\n modules : Depends: loader but it is not installable\nE: broken\n";
    assert_eq!(
        unmet_dependencies(said),
        [
            "image: PreDepends: base (>= 4.17~) but it is not installable Depends: dracut but it is not installable or \
             initrd but it is not installable",
            "modules: Depends: loader but it is not installable",
        ]
    );
    assert_eq!(unmet_dependencies("E: no"), Vec::<String>::new());
}

/// An archive in a folder whose suites have packages with these dependencies; no file of a package exists.
fn archive(folder: &Path, suites: &[(&str, &[(&str, &str)])]) {
    for (suite, packages) in suites {
        let place = folder.join(format!("dists/{suite}/main/binary-amd64"));
        fs::create_dir_all(&place).unwrap();
        let mut list = fs::File::create(place.join("Packages")).unwrap();
        for (name, depends) in *packages {
            write!(
                list,
                "Package: {name}\nVersion: 7.3~rc7-1\nArchitecture: amd64\nDepends: {depends}\nFilename: pool/{name}.deb\n\
                 Size: 100\nSHA256: {}\nMaintainer: m\nDescription: d\n\n",
                "ab".repeat(32)
            )
            .unwrap();
        }
        drop(list);
        let list = place.join("Packages");
        let sum = Command::new("sha256sum").arg(&list).output().unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap();
        let (sum, bytes) = (&sum[..64], list.metadata().unwrap().len());
        let release = format!(
            "Suite: {suite}\nCodename: {suite}\nArchitectures: amd64\nComponents: main\nSHA256:\n {sum} {bytes} \
             main/binary-amd64/Packages\n"
        );
        fs::write(folder.join(format!("dists/{suite}/Release")), release).unwrap();
    }
}

/// Resolves `wanted` in suites of the archive; `None` without apt.
fn resolved(
    archive: &Path,
    suites: &[&str],
    wanted: &[&str],
) -> Option<Result<Vec<String>, String>> {
    let has_apt = Command::new("apt-get")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if !has_apt.is_ok_and(|status| status.success()) || std::env::consts::ARCH != "x86_64" {
        return None;
    }
    let state = tempfile::tempdir().unwrap();
    let source = AptSource {
        suites: suites.iter().map(|suite| (*suite).to_owned()).collect(),
        // A further field of the source: nobody has signed this archive.
        mirror: Some(format!("file:{}\nTrusted: yes", archive.display())),
    };
    let apt = Apt::new(state.path(), &source).unwrap();
    let packages = apt.resolve(wanted).map_err(|failure| failure.to_string());
    Some(packages.map(|found| {
        let mut names: Vec<_> = found.into_iter().map(|package| package.name).collect();
        names.sort();
        names
    }))
}

#[test]
fn a_kernel_of_a_suite_without_its_install_tools_is_resolved_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let kernel: &[(&str, &str)] = &[
        (
            "linux-image-cloud-amd64",
            "linux-image-7.3-cloud-amd64 (= 7.3~rc7-1)",
        ),
        (
            "linux-image-7.3-cloud-amd64",
            "linux-base (>= 4.17~), dracut | initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool, kmod",
        ),
        ("needs-library", "only-in-sid (>= 1)"),
    ];
    let sid: &[(&str, &str)] = &[("only-in-sid", "kmod")];
    archive(scratch.path(), &[("experimental", kernel), ("sid", sid)]);
    let of = |suites: &[&str], wanted: &str| resolved(scratch.path(), suites, &[wanted]);
    let Some(image) = of(&["experimental"], "linux-image-cloud-amd64") else {
        return devmem_linux::test_util::skip(
            "resolve::tests::a_kernel_of_a_suite_without_its_install_tools_is_resolved_alone",
            "apt",
            "there is no apt-get here, or the machine is no x86_64",
        );
    };
    let names = ["linux-image-7.3-cloud-amd64", "linux-image-cloud-amd64"];
    assert_eq!(image.unwrap(), names);
    let alone = of(&["experimental"], "needs-library").unwrap().unwrap_err();
    for words in [
        "experimental alone cannot provide needs-library",
        "only-in-sid",
        "--suite sid,experimental",
    ] {
        assert!(alone.contains(words), "{alone}");
    }
    let both = of(&["sid", "experimental"], "needs-library").unwrap();
    assert_eq!(both.unwrap(), ["needs-library", "only-in-sid"]);
    let none = of(&["experimental"], "no-such-package")
        .unwrap()
        .unwrap_err();
    assert!(
        none.contains("experimental has no no-such-package"),
        "{none}"
    );
}
