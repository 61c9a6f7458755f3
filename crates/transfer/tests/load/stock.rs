//! Stock servers: Python's http.server and nginx.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use devmem_linux::test_util::in_netns;
use devmem_transfer::load::Loader;

use crate::process::{has, start};
use crate::server::{Server, good};
use crate::world::{V4, V6, World, pattern, told, whole};

const FILE_BYTES: usize = 20_000_003;

fn write_file(folder: &Path) -> Vec<u8> {
    let file = pattern(FILE_BYTES);
    fs::write(folder.join("file"), &file).expect("there is room");
    file
}

#[test]
fn pythons_server_sends_the_whole_file() {
    const TEST: &str = "stock::pythons_server_sends_the_whole_file";
    if !has(TEST, "python3", "--version") {
        return;
    }
    in_netns(TEST, || {
        let folder = tempfile::tempdir().expect("there is room");
        let file = write_file(folder.path());
        let mut command = Command::new("python3");
        command.args(["-m", "http.server", "8000", "--bind", "0.0.0.0"]);
        command.current_dir(folder.path()).stderr(Stdio::null());
        let _server = start(&mut command, 8000);
        let world = World::new(V4);
        let loader = Loader::new(&world.nic).piece_bytes(1 << 20);
        let loaded = world.load_all("http://10.77.0.1:8000/file", &file, &loader);
        assert_eq!(loaded.connections, 1, "it serves no ranges");
        let missing = world.open("http://10.77.0.1:8000/nosuch").unwrap_err();
        assert!(told(&missing).contains("404"), "{missing}");
        world.end();
    });
}

/// Writes the configuration of an nginx that needs no privilege and no folder but this one, with further
/// lines for its server.
fn nginx(folder: &Path, lines: &str) -> Command {
    let text = format!(
        "user root; daemon off; master_process off; worker_processes 1; pid {0}/pid; error_log {0}/errors;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; sendfile on; keepalive_requests 5;\n\
         client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fcgi;\n\
         uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
         server {{ listen 8000; listen [::]:8000; root {0}; {lines} }} }}\n",
        folder.display()
    );
    let path = folder.join("nginx.conf");
    let mut conf = fs::File::create(&path).expect("there is room");
    conf.write_all(text.as_bytes()).expect("there is room");
    let mut command = Command::new("nginx");
    command
        .arg("-e")
        .arg(folder.join("errors"))
        .arg("-c")
        .arg(path);
    command
}

#[test]
fn nginx_serves_ranges_over_many_connections() {
    const TEST: &str = "stock::nginx_serves_ranges_over_many_connections";
    if !has(TEST, "nginx", "-v") {
        return;
    }
    in_netns(TEST, || {
        let folder = tempfile::tempdir().expect("there is room");
        let file = write_file(folder.path());
        let _server = start(&mut nginx(folder.path(), ""), 8000);
        for (addresses, host) in [(V4, V4.host.to_owned()), (V6, format!("[{}]", V6.host))] {
            let world = World::far(addresses);
            let url = format!("http://{host}:8000/file");
            for connections in [1, 4, 16] {
                let loader = Loader::new(&world.nic)
                    .connections(connections)
                    .piece_bytes(500_000)
                    .pipeline(2);
                let (loaded, together) = world.load_counted(&url, &file, &loader);
                assert_eq!((loaded.pieces, together > 1), (41, connections > 1));
                // It closes a connection after 5 responses, with a reset if another request has arrived.
                assert!(loaded.connections >= 9, "{loaded:?}");
            }
            world.end();
        }
    });
}

#[test]
fn a_server_killed_and_started_again_goes_on() {
    const TEST: &str = "stock::a_server_killed_and_started_again_goes_on";
    if !has(TEST, "nginx", "-v") {
        return;
    }
    in_netns(TEST, || {
        let folder = tempfile::tempdir().expect("there is room");
        let file = write_file(folder.path());
        // What nginx sends of a response in each second: when it is killed, no response is whole in the buffers of its kernel.
        let serve = |pace| start(&mut nginx(folder.path(), pace), 8000);
        let mut server = Some(serve("limit_rate 100k;"));
        let world = World::new(V4);
        let opened = world.open("http://10.77.0.1:8000/file").unwrap();
        let memory = crate::world::memory_for(FILE_BYTES);
        let part = whole(&memory, FILE_BYTES);
        let loader = Loader::new(&world.nic).piece_bytes(1 << 20);
        let mut restarted = false;
        let loaded = loader.load(&opened, &[part], &mut |so_far| {
            if so_far.bytes > 0 && !restarted {
                restarted = true;
                if let Some(server) = server.take() {
                    server.kill();
                }
                server = Some(serve(""));
            }
            std::ops::ControlFlow::Continue(())
        });
        let loaded = loaded.expect("it goes on");
        assert!(
            restarted && loaded.broken > 0 && loaded.repeated > 0,
            "{loaded:?}"
        );
        assert!(memory.slice(0..FILE_BYTES).to_vec() == file);
        drop(server);
        world.end();
    });
}

#[test]
fn a_nic_with_several_shards_loads_every_byte() {
    const TEST: &str = "stock::a_nic_with_several_shards_loads_every_byte";
    in_netns(TEST, || {
        let file = pattern(FILE_BYTES);
        let served = file.clone();
        let server = Server::start(move |asked, out| good(asked, &served, out));
        let world = World::far_and_sharded(V4, 2);
        let loader = Loader::new(&world.nic).connections(8).piece_bytes(1 << 20);
        let (loaded, together) = world.load_counted(&server.url(V4.host), &file, &loader);
        assert_eq!((together > 1, loaded.repeated), (true, 0));
        world.end();
    });
}
