//! epoll: the watched files, and a list of those that may have events.
//!
//! As in Linux (fs/eventpoll.c) a change of a file puts it on the lists of the epolls that watch it; a wait checks
//! only that list. A level-triggered file that is still ready returns to the list, an edge-triggered one at its next
//! change, a one-shot one at the next epoll_ctl.

use std::collections::{BTreeMap, VecDeque};

use devmem_uapi::Errno;

use super::ready::{ANYTHING, ChangedBits, READABLE};
use super::{FileKind, Table};
use crate::abi::{ctl, ev};

/// Events that epoll_ctl accepts.
const EVENTS: u32 =
    ev::IN | ev::PRI | ev::OUT | ev::ERR | ev::HUP | ev::RDNORM | ev::WRNORM | ev::RDHUP;

/// Maximum number of epolls in a chain that watch each other, minus one (linux `EP_MAX_NESTS`).
const MAX_NESTS: usize = 4;

/// Events allowed together with EPOLLEXCLUSIVE (linux `EPOLLEXCLUSIVE_OK_BITS`).
const EXCLUSIVE_OK: u32 =
    ev::IN | ev::OUT | ev::ERR | ev::HUP | ev::WAKEUP | ev::ET | ev::EXCLUSIVE;

/// Maximum events of one wait (linux `EP_MAX_EVENTS` is larger; ints bound it).
const MAX_EVENTS: i32 = 1 << 20;

/// One event: the bits, and the program's data for the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpollEvent {
    /// EPOLLIN and so on.
    pub events: u32,
    /// Data of the program, returned with the event.
    pub data: u64,
}

/// An epoll: the files that it watches, by index.
#[derive(Debug, Default)]
pub(crate) struct Epoll {
    interests: BTreeMap<usize, Interest>,
    /// Files that may have events, each once.
    list: VecDeque<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Interest {
    asked: EpollEvent,
    listed: bool,
    /// A one-shot file whose event was returned.
    is_spent: bool,
}

impl Interest {
    /// Returns the bits of `ready` that the program asked for; errors and hang-ups always count.
    fn wanted(&self, ready: u32) -> u32 {
        ready & (self.asked.events & EVENTS | ev::ERR | ev::HUP)
    }

    fn is_exclusive(&self) -> bool {
        self.asked.events & ev::EXCLUSIVE != 0
    }
}

impl Epoll {
    fn put_on_list(&mut self, file: usize) {
        if let Some(interest) = self.interests.get_mut(&file)
            && !interest.listed
            && !interest.is_spent
        {
            interest.listed = true;
            self.list.push_back(file);
        }
    }
}

impl Table {
    /// epoll_create1(2).
    ///
    /// # Errors
    /// EINVAL, EMFILE.
    pub fn epoll_create(&mut self, flags: i32) -> Result<i32, Errno> {
        if flags & !crate::abi::SOCK_CLOEXEC != 0 {
            return Err(Errno::EINVAL);
        }
        self.add_file(FileKind::Epoll(Epoll::default()), flags)
    }

    fn epoll_mut(&mut self, epfd: i32) -> Result<&mut Epoll, Errno> {
        match &mut self.file_mut(epfd)?.kind {
            FileKind::Epoll(epoll) => Ok(epoll),
            FileKind::Socket(_) | FileKind::Pipe(_) => Err(Errno::EINVAL),
        }
    }

