//! Opens that are cancelled while they wait.

use std::io::Write;
use std::net::TcpListener;
use std::ops::ControlFlow;

use devmem_linux::test_util::in_netns;
use devmem_transfer::load::{
    Checkpoint, CheckpointError, HttpFile, HttpRequest, LoadError, Loader,
};

use crate::server::{After, Server};
use crate::world::{V4, World, told};

/// Says to go on so many times.
fn times(mut left: usize) -> impl FnMut() -> ControlFlow<()> {
    move || match left.checked_sub(1) {
        Some(less) => {
            left = less;
            ControlFlow::Continue(())
        }
        None => ControlFlow::Break(()),
    }
}

#[test]
fn an_open_is_cancelled_while_the_server_is_silent_busy_or_not_there() {
    in_netns(
        "cancel::an_open_is_cancelled_while_the_server_is_silent_busy_or_not_there",
        || {
            let world = World::new(V4);
            // The kernel completes its connections, and nobody accepts them.
            let silent = TcpListener::bind("0.0.0.0:0").expect("a free port");
            let silent = silent.local_addr().expect("it is bound").port();
            let busy = Server::start(|_, out| {
                out.write_all(
                    b"HTTP/1.1 503 Busy\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n",
                )?;
                Ok(After::Keep)
            });
            let urls = [
                format!("http://{}:{silent}/m.safetensors", V4.host),
                busy.url(V4.host),
                // No station has this address.
                "http://10.77.0.9/file".to_owned(),
            ];
            for url in &urls {
                let request = HttpRequest::new(url.parse().expect("a URL"));
                let opened = HttpFile::open_cancellable(&world.nic, request.clone(), &mut times(5));
                assert!(
                    matches!(opened, Err(LoadError::Cancelled)),
                    "{url}: {opened:?}"
                );
                let loader = Loader::new(&world.nic);
                let opened = Checkpoint::open_cancellable(&loader, request, &mut times(5));
                let is_cancelled =
                    matches!(opened, Err(CheckpointError::Load(LoadError::Cancelled)));
                assert!(is_cancelled, "{url}: {opened:?}");
            }
            assert_eq!(busy.requests(), 2, "no request was repeated");
            world.end();
        },
    );
}

#[test]
fn a_host_of_another_ip_version_is_an_error_that_says_so() {
    in_netns(
        "cancel::a_host_of_another_ip_version_is_an_error_that_says_so",
        || {
            let world = World::new(V4);
            let error = told(&world.open("http://[fd77::1]/file").unwrap_err());
            assert!(
                error.contains("has an address of IPv6, and the NIC has none"),
                "{error}"
            );
            world.end();
        },
    );
}
