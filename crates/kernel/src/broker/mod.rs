//! A broker: a process that binds memory to RX queues for programs that may not.
//!
//! bind-rx needs CAP_NET_ADMIN, which a pod often does not have, not even in its own user namespace. A binding belongs to the netlink
//! socket that made it, and not to a process. So a broker can make it, and give the socket away:
//!
//! ```text
//! program (no capability)                         broker (CAP_NET_ADMIN)
//!   connect(PATH)                          ──▶    SO_PEERCRED, network namespace: may this user ask?
//!                                          ◀──    hello, or a refusal
//!   request: interface, queues             ──▶    are these queues allowed to this user?
//!     + the dma-buf (SCM_RIGHTS)                  bind-rx on a new netlink socket
//!                                          ◀──    bound: id of the binding, or a refusal
//!                                                   + the netlink socket (SCM_RIGHTS)
//! ```
//!
//! Then the broker closes its copy of the socket, and the connection: the binding lives exactly as long as the program keeps the socket,
//! whatever becomes of the broker. The socket gives no right of the broker: for a request that needs a capability, the kernel looks at the
//! sender, too (linux net/netlink/af_netlink.c `__netlink_ns_capable`).
//!
//! - [`Grant`] says which user may ask for which queues,
//! - [`Broker`] listens and answers,
//! - [`bind_rx`] asks.
//!
//! Neither end trusts the other: messages have a fixed largest size, each is one packet with the descriptors that it must have, and every
//! wait has a limit. What a client can cost others: a user without a grant is refused before it can send anything, descriptors
//! included (Linux 6.16); each grant has a fixed number of clients at a time, each with a thread, which alone waits for it and for the
//! files that it sends; and of refusals, a fixed number in a second is told.

mod client;
mod error;
mod event;
mod grant;
mod message;
mod packet;
mod peer;
mod server;
#[cfg(test)]
mod tests;

pub use client::bind_rx;
pub use error::BrokerError;
pub use event::{Event, Outcome};
pub use grant::{Client, Grant, GrantError};
pub use message::Refusal;
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(crate) use message::fuzz_messages;
pub use server::Broker;
