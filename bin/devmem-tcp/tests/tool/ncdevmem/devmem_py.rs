//! The kernel's unchanged `devmem.py` runs our `ncdevmem` in the lab's guest. The files of the kernel (GPL-2.0) are not part
//! of this repository: `DEVMEM_LINUX_TREE` names the folder of a kernel's source.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use devmem_linux::test_util::skip;

use crate::common::tool;

const TEST: &str = "ncdevmem::devmem_py::the_kernels_devmem_py_passes_with_our_ncdevmem";
const TREE: &str = "DEVMEM_LINUX_TREE";
/// The used parts of the tree.
const PARTS: [&str; 4] = [
    "tools/testing/selftests/drivers/net",
    "tools/testing/selftests/net/lib",
    "tools/net/ynl",
    "Documentation/netlink",
];
/// Folders of Python's library, some of them large, that the kernel's scripts do not need.
const UNUSED: [&str; 9] = [
    "site-packages",
    "dist-packages",
    "test",
    "idlelib",
    "ensurepip",
    "tkinter",
    "lib2to3",
    "turtledemo",
    "__pycache__",
];
/// Prints the paths of this machine's Python: the program, its library, and the package `yaml`.
const WHERE: &str = "import os, sys, sysconfig, yaml; \
    print(os.path.realpath(sys.executable), sysconfig.get_path('stdlib'), os.path.dirname(yaml.__file__), sep='\\n')";
/// Runs the script with each IP version and the environment for the lab's NIC and peer. Its `ncdevmem` is our tool under that
/// name; the output of the tool is kept and printed at the end. The script waits five seconds for a listener, which is too
/// short for an emulated guest on a busy machine, so the clock of Python runs at a tenth of its rate there.
const SCRIPT: &str = r#"
mkdir /tmp/slow
cat >/tmp/slow/sitecustomize.py <<'END'
import time
clock, start = time.monotonic, time.monotonic()
time.monotonic = lambda: start + (clock() - start) / 10
END
export PYTHONPATH=/tmp/slow
cd /linux/tools/testing/selftests/drivers/net/hw
printf '#!/usr/local/bin/bash\nexec -a "$0" /bin/devmem-tcp "$@" 2>>/tmp/words\n' >ncdevmem
chmod +x ncdevmem
export NETIF="$DEVMEM_TEST_NIC" REMOTE_TYPE=netns REMOTE_ARGS=peer
LOCAL_V6=fd77::2 REMOTE_V6=fd77::1 @python@ devmem.py; six=$?
LOCAL_V4=10.77.0.2 REMOTE_V4=10.77.0.1 @python@ devmem.py; four=$?
cat /tmp/words >&2
[ $six -eq 0 ] && [ $four -eq 0 ]
"#;
/// Time limit in the guest, in seconds.
const LIMIT_S: u64 = 600;

/// Files for the guest, as arguments of `--put`.
struct Parts {
    puts: Vec<String>,
    python: PathBuf,
}

impl Parts {
    /// Finds them on this machine.
    fn find(tree: &Path) -> Result<Self, String> {
        let mut puts = Vec::new();
        for part in PARTS {
            let from = tree.join(part);
            if !from.is_dir() {
                return Err(format!("{} is no folder", from.display()));
            }
            puts.push(format!("{}:/linux/{part}", from.display()));
        }
        // The last three replace those of busybox: its `head` does not support `1K`.
        for name in ["bash", "socat", "head", "yes", "dd"] {
            let program = in_path(name).ok_or_else(|| format!("there is no {name} here"))?;
            puts.push(format!("{}:/usr/local/bin/{name}", program.display()));
        }
        let said = Command::new("python3").args(["-c", WHERE]).output();
        let said = said.map_err(|error| format!("there is no python3 here: {error}"))?;
        let text = String::from_utf8_lossy(&said.stdout);
        let mut places = text.lines().map(PathBuf::from);
        let (Some(python), Some(library), Some(yaml)) =
            (places.next(), places.next(), places.next())
        else {
            return Err("this machine's python3 has no package yaml".to_owned());
        };
        let entries =
            fs::read_dir(&library).map_err(|error| format!("{}: {error}", library.display()))?;
        let used = entries.flatten().filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            !UNUSED.contains(&&*name) && !name.starts_with("config-")
        });
        let same = |path: PathBuf| format!("{0}:{0}", path.display());
        puts.extend(used.map(|entry| same(entry.path())));
        puts.extend([same(yaml), same(python.clone())]);
        Ok(Self { puts, python })
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let folders = env::split_paths(&env::var_os("PATH")?).collect::<Vec<_>>();
    folders
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// The command `lab` with `--offline`, because tests fetch nothing.
fn lab(command: &str) -> Command {
    let mut tool = tool();
    tool.args(["lab", command, "--offline"])
        .stdin(Stdio::null());
    tool
}

