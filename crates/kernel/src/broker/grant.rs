//! Grantee may ask a broker for which queues.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use devmem_uapi::Errno;
use serde::Serialize;

use super::message::{Refusal, Request};

/// The process at the other end of a connection, as the kernel tells of it (SO_PEERCRED, unix(7)): its ids when it connected, in the
/// broker's user and process namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Client {
    /// The process; 0 if it is in no process namespace that the broker sees.
    pub pid: u32,
    /// Its effective user id; 65534 if the broker's user namespace has none for it.
    pub uid: u32,
    /// Its effective group id; likewise.
    pub gid: u32,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, uid, gid } = self;
        write!(f, "process {pid} (uid {uid}, gid {gid})")
    }
}

/// The users that a grant is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grantee {
    Uid(u32),
    Gid(u32),
}

/// A permission: who may ask for which queues of which interface. Its text is `uid=1000:eth0:4-7`, `gid=100:dm0:1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    grantee: Grantee,
    interface: String,
    queues: RangeInclusive<u32>,
}

/// Why a text is not a grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {what}")]
pub struct GrantError {
    text: String,
    what: &'static str,
}

/// The id of a user or group that a user namespace has no number for (linux Documentation/admin-guide/sysctl/fs.rst,
/// overflowuid). Everybody without a number has it.
const OVERFLOW_ID: u32 = 65_534;

impl FromStr for Grant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let bad = |what| GrantError {
            text: text.to_owned(),
            what,
        };
        let parts: Vec<_> = text.split(':').collect();
        let [grantee, interface, queues] = parts[..] else {
            return Err(bad("write uid=1000:dm0:1, or gid=100:eth0:4-7"));
        };
        let id = |id: &str| match id.parse() {
            Ok(OVERFLOW_ID) => Err(bad(
                "65534 is everybody who has no id in the broker's user namespace",
            )),
            Ok(id) => Ok(id),
            Err(_) => Err(bad("a user or group is a number")),
        };
        let grantee = match grantee.split_once('=') {
            Some(("uid", uid)) => Grantee::Uid(id(uid)?),
            Some(("gid", gid)) => Grantee::Gid(id(gid)?),
            _ => return Err(bad("begin with uid=N or gid=N")),
        };
        let is_name = (1..16).contains(&interface.len())
            && interface.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_name {
            return Err(bad("not the name of an interface"));
        }
        let (first, last) = queues.split_once('-').unwrap_or((queues, queues));
        let range = first.parse().ok().zip(last.parse().ok());
        let (first, last) = range.ok_or_else(|| bad("queues are a number, or a range as 4-7"))?;
        if first > last {
            return Err(bad("the range of queues ends before it begins"));
        }
        Ok(Self {
            grantee,
            interface: interface.to_owned(),
            queues: first..=last,
        })
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.grantee {
            Grantee::Uid(uid) => write!(f, "uid={uid}")?,
            Grantee::Gid(gid) => write!(f, "gid={gid}")?,
        }
        let (first, last) = (self.queues.start(), self.queues.end());
        write!(f, ":{}:{first}", self.interface)?;
        match first == last {
            true => Ok(()),
            false => write!(f, "-{last}"),
        }
    }
}

impl Grant {
    /// Returns the interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns whether the grant is for this client.
    pub(super) fn is_for(&self, client: Client) -> bool {
        match self.grantee {
            Grantee::Uid(uid) => client.uid == uid,
            Grantee::Gid(gid) => client.gid == gid,
        }
    }
}

/// Refuses a request for queues that no grant allows to this client.
pub(super) fn check(grants: &[Grant], client: Client, request: &Request) -> Result<(), Refusal> {
    let Request {
        interface, queues, ..
    } = request;
    let theirs = || grants.iter().filter(|grant| grant.is_for(client));
    let is_granted = |queue: u32| {
        theirs().any(|grant| grant.interface == *interface && grant.queues.contains(&queue))
    };
    match queues.iter().find(|queue| !is_granted(queue.0)) {
        None => Ok(()),
        Some(queue) => {
            let theirs: Vec<_> = theirs().map(Grant::to_string).collect();
            let reason = format!("{client} may not ask for queue {queue} of {interface}");
            let remedy = format!("the broker's --allow has for it: {}", theirs.join(", "));
            Err(Refusal::new(Errno::EPERM, reason).with_remedy(remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netdev::KernelRxQueueId;

    fn request(interface: &str, queues: &[u32]) -> Request {
        Request {
            interface: interface.to_owned(),
            queues: queues.iter().copied().map(KernelRxQueueId).collect(),
            niov_bytes: None,
        }
    }

    #[test]
    fn a_grant_is_read_and_written() {
        for text in ["uid=1000:eth0:4-7", "gid=0:dm0:1", "uid=0:a:0-4294967295"] {
            assert_eq!(text.parse::<Grant>().unwrap().to_string(), text);
        }
        let one: Grant = "uid=7:dm0:3-3".parse().unwrap();
        assert_eq!(one.to_string(), "uid=7:dm0:3");
    }

    #[test]
    fn a_grant_that_is_unclear_is_refused() {
        for text in [
            "",
            "uid=1000",
            "uid=1000:eth0",
            "uid=1000:eth0:1:2",
            "1000:eth0:1",
            "user=1000:eth0:1",
            "uid=root:eth0:1",
            "uid=-1:eth0:1",
            "uid=65534:eth0:1",
            "uid=1000::1",
            "uid=1000:a name:1",
            "uid=1000:sixteen-letters-:1",
            "uid=1000:eth0:",
            "uid=1000:eth0:7-4",
            "uid=1000:eth0:1-",
            "uid=1000:eth0:*",
        ] {
            assert!(text.parse::<Grant>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn each_queue_of_a_request_must_be_granted_to_its_user_or_group() {
        let grants = ["uid=1000:eth0:4-7", "gid=100:dm0:1", "uid=1000:eth0:9"];
        let grants = grants.map(|text| text.parse::<Grant>().unwrap());
        let client = |uid, gid| Client { pid: 1, uid, gid };
        let check =
            |client, interface, queues: &[u32]| check(&grants, client, &request(interface, queues));
        let user = client(1000, 1000);
        assert_eq!(check(user, "eth0", &[4, 7, 9]), Ok(()));
        assert_eq!(check(client(5, 100), "dm0", &[1]), Ok(()));
        assert_eq!(check(client(1000, 100), "dm0", &[1]), Ok(()));
        for (client, interface, queues) in [
            (user, "eth0", &[4, 8][..]),
            (user, "eth0", &[3]),
            (user, "eth1", &[4]),
            (user, "dm0", &[1]),
            (client(100, 1000), "dm0", &[1]),
            (client(0, 0), "eth0", &[4]),
        ] {
            let refused = check(client, interface, queues).unwrap_err();
            assert_eq!(refused.errno, Errno::EPERM, "{client} {queues:?}");
        }
        let refused = check(user, "eth0", &[4, 8]).unwrap_err();
        assert_eq!(
            refused.reason,
            "process 1 (uid 1000, gid 1000) may not ask for queue 8 of eth0"
        );
        let remedy = refused.remedy.unwrap();
        assert!(
            remedy.ends_with("uid=1000:eth0:4-7, uid=1000:eth0:9"),
            "{remedy}"
        );
    }
}
