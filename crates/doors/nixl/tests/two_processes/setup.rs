//! The parameters of the agents of a test.

use std::cell::RefCell;

/// Parameters of agents.
pub type Parameters = Vec<(String, String)>;

/// How the agents of a test reach each other.
#[derive(Clone, Default)]
pub struct Setup {
    /// Of agents in the process of the test.
    pub near: Parameters,
    /// Of the agent in the other process.
    pub far: Parameters,
}

thread_local! {
    static SETUP: RefCell<Setup> = RefCell::default();
}

/// The set-up of agents that this thread opens, and of other processes that it starts.
pub fn use_setup(setup: Setup) {
    SETUP.set(setup);
}

pub fn setup() -> Setup {
    SETUP.with_borrow(Clone::clone)
}

/// The way of both sides.
pub fn use_way(way: &str) {
    let both = vec![("way".to_owned(), way.to_owned())];
    use_setup(Setup {
        near: both.clone(),
        far: both,
    });
}

/// The way of agents that this thread opens.
pub fn way() -> String {
    let found = setup().near.into_iter().find(|(key, _)| key == "way");
    found.map_or_else(|| "auto".to_owned(), |(_, way)| way)
}