/// Splits the results of a run: names of passed tests, and lines of all others.
fn results(said: &str) -> (Vec<&str>, Vec<&str>) {
    let lines = said
        .lines()
        .filter(|line| line.starts_with("ok ") || line.starts_with("not ok "));
    let (passed, other): (Vec<_>, Vec<_>) =
        lines.partition(|line| line.starts_with("ok ") && !line.contains('#'));
    let names = passed.into_iter().filter_map(|line| line.rsplit_once('.'));
    (names.map(|(_, name)| name).collect(), other)
}

#[test]
fn the_kernels_devmem_py_passes_with_our_ncdevmem() {
    let Some(tree) = env::var_os(TREE) else {
        return skip(
            TEST,
            "linux-tree",
            &format!("{TREE} names no kernel source"),
        );
    };
    let parts = match Parts::find(Path::new(&tree)) {
        Ok(parts) => parts,
        Err(reason) => return skip(TEST, "linux-tree", &reason),
    };
    let status = lab("status").output().expect("the tool starts");
    if !status.status.success() {
        let reason = String::from_utf8_lossy(&status.stderr).into_owned();
        return skip(TEST, "lab", reason.lines().next().unwrap_or_default());
    }
    let folder = tempfile::tempdir().expect("there is room");
    let script = folder.path().join("devmem-py.sh");
    let text = SCRIPT.replace("@python@", &parts.python.to_string_lossy());
    fs::write(&script, text).expect("there is room");
    let mut run = lab("run");
    run.args(["--limit", &LIMIT_S.to_string()]);
    let puts = parts.puts.iter().map(String::as_str);
    let of_script = format!("{}:/devmem-py.sh", script.display());
    for put in puts.chain([of_script.as_str()]) {
        run.args(["--put", put]);
    }
    let ended = run
        .args(["--", "sh", "/devmem-py.sh"])
        .output()
        .expect("the tool starts");

    let said = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}\n{errors}");
    let (passed, other) = results(&said);
    // A gVNIC does not support net_iovs larger than a page.
    let unexpected: Vec<_> = other
        .iter()
        .filter(|line| !line.contains("check_rx_large_niov # SKIP"))
        .collect();
    assert!(unexpected.is_empty(), "{said}");
    let once: BTreeSet<_> = passed.iter().collect();
    assert!(once.contains(&"check_rx"), "{said}");
    // The script checks only exit codes; check that data was received, too.
    let servers: Vec<_> = errors.split("Waiting or connection on").skip(1).collect();
    assert!(servers.len() > once.len(), "{errors}");
    for server in servers {
        assert!(server.contains("received frag_page="), "{server}");
    }
    assert_eq!(
        passed.len(),
        2 * once.len(),
        "once over each IP version: {said}"
    );
}

#[test]
fn passed_tests_are_distinguished_from_skips_and_failures() {
    let said = "TAP version 13\n1..3\nok 1 devmem.check_rx\nnot ok 2 devmem.check_tx\nok 3 devmem.check_x # SKIP no\n# Totals: ok";
    let (passed, other) = results(said);
    assert_eq!(passed, ["check_rx"]);
    assert_eq!(
        other,
        ["not ok 2 devmem.check_tx", "ok 3 devmem.check_x # SKIP no"]
    );
}
