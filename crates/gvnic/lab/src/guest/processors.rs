//! The processors that the kernel has left to process 1, which the host asked it for (`qemu::command_line`).

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, anyhow};

/// Where the kernel lists its processors.
pub const FOLDER: &str = "/sys/devices/system/cpu";

/// Starts all processors that are not running, of those listed in `folder`.
pub fn start_all(folder: &Path) -> anyhow::Result<()> {
    let listed = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    for entry in listed {
        let entry = entry.with_context(|| format!("read {}", folder.display()))?;
        let name = entry.file_name();
        if name.to_str().is_some_and(is_secondary) {
            start(&entry.path())?;
        }
    }
    Ok(())
}

/// Whether a file of that name is a processor other than the first one, which runs.
fn is_secondary(name: &str) -> bool {
    let number = name.strip_prefix("cpu").map(str::parse::<u16>);
    matches!(number, Some(Ok(1..)))
}

fn start(processor: &Path) -> anyhow::Result<()> {
    let switch = processor.join("online");
    let what = || format!("start {}", processor.display());
    match fs::read_to_string(&switch) {
        Ok(state) if state.trim() == "0" => fs::write(&switch, "1").with_context(what),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(anyhow!(
            "this kernel cannot start a processor later: it lacks CONFIG_HOTPLUG_CPU=y, or --cpus 1 is wanted"
        )),
        Err(error) => Err(error).with_context(what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_processors_but_the_first_are_started_and_running_ones_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["cpu0", "cpu1", "cpu2", "cpu10", "cpufreq", "cpuidle"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("present"), "0-10").unwrap();
        for (name, state) in [("cpu1", "0\n"), ("cpu2", "1\n"), ("cpu10", "0\n")] {
            fs::write(at(name).join("online"), state).unwrap();
        }
        start_all(folder.path()).unwrap();
        let states = ["cpu1", "cpu2", "cpu10"]
            .map(|name| fs::read_to_string(at(name).join("online")).unwrap());
        assert_eq!(states, ["1", "1\n", "1"]);
    }

    #[test]
    fn a_kernel_that_starts_none_later_is_an_error_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("cpu1")).unwrap();
        let said = start_all(folder.path()).unwrap_err().to_string();
        assert!(said.contains("CONFIG_HOTPLUG_CPU=y"), "{said}");
    }
}
