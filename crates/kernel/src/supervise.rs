//! Child processes that do not outlive their parent: a virtual machine or a device server that nobody watches any
//! more is of no use.

use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::sys;

/// Has the kernel end what `command` starts with SIGKILL when the calling thread ends, however it ends
/// (`PR_SET_PDEATHSIG`). Spawn it from a thread that lives as long as the child shall.
pub fn end_with_parent(command: &mut Command) {
    sys::child::before_exec(command, || {
        set_parent_process_death_signal(Some(Signal::KILL))
    });
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let mut child = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("600").stdout(Stdio::piped());
            end_with_parent(&mut command);
            command.spawn().expect("sleep is there")
        })
        .join()
        .expect("the thread does not panic");
        // Held open by the child alone.
        let mut pipe = child.stdout.take().expect("it was piped");
        assert_eq!(pipe.read(&mut [0]).expect("a pipe can be read"), 0);
        assert!(!child.wait().expect("it is ours").success());
    }
}
