//! How many requests one connection has in flight.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use devmem_linux::test_util::in_netns;
use devmem_transfer::load::{Loader, Part};

use crate::server::{After, Server, good};
use crate::world::{V4, World, memory_for, pattern};

#[test]
fn short_parts_with_gaps_are_requested_together() {
    /// Length of a part, and of the gap behind it.
    const PART: usize = 10_000;
    const PARTS: usize = 33;
    /// Requests that the server waits for before it answers.
    const TOGETHER: usize = 16;
    in_netns(
        "pipeline::short_parts_with_gaps_are_requested_together",
        || {
            let file = Arc::new(pattern(2 * PARTS * PART));
            let served = Arc::clone(&file);
            let held = Mutex::new(Vec::new());
            // The first request of a connection is alone: its answer tells whether the connection stays open.
            let server = Server::start(move |asked, out| {
                if asked.number < 2 {
                    return good(asked, &served, out);
                }
                let mut held = held.lock().unwrap();
                held.push(asked.clone());
                if held.len() == TOGETHER {
                    for asked in held.drain(..) {
                        good(&asked, &served, out)?;
                    }
                }
                Ok(After::Keep)
            });
            let world = World::new(V4);
            let memory = memory_for(PARTS * PART);
            let parts: Vec<_> = (0..PARTS)
                .map(|number| Part {
                    source: (2 * number * PART) as u64..((2 * number + 1) * PART) as u64,
                    memory: memory.clone(),
                    offset: number * PART,
                })
                .collect();
            let opened = world.open(&server.url(V4.host)).expect("it is there");
            let loader = Loader::new(&world.nic).connections(1);
            let loader = loader.idle_limit(Duration::from_secs(6)).attempts(1);
            let loaded = loader
                .load(&opened, &parts, &mut |_| ControlFlow::Continue(()))
                .expect("it loads");
            assert_eq!((loaded.pieces, loaded.repeated), (PARTS as u64, 0));
            let expected = file.chunks(PART).step_by(2).collect::<Vec<_>>().concat();
            assert!(memory.slice(0..PARTS * PART).to_vec() == expected);
            world.end();
        },
    );
}