    /// epoll_ctl(2). `event` is ignored for EPOLL_CTL_DEL.
    ///
    /// # Errors
    /// EBADF; EINVAL (not an epoll, itself, an unknown operation, EPOLLEXCLUSIVE where it is not allowed); EEXIST; ENOENT;
    /// ELOOP: epolls would watch each other in a circle, or more than 5 in a row.
    pub fn epoll_ctl(
        &mut self,
        epfd: i32,
        operation: i32,
        fd: i32,
        event: EpollEvent,
    ) -> Result<(), Errno> {
        let (watcher, file) = (self.index_of(epfd)?, self.index_of(fd)?);
        self.epoll_mut(epfd)?;
        if watcher == file {
            return Err(Errno::EINVAL);
        }
        let is_exclusive = event.events & ev::EXCLUSIVE != 0;
        match operation {
            ctl::ADD if is_exclusive && event.events & !EXCLUSIVE_OK != 0 => Err(Errno::EINVAL),
            ctl::ADD if self.is_epoll(file) => {
                if is_exclusive {
                    return Err(Errno::EINVAL);
                }
                self.check_nesting(watcher, file)?;
                self.watch(watcher, file, event)
            }
            ctl::ADD => self.watch(watcher, file, event),
            ctl::MOD => self.rewatch(watcher, file, event),
            ctl::DEL => self.unwatch(watcher, file),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns whether a descriptor is an epoll's.
    pub(crate) fn is_epoll_fd(&self, fd: i32) -> Result<bool, Errno> {
        Ok(self.is_epoll(self.index_of(fd)?))
    }

    fn is_epoll(&self, index: usize) -> bool {
        let kind = self.files.get(index).map(|file| &file.kind);
        matches!(kind, Some(FileKind::Epoll(_)))
    }

    /// Returns ELOOP if `watcher` cannot watch the epoll `file` (linux `ep_loop_check`).
    fn check_nesting(&self, watcher: usize, file: usize) -> Result<(), Errno> {
        let below = self.depth_below(file, watcher, 0).ok_or(Errno::ELOOP)?;
        match below + 1 + self.depth_above(watcher) {
            ..=MAX_NESTS => Ok(()),
            _ => Err(Errno::ELOOP),
        }
    }

    /// Returns how many epolls in a row an epoll watches; `None` if `sought` is among them, or there are too many.
    fn depth_below(&self, index: usize, sought: usize, above: usize) -> Option<usize> {
        if index == sought || above > MAX_NESTS {
            return None;
        }
        let Some(FileKind::Epoll(epoll)) = self.files.get(index).map(|file| &file.kind) else {
            return Some(0);
        };
        let mut most = 0;
        for file in epoll.interests.keys().filter(|file| self.is_epoll(**file)) {
            most = most.max(1 + self.depth_below(*file, sought, above + 1)?);
        }
        Some(most)
    }

    /// Returns the length of the longest chain of epolls that watch an epoll. Cycles are refused when files are added.
    fn depth_above(&self, index: usize) -> usize {
        let watchers = self.files.get(index).map(|file| file.watchers.as_slice());
        let depths = watchers.unwrap_or_default().iter();
        depths
            .map(|at| 1 + self.depth_above(*at))
            .max()
            .unwrap_or(0)
    }

    fn epoll_at(&mut self, watcher: usize) -> Result<&mut Epoll, Errno> {
        match self.files.get_mut(watcher).map(|file| &mut file.kind) {
            Some(FileKind::Epoll(epoll)) => Ok(epoll),
            _ => Err(Errno::EINVAL),
        }
    }

    fn watch(&mut self, watcher: usize, file: usize, event: EpollEvent) -> Result<(), Errno> {
        let epoll = self.epoll_at(watcher)?;
        if epoll.interests.contains_key(&file) {
            return Err(Errno::EEXIST);
        }
        let interest = Interest {
            asked: event,
            listed: false,
            is_spent: false,
        };
        epoll.interests.insert(file, interest);
        if let Some(file) = self.files.get_mut(file) {
            file.watchers.push(watcher);
        }
        self.look_at(watcher, file)
    }

    fn rewatch(&mut self, watcher: usize, file: usize, event: EpollEvent) -> Result<(), Errno> {
        let epoll = self.epoll_at(watcher)?;
        let interest = epoll.interests.get_mut(&file).ok_or(Errno::ENOENT)?;
        if (event.events | interest.asked.events) & ev::EXCLUSIVE != 0 {
            return Err(Errno::EINVAL);
        }
        interest.asked = event;
        interest.is_spent = false;
        self.look_at(watcher, file)
    }

    /// Lists a file that an epoll has just begun to watch, if it has events already.
    fn look_at(&mut self, watcher: usize, file: usize) -> Result<(), Errno> {
        let ready = self.examine(file);
        let epoll = self.epoll_at(watcher)?;
        let interest = epoll.interests.get(&file).ok_or(Errno::ENOENT)?;
        if interest.wanted(ready) != 0 {
            epoll.put_on_list(file);
            self.touch();
            self.wake_watchers(watcher, ANYTHING);
        }
        Ok(())
    }

    fn unwatch(&mut self, watcher: usize, file: usize) -> Result<(), Errno> {
        let epoll = self.epoll_at(watcher)?;
        epoll.interests.remove(&file).ok_or(Errno::ENOENT)?;
        epoll.list.retain(|listed| *listed != file);
        if let Some(file) = self.files.get_mut(file) {
            file.watchers.retain(|other| *other != watcher);
        }
        Ok(())
    }

    /// Removes a closed file from every epoll, and its watches if it is an epoll.
    pub(super) fn forget_watches(&mut self, index: usize) {
        let Some(file) = self.files.get(index) else {
            return;
        };
        for watcher in file.watchers.clone() {
            let _ = self.unwatch(watcher, index);
        }
        let Ok(epoll) = self.epoll_at(index) else {
            return;
        };
        let watched: Vec<usize> = epoll.interests.keys().copied().collect();
        for file in watched {
            let _ = self.unwatch(index, file);
        }
    }

    /// Wakes the epolls that watch a file for `news`; of those with EPOLLEXCLUSIVE, only the first with a waiting
    /// thread.
    pub(super) fn wake_watchers(&mut self, index: usize, news: ChangedBits) {
        let Some(file) = self.files.get(index) else {
            return;
        };
        let mut told_one = false;
        for watcher in file.watchers.clone() {
            let is_waited_for = self.files.get(watcher).is_some_and(|it| it.holders > 0);
            let Ok(epoll) = self.epoll_at(watcher) else {
                continue;
            };
            let Some(interest) = epoll.interests.get(&index) else {
                continue;
            };
            let is_exclusive = interest.is_exclusive();
            let concerns = news == ANYTHING || interest.wanted(news) != 0;
            if interest.is_spent || !concerns || (is_exclusive && told_one) {
                continue;
            }
            told_one |= is_exclusive && is_waited_for;
            epoll.put_on_list(index);
            self.wake_watchers(watcher, READABLE);
        }
    }

    /// Returns events, at most as many as `out` has room for.
    ///
    /// # Errors
    /// EBADF, EINVAL; EAGAIN if there is none.
    pub fn epoll_take(&mut self, epfd: i32, most: i32) -> Result<Vec<EpollEvent>, Errno> {
        let watcher = self.index_of(epfd)?;
        self.epoll_mut(epfd)?;
        let most = match most {
            1..=MAX_EVENTS => usize::try_from(most).unwrap_or(1),
            _ => return Err(Errno::EINVAL),
        };
        let mut taken = Vec::new();
        let mut again = Vec::new();
        while taken.len() < most {
            let Some(file) = self.epoll_at(watcher)?.list.pop_front() else {
                break;
            };
            let ready = self.examine(file);
            let epoll = self.epoll_at(watcher)?;
            let Some(interest) = epoll.interests.get_mut(&file) else {
                continue;
            };
            interest.listed = false;
            let asked = interest.asked.events;
            let events = interest.wanted(ready);
            if events == 0 {
                continue;
            }
            taken.push(EpollEvent {
                events,
                data: interest.asked.data,
            });
            if asked & ev::ONESHOT != 0 {
                interest.is_spent = true;
            } else if asked & ev::ET == 0 {
                again.push(file);
            }
        }
        let epoll = self.epoll_at(watcher)?;
        again.into_iter().for_each(|file| epoll.put_on_list(file));
        match taken.is_empty() {
            true => Err(Errno::EAGAIN),
            false => Ok(taken),
        }
    }

    /// Returns whether a wait would return events.
    pub(super) fn has_events(&self, epoll: &Epoll) -> bool {
        epoll.list.iter().any(|file| {
            let interest = epoll.interests.get(file);
            interest.is_some_and(|interest| interest.wanted(self.examine(*file)) != 0)
        })
    }
}
