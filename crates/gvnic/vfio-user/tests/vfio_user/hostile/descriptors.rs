//! Descriptors: too many, full eventfds, files that block.

use super::*;

#[test]
fn too_many_descriptors_are_closed_and_the_request_refused() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let (ours, theirs) = rustix::pipe::pipe().unwrap();
    let flood: Vec<_> = (0..200).map(|_| theirs.as_fd()).collect();
    for fds in [&flood[..], &flood[..17]] {
        let reply = bench.ask(&mut client, SET_IRQS, &set_irqs(ASSIGN, 2, 0, 3), fds);
        assert_eq!(reply.errno, EMFILE);
    }
    // Sixteen descriptors with a message that needs one or none.
    let map = dma_map(MAP_RW, 0, 0, 0x1000);
    assert_eq!(
        bench.ask(&mut client, DMA_MAP, &map, &flood[..16]).errno,
        EINVAL
    );
    bench.ask_ok(&mut client, GET_INFO, &[0; 16], &flood[..16]);
    assert_eq!(bench.server.stats().session.fds_closed, 32);
    // The server has no copy left: the pipe reports its end when this test closes its copy.
    drop(flood);
    drop(theirs);
    assert_eq!(rustix::io::read(&ours, &mut [0; 1]), Ok(0));
}

#[test]
fn descriptors_with_the_version_are_closed_and_counted() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    let fds: Vec<_> = (0..3).map(|_| new_eventfd()).collect();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    client.send(VERSION, 0, &version_body(), &fds);
    bench.turn();
    assert_eq!(client.receive().unwrap().errno, 0);
    assert_eq!(bench.server.stats().session.fds_closed, 3);
}

#[test]
fn descriptors_are_limited_over_all_parts_of_a_message() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let (ours, theirs) = rustix::pipe::pipe().unwrap();
    let ten: Vec<_> = (0..10).map(|_| theirs.as_fd()).collect();
    for byte in message(5, SET_IRQS, 0, &set_irqs(ASSIGN, 2, 0, 3)) {
        client.send_raw(&[byte], &ten);
        bench.turn();
    }
    assert_eq!(client.receive().unwrap().errno, EMFILE);
    drop(ten);
    drop(theirs);
    assert_eq!(rustix::io::read(&ours, &mut [0; 1]), Ok(0));
}

/// Returns an eventfd with its maximum value: a write would block, unless it is non-blocking.
fn full_eventfd() -> OwnedFd {
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    fd
}

fn set_blocking(fd: impl AsFd) {
    let flags = fcntl_getfl(&fd).unwrap();
    fcntl_setfl(&fd, flags - OFlags::NONBLOCK).unwrap();
}

/// Runs `work` in a thread, so that a server that blocks for ever fails the test instead of blocking it.
#[track_caller]
fn without_waiting(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let worker = thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the server waits for its client"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => worker.join().unwrap(),
    }
}

#[test]
fn an_eventfd_that_is_full_does_not_stop_the_device() {
    without_waiting(|| {
        let mut bench = Bench::new();
        let mut client = bench.client();
        let fd = full_eventfd();
        let assign = set_irqs(ASSIGN, 2, 0, 1);
        bench.ask_ok(&mut client, SET_IRQS, &assign, &[fd.as_fd()]);
        for _ in 0..3 {
            bench.ask_ok(&mut client, REGION_WRITE, &access(2, RAISE, 1, &[0]), &[]);
        }
        assert_eq!(times_raised(&fd), u64::MAX);
        assert_eq!(bench.server.bus().irqs.raised(), 3);
    });
}

#[test]
fn a_full_eventfd_that_its_client_makes_blocking_does_not_stop_the_device() {
    without_waiting(|| {
        let mut bench = Bench::new();
        let mut client = bench.client();
        let fd = new_eventfd();
        let assign = set_irqs(ASSIGN, 2, 0, 1);
        bench.ask_ok(&mut client, SET_IRQS, &assign, &[fd.as_fd()]);
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        set_blocking(&fd);
        for _ in 0..3 {
            bench.ask_ok(&mut client, REGION_WRITE, &access(2, RAISE, 1, &[0]), &[]);
        }
        let raise_all = set_irqs(0x21, 2, 0, 3);
        bench.ask_ok(&mut client, SET_IRQS, &raise_all, &[]);
        drop(client);
        assert!(matches!(bench.turn()[..], [Event::Left(Disconnect::Left)]));
        bench.client();
    });
}

#[test]
fn a_client_that_repeatedly_fills_its_eventfd_and_changes_its_flags_does_not_stop_the_device() {
    without_waiting(|| {
        let mut bench = Bench::new();
        let mut client = bench.client();
        let fd = Arc::new(new_eventfd());
        let assign = set_irqs(ASSIGN, 2, 0, 1);
        bench.ask_ok(&mut client, SET_IRQS, &assign, &[fd.as_fd()]);
        let over = Arc::new(AtomicBool::new(false));
        let mischief = thread::spawn({
            let (fd, over) = (Arc::clone(&fd), Arc::clone(&over));
            move || {
                while !over.load(Ordering::Relaxed) {
                    let flags = fcntl_getfl(&*fd).unwrap();
                    fcntl_setfl(&*fd, flags | OFlags::NONBLOCK).unwrap();
                    let _ = rustix::io::write(&*fd, &(u64::MAX - 1).to_ne_bytes());
                    set_blocking(&*fd);
                    thread::yield_now();
                    fcntl_setfl(&*fd, flags | OFlags::NONBLOCK).unwrap();
                    let _ = rustix::io::read(&*fd, &mut [0; 8]);
                }
            }
        });
        for _ in 0..50_000 {
            assert!(bench.server.bus().irqs.raise(0));
        }
        over.store(true, Ordering::Relaxed);
        mischief.join().unwrap();
    });
}

