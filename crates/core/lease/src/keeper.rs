//! The thread that renews the addresses of a NIC that is open.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use crate::acquire::Acquired;
use crate::conversation::LONGEST_SLEEP;
use crate::news::AddressEvent;

/// Renews addresses, as long as this value exists; dropping it returns the one of a DHCP server.
#[derive(Debug)]
pub struct LeaseKeeper {
    /// Ends the thread.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl LeaseKeeper {
    /// Starts the thread that renews the addresses of a NIC. It calls `on_news` with each change of them.
    ///
    /// # Errors
    /// The thread or its eventfd cannot be made.
    pub fn start(
        acquired: Acquired,
        mut on_news: impl FnMut(&AddressEvent) + Send + 'static,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let watched = Arc::clone(&stop);
        let Acquired {
            mut conversation,
            mut addresses,
        } = acquired;
        let keep = move || {
            // An error of poll(2) means that the kernel has no memory: nothing is renewed, and the address is returned.
            while let Ok(false) = conversation.turn(Some(&watched), LONGEST_SLEEP) {
                while let Some(news) = conversation.news() {
                    if news.apply_to(&mut addresses) {
                        on_news(&news);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("devmem-tcp-auto".to_owned());
        let thread = Some(thread.spawn(keep)?);
        Ok(Self { stop, thread })
    }

    /// Leaves the thread, which is not there in a child of fork(2).
    pub fn forget(mut self) {
        std::mem::forget(self.thread.take());
        std::mem::forget(self);
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        // Fails only if the counter of the eventfd is full, and then it is readable.
        let _ = rustix::io::write(self.stop.as_fd(), &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // An error: the thread has panicked, and its message is on stderr.
            let _ = thread.join();
        }
    }
}
