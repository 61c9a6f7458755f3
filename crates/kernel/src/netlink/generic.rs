//! Generic netlink: families that are looked up by name (linux include/uapi/linux/genetlink.h).

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::attr::Attributes;
use super::error::NetlinkError;
use super::message::NetlinkMessage;
use super::names::Names;
use super::request::{F_DUMP, Request};
use super::socket::NetlinkSocket;

/// `GENL_ID_CTRL`: the family that describes all families.
const CONTROLLER: u16 = 0x10;
/// `CTRL_CMD_GETFAMILY`.
const GET_FAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_ID`, `_FAMILY_NAME`, `_VERSION`, `_OPS`.
const ATTR_ID: u16 = 1;
const ATTR_NAME: u16 = 2;
const ATTR_VERSION: u16 = 3;
const ATTR_OPS: u16 = 6;
/// `CTRL_ATTR_OP_ID`.
const ATTR_OP_ID: u16 = 1;

/// `struct genlmsghdr`: command, version, two bytes reserved.
type Header = [u8; 4];

/// Description of a generic netlink family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Message type of its requests and replies, assigned at run time.
    pub id: u16,
    /// Its version.
    pub version: u8,
    /// The commands that this kernel supports.
    pub commands: Vec<u8>,
}

impl Family {
    /// Returns whether this kernel supports `command`.
    pub fn has(&self, command: u8) -> bool {
        self.commands.contains(&command)
    }

    /// Parses the controller's reply.
    pub(crate) fn parse(reply: Attributes<'_>) -> Option<Self> {
        let id = reply.find(ATTR_ID)?.value.try_into().ok()?;
        let version = reply.u32(ATTR_VERSION);
        // An array: the type of each attribute is its index.
        let operations = reply
            .nested(ATTR_OPS)
            .into_iter()
            .flat_map(Attributes::iter);
        let commands = operations.filter_map(|operation| operation.nested().u32(ATTR_OP_ID));
        Some(Self {
            id: u16::from_ne_bytes(id),
            version: version.and_then(|v| u8::try_from(v).ok()).unwrap_or(1),
            commands: commands.filter_map(|id| u8::try_from(id).ok()).collect(),
        })
    }
}

/// A generic netlink socket for one family. It belongs to the network namespace of the thread
/// that opened it. Objects that the kernel ties to the socket, such as a binding, exist until it is closed.
#[derive(Debug)]
pub struct GenericSocket {
    socket: NetlinkSocket,
    family: Family,
}

impl GenericSocket {
    /// Opens a socket and looks up the family `name`.
    ///
    /// # Errors
    ///
    /// `ENOENT` if this kernel does not have the family.
    pub fn open(name: &str) -> Result<Self, NetlinkError> {
        let what = format!("find the netlink family {name}");
        let mut socket = NetlinkSocket::generic()?;
        let request = Request::new(CONTROLLER, 0, &[GET_FAMILY, 1, 0, 0]).text(ATTR_NAME, name);
        let family = socket.get(&what, request, |reply| {
            Family::parse(attributes_of(&reply, CONTROLLER)?)
        })?;
        let family = family.ok_or_else(|| NetlinkError::new(&what, Errno::NOENT))?;
        Ok(Self { socket, family })
    }

    /// Returns the description of the family.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// Starts a request; `names` are the names of its attributes in errors.
    pub fn command(&self, command: u8, names: Names) -> Request {
        self.start(command, 0, names)
    }

    /// Starts a dump request.
    pub fn list(&self, command: u8, names: Names) -> Request {
        self.start(command, F_DUMP, names)
    }

    fn start(&self, command: u8, flags: u16, names: Names) -> Request {
        let header: Header = [command, self.family.version, 0, 0];
        Request::new(self.family.id, flags, &header).named(names)
    }

    /// Sends a request and returns the parsed reply; `None` if there was only an acknowledgement, or a reply that `parse`
    /// returned `None` for.
    ///
    /// # Errors
    ///
    /// As [`NetlinkSocket::request`].
    pub fn request<T>(
        &mut self,
        what: &str,
        request: Request,
        mut parse: impl FnMut(Attributes<'_>) -> Option<T>,
    ) -> Result<Option<T>, NetlinkError> {
        let id = self.family.id;
        self.socket.get(what, request, |reply| {
            attributes_of(&reply, id).and_then(&mut parse)
        })
    }

    /// As [`request`](Self::request), for requests that must have a reply.
    ///
    /// # Errors
    ///
    /// As [`request`](Self::request); `EBADMSG` if no reply could be parsed.
    pub fn get<T>(
        &mut self,
        what: &str,
        request: Request,
        parse: impl FnMut(Attributes<'_>) -> Option<T>,
    ) -> Result<T, NetlinkError> {
        self.request(what, request, parse)?
            .ok_or_else(|| NetlinkError::new(what, Errno::BADMSG))
    }

    /// Sends a dump request and returns the parsed entries; see
    /// [`NetlinkSocket::dump`].
    ///
    /// # Errors
    ///
    /// As [`NetlinkSocket::dump`].
    pub fn dump<T>(
        &mut self,
        what: &str,
        request: &Request,
        mut parse: impl FnMut(Attributes<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let id = self.family.id;
        self.socket.dump(what, request, |reply| {
            attributes_of(&reply, id).and_then(&mut parse)
        })
    }
}

/// The socket alone, which keeps alive what the kernel ties to it.
impl From<GenericSocket> for OwnedFd {
    fn from(socket: GenericSocket) -> Self {
        socket.socket.into()
    }
}

/// Returns the attributes of a reply; `None` if it is not of the family `id`.
fn attributes_of<'a>(reply: &NetlinkMessage<'a>, id: u16) -> Option<Attributes<'a>> {
    let (_, attributes) = reply.split::<Header>()?;
    (reply.kind == id).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_finds_itself_and_its_commands() {
        let socket = GenericSocket::open("nlctrl").expect("every kernel has it");
        assert_eq!(socket.family().id, CONTROLLER);
        assert!(socket.family().has(GET_FAMILY), "{:?}", socket.family());
        assert!(!socket.family().has(200));
    }

    #[test]
    fn an_unknown_family_is_enoent_with_its_name() {
        let error = GenericSocket::open("nosuch").unwrap_err();
        assert_eq!(error.errno, Errno::NOENT);
        assert!(error.to_string().contains("nosuch"), "{error}");
    }

    #[test]
    fn all_families_are_listed() {
        let mut socket = NetlinkSocket::generic().unwrap();
        let request = Request::new(CONTROLLER, F_DUMP, &[GET_FAMILY, 1, 0, 0]);
        let families = socket
            .dump("list families", &request, |reply| {
                Family::parse(attributes_of(&reply, CONTROLLER)?)
            })
            .unwrap();
        assert!(families.iter().any(|f| f.id == CONTROLLER), "{families:?}");
    }

    #[test]
    fn a_refusal_of_the_kernel_names_the_wrong_attribute() {
        let mut socket = NetlinkSocket::generic().unwrap();
        let names = Names(&[(ATTR_NAME, "name", Names::NONE)]);
        let request = Request::new(CONTROLLER, 0, &[GET_FAMILY, 1, 0, 0])
            .named(names)
            .attribute(ATTR_NAME, &[b'x'; 17]);
        let error = socket.request("find", request, |_| {}).unwrap_err();
        let bad = error
            .attribute
            .expect("the name is too long for its policy");
        assert_eq!((bad.path.as_str(), bad.missing), ("name", false));
    }
}