#[test]
fn a_vector_accepts_an_eventfd_and_no_other_file() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let folder = std::fs::File::open("/").unwrap();
    let memory = guest_memory(0x1000);
    let socket = client.stream.try_clone().unwrap();
    let good = new_eventfd();
    let assign = set_irqs(ASSIGN, 2, 0, 2);
    for bad in [
        reader.as_fd(),
        writer.as_fd(),
        folder.as_fd(),
        memory.as_fd(),
        socket.as_fd(),
    ] {
        let reply = bench.ask(&mut client, SET_IRQS, &assign, &[good.as_fd(), bad]);
        assert_eq!(reply.errno, EINVAL);
    }
    assert_eq!(bench.server.stats().session.fds_closed, 10);
    assert!(!bench.server.bus().irqs.raise(0), "all or none");
    assert_eq!(times_raised(&good), 0, "asking what it is raises nothing");
    let semaphore = rustix::event::EventfdFlags::SEMAPHORE | rustix::event::EventfdFlags::NONBLOCK;
    let counting = rustix::event::eventfd(0, semaphore).unwrap();
    let fds = [good.as_fd(), counting.as_fd()];
    bench.ask_ok(&mut client, SET_IRQS, &assign, &fds);
    assert!(bench.server.bus().irqs.raise(0) && bench.server.bus().irqs.raise(1));
    assert_eq!((times_raised(&good), times_raised(&counting)), (1, 1));
}

/// Returns a socket on which close(2) blocks for a minute or longer: it has bytes that its peer does not read, and SO_LINGER.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(600))).unwrap();
    socket.set_nonblocking(false).unwrap();
    (socket.into(), peer)
}

#[test]
fn descriptors_that_block_in_close_do_not_stop_the_server() {
    without_waiting(|| {
        let mut bench = Bench::new();
        let mut peers = Vec::new();
        let mut give = || {
            let (socket, peer) = lingering();
            peers.push(peer);
            socket
        };
        let mut client = bench.client();
        // With a request that needs none, with one that needs another kind, too many, and without a request.
        let bodies = [
            (GET_INFO, vec![0; 16], 1),
            (SET_IRQS, set_irqs(ASSIGN, 2, 0, 1), 1),
            (DMA_MAP, dma_map(MAP_RW, 0, 0, 0x1000), 1),
            (DMA_MAP, dma_map(MAP_RW, 0, 0, 0x1000), 2),
        ];
        for (command, body, count) in bodies {
            let sockets: Vec<_> = (0..count).map(|_| give()).collect();
            let fds: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            client.send(command, 0, &body, &fds);
            drop(sockets);
            bench.turn();
            client.receive().expect("an answer");
        }
        let socket = give();
        let flood: Vec<_> = (0..200).map(|_| socket.as_fd()).collect();
        client.send(GET_INFO, 0, &[0; 16], &flood);
        drop(flood);
        drop(socket);
        bench.turn();
        assert_eq!(client.receive().unwrap().errno, EMFILE);
        // A refused client, and one that disconnects, each with one in its socket's queue.
        let other = std::os::unix::net::UnixStream::connect(bench.server.path()).unwrap();
        let socket = give();
        let mut other = Client::of(other);
        other.send(GET_INFO, 0, &[0; 16], &[socket.as_fd()]);
        drop(socket);
        assert!(matches!(bench.turn()[..], [Event::Refused]));
        let socket = give();
        for _ in 0..200 {
            client.send(REGION_WRITE, POSTED, &access(0, 0, 1, &[7]), &[]);
        }
        client.send(GET_INFO, 0, &[0; 16], &[socket.as_fd()]);
        drop((socket, client));
        let next = std::os::unix::net::UnixStream::connect(bench.server.path()).unwrap();
        assert!(matches!(bench.turn()[..], [Event::Left(_), Event::Joined]));
        // A client that waits to be accepted when the server ends.
        let socket = give();
        Client::of(next).send(GET_INFO, 0, &[0; 16], &[socket.as_fd()]);
        drop(socket);
        let late = std::os::unix::net::UnixStream::connect(bench.server.path()).unwrap();
        let socket = give();
        Client::of(late).send(GET_INFO, 0, &[0; 16], &[socket.as_fd()]);
        drop(socket);
        drop(bench);
    });
}

#[test]
fn the_server_does_not_change_the_flags_of_an_eventfd() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let assign = set_irqs(ASSIGN, 2, 0, 1);
    bench.ask_ok(&mut client, SET_IRQS, &assign, &[fd.as_fd()]);
    assert!(!fcntl_getfl(&fd).unwrap().contains(OFlags::NONBLOCK));
}
